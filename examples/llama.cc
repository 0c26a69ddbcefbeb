// Trains a Llama, a Qwen 2, or one of these with experts (Mixtral, Qwen 2 MoE) on any mesh of axes dp, tp, pp
// and ep, on synthetic tokens or any text.
//   build/examples/llama --size=tiny --mesh=cpu:dp=2,tp=2,pp=2 --micro_batches=4
#include <gflags/gflags.h>

#include <algorithm>
#include <string>
#include <utility>

#include "examples/llama_huggingface.h"
#include "examples/llama_model.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/program/huggingface_run.h"
#include "oneflow_like/program/language_flags.h"
#include "oneflow_like/program/language_model.h"

DEFINE_string(size, "tiny", "tiny, 160m, 1b or 8b; mixtral_tiny, qwen_moe_tiny, mixtral_8x7b");
DEFINE_int64(layers, 0, "Transformer blocks; 0: as --size");
DEFINE_bool(tied, false, "output reads the embedding's table");
DEFINE_bool(qkv_bias, false, "as Qwen 2 has");
DEFINE_double(capacity, 1.25, "of experts; 0: for every token");

namespace oneflow_like {
namespace {

// The model's size: by the flags, or what --load_hf says, which decides alone. What no flag says is that of
// the model that the run begins with.
LlamaFolder ConfigOfFlags(int64_t vocabulary, const std::string& sequence, const HuggingFaceConfig* theirs) {
  CheckRange<int64_t>("--layers", FLAGS_layers, 0, 10'000);
  LlamaFolder model;
  LlamaConfig& config = model.config;
  if (FLAGS_load_hf.empty()) {
    config = LlamaOfSize(FLAGS_size);
    model.context = FLAGS_context;
    if (vocabulary > 0) config.vocabulary = vocabulary;
    if (FLAGS_layers > 0) config.layers = FLAGS_layers;
    if (IsGiven("tied")) config.tied = FLAGS_tied;
    if (config.experts.experts == 0) {
      config.qkv_bias = FLAGS_qkv_bias;
    } else if (IsGiven("qkv_bias")) {
      Fail("--qkv_bias: --size=", FLAGS_size, " says whether there is one");
    }
    if (theirs) {
      const LlamaFolder there = ReadLlamaConfig(*theirs);
      config.rope = there.config.rope;
      config.norm_eps = there.config.norm_eps;
      model.context = std::max(model.context, there.context);
    }
  } else {
    for (const char* flag : {"size", "layers", "tied", "qkv_bias"})
      if (IsGiven(flag)) Fail("--", flag, ": --load_hf=", FLAGS_load_hf, " says how large the model is");
    model = ReadLlamaConfig(*theirs);
    FitLoadedModel(model.context, config.vocabulary, vocabulary);
  }
  if (!(FLAGS_capacity >= 0 && FLAGS_capacity <= 1e6))
    Fail("--capacity is ", FLAGS_capacity, ", must be at least 0, at most 1e6");
  if (config.experts.experts == 0 && IsGiven("capacity"))
    Fail("--capacity is of experts, but this model has none");
  config.experts.capacity = FLAGS_capacity;
  config.sequence = sequence;
  config.ulysses = FLAGS_ulysses;
  return model;
}

LanguageModel LlamaOfFlags(int64_t vocabulary, const Mesh& mesh, const std::string& sequence,
                           const HuggingFaceConfig* theirs) {
  const auto [config, context] = ConfigOfFlags(vocabulary, sequence, theirs);
  CheckLlama(config, mesh);
  LanguageModel llama = {.logits =
                             [config = config](Scope scope, Tensor tokens, Tensor positions, bool training) {
                               LlamaConfig here = config;
                               if (!training) here.experts.capacity = 0;
                               return LlamaLogits(std::move(scope), tokens, here, positions);
                             },
                         .next =
                             [config = config](Scope scope, Tensor tokens, const nn::Cache& cache) {
                               LlamaConfig here = config;
                               here.sequence = "";
                               here.ulysses = false;
                               return LlamaNext(std::move(scope), tokens, here, cache);
                             },
                         .vocabulary = config.vocabulary,
                         .config = LlamaConfigText(config, context, theirs),
                         .huggingface = LlamaFormat(config, context)};
  if (config.experts.experts > 0) {
    llama.cuts_sequences = false;
    llama.loss = [config = config](Scope scope, Tensor tokens, Tensor targets) {
      return LlamaLoss(std::move(scope), tokens, targets, config);
    };
  }
  return llama;
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  oneflow_like::SetDefault("sample_tokens", "0");
  oneflow_like::Launcher launcher(
      &argc, &argv,
      "Trains a Llama, Qwen 2, Mixtral or Qwen 2 MoE on text, on any mesh of axes "
      "dp, tp, pp and ep.",
      oneflow_like::kTrainingMesh, oneflow_like::TrainingProgram);
  return launcher.Main([&] {
    return oneflow_like::TrainLanguageModel(launcher, oneflow_like::LlamaOfFlags, {"cp", "sp", "ep"});
  });
}
