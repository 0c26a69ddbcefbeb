// Trains a Llama, a Qwen 2, or one of these with experts (Mixtral, Qwen 2 MoE) on any mesh of axes dp, tp, pp
// and ep, on synthetic tokens or any text.
//   build/examples/llama --size=tiny --mesh=cpu:dp=2,tp=2,pp=2 --micro_batches=4
#include <algorithm>
#include <string>
#include <utility>

#include "examples/llama_huggingface.h"
#include "examples/llama_model.h"
#include "oneflow_like/program/huggingface_run.h"
#include "oneflow_like/program/language_flags.h"
#include "oneflow_like/program/language_model.h"

namespace examples {
namespace {

using namespace oneflow_like;

struct Flags {
  std::string size = "tiny", logits_tile = "auto";
  int64_t layers = 0;
  bool tied = false, qkv_bias = false;
  double capacity = 1.25, room = 0;
} flags;

FlagGroup ModelGroup() {
  return {
      "model",
      "Model",
      {{"size", &flags.size,
        "Chooses the model: tiny, 160m, 1b, 8b or 70b; with experts mixtral_tiny, qwen_moe_tiny or "
        "mixtral_8x7b.",
        kAnyValue, kCommon | kKept},
       {"layers", &flags.layers, "Sets the number of Transformer blocks; 0 takes that of --size.",
        RangeOf(0, 10'000), kCommon | kKept},
       {"logits_tile", &flags.logits_tile,
        "Computes the logits of this many tokens at a time to save memory; 0 computes all at once, and auto "
        "chooses what fits in --memory_budget."},
       {"tied", &flags.tied, "Uses the table of the embedding for the output, too.", kAnyValue, kKept},
       {"qkv_bias", &flags.qkv_bias, "Adds biases to queries, keys and values, as Qwen 2 does.", kAnyValue,
        kKept},
       {"capacity", &flags.capacity,
        "Lets each expert take this many times its even share of the tokens; 0 lets it take all.",
        RangeOf(0, 1e6), kKept},
       {"room", &flags.room,
        "Gives each rank with experts room for this many times its even share of the tokens, instead of "
        "--capacity; 0 uses --capacity.",
        RangeOf(0, 1e6), kKept}}};
}

// The model's size: by the flags, or what --load_hf says, which decides alone. What no flag says is that of
// the model that the run begins with.
LlamaFolder ConfigOfFlags(int64_t vocabulary, const std::string& sequence, const HuggingFaceConfig* theirs) {
  LlamaFolder model;
  LlamaConfig& config = model.config;
  if (hugging_face_flags().load_hf.empty()) {
    config = LlamaOfSize(flags.size);
    model.context = language_flags().context;
    if (vocabulary > 0) config.vocabulary = vocabulary;
    if (flags.layers > 0) config.layers = flags.layers;
    if (IsGiven("tied")) config.tied = flags.tied;
    if (config.experts.experts == 0) {
      config.qkv_bias = flags.qkv_bias;
    } else if (IsGiven("qkv_bias")) {
      Fail("--qkv_bias: --size=", flags.size, " says whether there is one");
    }
    if (theirs) {
      const LlamaFolder there = ReadLlamaConfig(*theirs);
      config.rope = there.config.rope;
      config.norm_eps = there.config.norm_eps;
      model.context = std::max(model.context, there.context);
    }
  } else {
    for (const char* flag : {"size", "layers", "tied", "qkv_bias"})
      if (IsGiven(flag))
        Fail("--", flag, ": --load_hf=", hugging_face_flags().load_hf, " says how large the model is");
    model = ReadLlamaConfig(*theirs);
    FitLoadedModel(model.context, config.vocabulary, vocabulary);
  }
  if (config.experts.experts == 0 && IsGiven("capacity"))
    Fail("--capacity is of experts, but this model has none");
  if (config.experts.experts == 0 && IsGiven("room")) Fail("--room is of experts, but this model has none");
  if (flags.room > 0 && IsGiven("capacity")) Fail("--room is in place of --capacity; leave one of them out");
  config.experts.capacity = flags.capacity;
  config.experts.room = flags.room;
  config.sequence = sequence;
  config.ulysses = HeadsAxis();
  return model;
}

LanguageModel LlamaOfFlags(int64_t vocabulary, const Mesh& mesh, const std::string& sequence,
                           const HuggingFaceConfig* theirs) {
  const auto [config, context] = ConfigOfFlags(vocabulary, sequence, theirs);
  CheckLlama(config, mesh);
  LanguageModel llama = {
      .losses =
          [config = config](Scope scope, Tensor tokens, Tensor targets, Tensor positions, bool training) {
            LlamaConfig here = config;
            if (!training) here.experts.capacity = here.experts.room = 0;
            return LlamaLosses(std::move(scope), tokens, targets, here, positions);
          },
      .next =
          [config = config](Scope scope, Tensor tokens, const nn::Cache& cache) {
            LlamaConfig here = config;
            here.sequence = "";
            here.ulysses = "";
            return LlamaNext(std::move(scope), tokens, here, cache);
          },
      .vocabulary = config.vocabulary,
      .logits_tile = LogitsTile(flags.logits_tile),
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
}  // namespace examples

int main(int argc, char** argv) {
  using namespace examples;
  training_flags().batch = 8;
  language_flags().sample_tokens = 0;
  return LanguageMain(
      argc, argv,
      "Trains a Llama, Qwen 2, Mixtral or Qwen 2 MoE on text, on any mesh of axes dp, tp, pp and ep.",
      {ModelGroup()}, LlamaOfFlags, {"cp", "sp", "ep"});
}
