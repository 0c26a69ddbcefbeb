// Beside Hugging Face's own libraries: a GPT-2 that transformers made gives the same logits here, what we
// save loads there with equal tensors, and safetensors opens every file. Skipped where python3 (or what
// OFL_PYTHON names) lacks the packages transformers, torch and safetensors.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "examples/gpt_huggingface.h"
#include "oneflow_like/checkpoint/reader.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

std::string Python() {
  const char* given = std::getenv("OFL_PYTHON");
  return given != nullptr ? given : "python3";
}

int Check(const std::string& arguments) {
  return std::system(
      Cat(Python(), " ", OFL_SOURCE_DIR, "/tests/examples/transformers_check.py ", arguments).c_str());
}

class Transformers : public testing::Test {
 protected:
  void SetUp() override {
    const std::string packages = "import torch, transformers, safetensors";
    if (std::system(Cat(Python(), " -c '", packages, "' 2> /dev/null").c_str()) != 0)
      GTEST_SKIP() << Python() << " lacks one of: " << packages;
  }
  TestFolder folder_{"transformers_test"};
};

HostTensor Logits(Model& model, const GptConfig& config, const HostTensor& tokens) {
  ModelGraph graph = model.NewGraph("eval");
  Tensor in = graph.Input("tokens", tokens.shape, DType::kInt32, {{"dp", S(0)}});
  Session session = Evaluate({{"logits", GptLogits(graph.scope(), in, config)}});
  return session.Run({{"tokens", tokens}}).Get("logits");
}

TEST_F(Transformers, GiveTheSameLogitsAndTakeWhatWeSave) {
  const std::string theirs = folder_ / "theirs";
  ASSERT_EQ(Check("make " + theirs), 0);
  HostTensor tokens = HostTensor::Make(DType::kInt32, {2, 17});
  for (int i = 0; i < 34; ++i) tokens.as<int32_t>()[i] = i * 7 % 96;
  const GptConfig config = ReadGpt2Config(theirs);
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2,tp=2", "cpu:pp=3"}) {
    Model model(FullMesh(mesh));
    const Dims shape = {2, config.context};
    Tensor in = model.Input("tokens", shape, DType::kInt32, {{"dp", S(0)}}),
           targets = model.Input("targets", shape, DType::kInt32, {{"dp", S(0)}});
    Session train = Train(GptLoss(model.scope(), in, targets, config), AdamW{});
    ConvertedSource weights(Gpt2Format().read(theirs), {.dtype = DType::kFloat32});
    LoadWeights(model, weights);
    const HostTensor logits = Logits(model, config, tokens);
    std::ifstream wanted(theirs + "/logits.txt");
    for (int64_t i = 0; i < logits.elements(); ++i) {
      double value = 0;
      ASSERT_TRUE(wanted >> value);
      ASSERT_NEAR(logits.as<float>()[i], value, 1e-4) << mesh << " " << i;
    }
    const std::string saved = Save(model, folder_ / "saved").Wait(), ours = folder_ / "ours";
    Gpt2Format().write(std::make_shared<CheckpointReader>(saved), ours);
    EXPECT_EQ(Check(Cat("equal ", theirs, " ", ours)), 0) << mesh;
    EXPECT_EQ(Check(Cat("open ", saved, "/*.safetensors ", ours, "/*.safetensors")), 0) << mesh;
    fs::remove_all(folder_ / "saved");
    fs::remove_all(ours);
  }
}

}  // namespace
}  // namespace oneflow_like
