// Beside Hugging Face's own libraries: a GPT-2, a Llama and a Qwen 2 that transformers made give the same
// logits here, what we save loads there with equal tensors, and safetensors opens every file. Skipped where
// python3 (or what OFL_PYTHON names) lacks the packages transformers, torch and safetensors.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "examples/gpt_huggingface.h"
#include "examples/llama_huggingface.h"
#include "oneflow_like/checkpoint/reader.h"
#include "tests/oneflow_like/session_fixture.h"
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

using MakeLogits = std::function<Tensor(Scope, Tensor)>;

HostTensor Logits(Model& model, const MakeLogits& logits, const HostTensor& tokens) {
  ModelGraph graph = model.NewGraph("eval");
  Tensor in = graph.Input("tokens", tokens.shape, DType::kInt32, {{"dp", S(0)}});
  Session session = Evaluate({{"logits", logits(graph.scope(), in)}});
  return session.Run({{"tokens", tokens}}).Get("logits");
}

// What `theirs` has is read by the model, which gives its logits, and written again.
void ExpectTheSame(const TestFolder& folder, const std::string& theirs, const MakeLogits& make,
                   const ModelFormat& format) {
  HostTensor tokens = HostTensor::Make(DType::kInt32, {2, 17});
  for (int i = 0; i < 34; ++i) tokens.as<int32_t>()[i] = i * 7 % 96;
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2,tp=2", "cpu:pp=3"}) {
    Model model(FullMesh(mesh));
    const Dims shape = {2, 24};
    Tensor in = model.Input("tokens", shape, DType::kInt32, {{"dp", S(0)}}),
           targets = model.Input("targets", shape, DType::kInt32, {{"dp", S(0)}});
    Session train = Train(mean(cross_entropy(make(model.scope(), in), targets)), AdamW{});
    ConvertedSource weights(format.read(theirs), {.dtype = DType::kFloat32});
    LoadWeights(model, weights);
    const HostTensor logits = Logits(model, make, tokens);
    std::ifstream wanted(theirs + "/logits.txt");
    for (int64_t i = 0; i < logits.elements(); ++i) {
      double value = 0;
      ASSERT_TRUE(wanted >> value);
      ASSERT_NEAR(logits.as<float>()[i], value, 1e-4) << mesh << " " << i;
    }
    const std::string saved = Save(model, folder / "saved").Wait(), ours = folder / "ours";
    format.write(std::make_shared<CheckpointReader>(saved), ours);
    EXPECT_EQ(Check(Cat("equal ", theirs, " ", ours)), 0) << mesh;
    EXPECT_EQ(Check(Cat("open ", saved, "/*.safetensors ", ours, "/*.safetensors")), 0) << mesh;
    fs::remove_all(folder / "saved");
    fs::remove_all(ours);
  }
}

TEST_F(Transformers, GiveTheSameLogitsAndTakeWhatWeSave) {
  const std::string theirs = folder_ / "gpt2";
  ASSERT_EQ(Check("make " + theirs), 0);
  const GptConfig config = ReadGpt2Config(theirs);
  auto logits = [&](Scope s, Tensor tokens) { return GptLogits(std::move(s), tokens, config); };
  ExpectTheSame(folder_, theirs, logits, Gpt2Format());
}

TEST_F(Transformers, GiveTheSameLogitsOfLlamas) {
  for (const char* kind : {"llama", "llama3", "qwen2"}) {
    SCOPED_TRACE(kind);
    const std::string theirs = folder_ / kind;
    ASSERT_EQ(Check("make " + theirs), 0);
    const auto [config, context] = ReadLlamaConfig(theirs);
    auto logits = [&config = config](Scope s, Tensor tokens) {
      return LlamaLogits(std::move(s), tokens, config);
    };
    ExpectTheSame(folder_, theirs, logits, LlamaFormat(config, context));
  }
}

}  // namespace
}  // namespace oneflow_like
