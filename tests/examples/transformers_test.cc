// Beside Hugging Face's own libraries: a GPT-2, a Llama, a Qwen 2 and a ViT that transformers made give the
// same logits here, what we save loads there with equal tensors, and safetensors opens every file. Skipped
// where python3 (or what OFL_PYTHON names) lacks the packages transformers, torch and safetensors.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "examples/gpt_huggingface.h"
#include "examples/llama_huggingface.h"
#include "examples/vit_huggingface.h"
#include "oneflow_like/checkpoint/reader.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/processes.h"
#include "tests/python.h"

namespace oneflow_like {

using namespace examples;
namespace {

namespace fs = std::filesystem;

int Check(const std::string& arguments) {
  return std::system(
      Cat(Python(), " ", OFL_SOURCE_DIR, "/tests/examples/transformers_check.py ", arguments).c_str());
}

class Transformers : public testing::Test {
 protected:
  void SetUp() override {
    const std::string packages = "torch, transformers, safetensors";
    if (!PythonHas(packages)) GTEST_SKIP() << Python() << " lacks one of: " << packages;
  }
  TestFolder folder_{"transformers_test"};
};

using MakeLogits = std::function<Tensor(Scope, Tensor)>;

HostTensor Logits(Model& model, const MakeLogits& logits, const HostTensor& given) {
  ModelGraph graph = model.NewGraph("eval");
  Tensor in = graph.Input("given", given.shape, given.dtype, {{"dp", S(0)}});
  Session session = Evaluate({{"logits", logits(graph.scope(), in)}});
  return session.Run({{"given", given}}).Get("logits");
}

HostTensor Tokens() {
  HostTensor tokens = HostTensor::Make(DType::kInt32, {2, 17});
  for (int i = 0; i < 34; ++i) tokens.as<int32_t>()[i] = i * 7 % 96;
  return tokens;
}

// The model reads the weights in `theirs`, gives the logits there for `given`, and is written again.
// Training is of inputs of `shape`.
void ExpectTheSame(const TestFolder& folder, const std::string& theirs, const HostTensor& given,
                   const Dims& shape, const MakeLogits& make, const ModelFormat& format) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2,tp=2", "cpu:pp=3"}) {
    Model model(FullMesh(mesh));
    Tensor in = model.Input("given", shape, given.dtype, {{"dp", S(0)}});
    Session train = Train(mean(square(make(model.scope(), in))), AdamW{});
    ConvertedSource weights(format.read(theirs), {.dtype = DType::kFloat32});
    LoadWeights(model, weights);
    const HostTensor logits = Logits(model, make, given);
    std::ifstream wanted(theirs + "/logits.txt");
    for (int64_t i = 0; i < logits.elements(); ++i) {
      double value = 0;
      ASSERT_TRUE(wanted >> value);
      ASSERT_NEAR(logits.as<float>()[i], value, 1e-4) << mesh << " " << i;
    }
    const std::string saved = Save(model, folder / "saved").Wait(), ours = folder / "ours";
    format.write(std::make_shared<CheckpointReader>(saved), ReadFolderFiles(theirs), ours);
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
  ExpectTheSame(folder_, theirs, Tokens(), {2, 24}, logits, Gpt2Format());
}

TEST_F(Transformers, GiveTheSameLogitsOfLlamas) {
  for (const char* kind : {"llama", "llama3", "qwen2", "mixtral", "qwen2_moe"}) {
    SCOPED_TRACE(kind);
    const std::string theirs = folder_ / kind;
    ASSERT_EQ(Check("make " + theirs), 0);
    const auto [config, context] = ReadLlamaConfig(theirs);
    LlamaConfig roomy = config;
    roomy.experts.capacity = 0;  // they drop no token
    auto logits = [&](Scope s, Tensor tokens) { return LlamaLogits(std::move(s), tokens, roomy); };
    ExpectTheSame(folder_, theirs, Tokens(), {2, 24}, logits, LlamaFormat(config, context));
  }
}

TEST_F(Transformers, GiveTheSameLogitsOfAVit) {
  const std::string theirs = folder_ / "vit";
  ASSERT_EQ(Check("make " + theirs), 0);
  const VitFolder vit = ReadVitConfig(theirs);
  HostTensor images = HostTensor::Make(DType::kFloat32, {2, 24, 24, 3});
  for (int64_t i = 0; i < images.elements(); ++i)
    images.as<float>()[i] = static_cast<float>(i * 7 % 97) / 97 - 0.5f;
  auto logits = [&](Scope s, Tensor in) { return VitLogits(std::move(s), in, vit.config, false); };
  ExpectTheSame(folder_, theirs, images, images.shape, logits, VitFormat(vit));
}

}  // namespace
}  // namespace oneflow_like
