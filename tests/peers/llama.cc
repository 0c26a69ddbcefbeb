// The small Llamas of the tests beside PyTorch: twenty steps from equal weights on equal batches. Weights,
// batches and losses go to a file, from which llama.py trains the same models in double. Skipped where
// python3 (or the program that OFL_PYTHON names) lacks torch.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/examples/llama_small.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/peers/tensor_file.h"

namespace oneflow_like::peers {
namespace {

constexpr int kLlamaSteps = 20;

void Keep(const std::string& name, const HostTensor& t, TensorFile* file) {
  file->Add(name, t.dtype, t.shape, t.data.get());
}

// What llama.py cannot see in the shapes.
std::vector<double> NumbersOf(const LlamaConfig& c) {
  return {static_cast<double>(c.layers),
          static_cast<double>(c.heads),
          static_cast<double>(c.kv_heads),
          c.norm_eps,
          c.rope.base,
          static_cast<double>(c.rope.trained_length),
          c.rope.factor,
          c.rope.low_turns,
          c.rope.high_turns,
          static_cast<double>(c.experts.top_k),
          c.experts.normalise ? 1.0 : 0.0,
          c.experts.capacity,
          c.experts.aux_loss};
}

TEST(Peers, LlamaLearnsAsInPyTorch) {
  const std::string python = PythonWithTorch();
  if (python.empty()) GTEST_SKIP() << "python3, or what OFL_PYTHON names, lacks torch";
  std::vector<SmallLlama> llamas = SmallLlamas();
  llamas.push_back({"tiny", LlamaOfSize("tiny")});
  TensorFile file;
  for (const auto& [name, config] : llamas) {
    Model model(FullMesh("cpu:dp=2,tp=2"));
    TrainOptions options;
    options.micro_batches = 2;
    options.clip_norm = 1;
    Session train = TrainLlama(model, config, options, AdamW{.lr = 2e-3, .weight_decay = 0.1});
    file.Add(Cat(name, ":numbers"), NumbersOf(config));
    for (const std::string& weight : model.Variables())
      if (weight.find(':') == std::string::npos)
        Keep(Cat(name, ":weight:", weight), model.Read(weight), &file);
    std::vector<double> losses;
    for (int step = 0; step < kLlamaSteps; ++step) {
      const Feeds feeds = LlamaFeeds(step, config.vocabulary);
      for (const auto& [input, tensor] : feeds) Keep(Cat(name, ":", input, ":", step), tensor, &file);
      losses.push_back(train.Run(feeds).Scalar("loss"));
    }
    file.Add(Cat(name, ":losses"), losses);
  }
  const std::string path = Cat(OFL_BINARY_DIR, "/llama_peer_test.safetensors");
  file.Write(path);
  EXPECT_EQ(std::system(Cat(python, " -B ", OFL_SOURCE_DIR, "/tests/peers/llama.py ", path).c_str()), 0);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace oneflow_like::peers
