// Trains a GPT on any text, on any mesh of axes dp, tp and pp; then measures it on held-out text and lets it
// write.
//   build/examples/gpt --mesh=cpu:dp=2,tp=2,pp=2 --micro_batches=4 --steps=300
#include <string>
#include <tuple>
#include <utility>

#include "examples/gpt_huggingface.h"
#include "examples/gpt_model.h"
#include "oneflow_like/program/huggingface_run.h"
#include "oneflow_like/program/language_flags.h"
#include "oneflow_like/program/language_model.h"

namespace examples {
namespace {

using namespace oneflow_like;

struct Flags {
  std::string logits_tile = "auto";
  int64_t layers = 4, width = 128, heads = 4, lora = 0;
  double dropout = 0.1;
} flags;

FlagGroup ModelGroup() {
  return {
      "model",
      "Model",
      {{"layers", &flags.layers, "Sets the number of Transformer blocks.", RangeOf(1, 10'000),
        kCommon | kKept},
       {"width", &flags.width, "Sets the number of channels of the residual stream.", RangeOf(1, 1 << 20),
        kCommon | kKept},
       {"heads", &flags.heads, "Sets the number of attention heads, which must divide --width.",
        RangeOf(1, 1 << 20), kCommon | kKept},
       {"dropout", &flags.dropout, "Drops values with this probability in training.", RangeBelow(0, 1),
        kCommon | kKept},
       {"logits_tile", &flags.logits_tile,
        "Computes the logits of this many tokens at a time to save memory; 0 computes all at once, and auto "
        "chooses what fits in --memory_budget."},
       {"lora", &flags.lora, "Freezes the weights and trains adapters of this rank; 0 trains the weights.",
        RangeOf(0, 1 << 20), kKept}}};
}

void CheckFlags() {
  if (flags.lora > 0 && !hugging_face_flags().save_hf.empty())
    Fail("--save_hf has no place for the adapters of --lora=", flags.lora, "; leave one of them out");
}

// The model's size: by the flags, or what --load_hf says, which a flag may repeat.
GptConfig ConfigOf(int64_t vocabulary, const std::string& sequence) {
  if (!hugging_face_flags().load_hf.empty()) {
    GptConfig config = ReadGpt2Config(hugging_face_flags().load_hf);
    const std::tuple<const char*, int64_t, int64_t> sizes[] = {{"layers", flags.layers, config.layers},
                                                               {"width", flags.width, config.width},
                                                               {"heads", flags.heads, config.heads}};
    for (const auto& [flag, asked, has] : sizes)
      if (IsGiven(flag) && asked != has)
        Fail("--", flag, "=", asked, ": the model of --load_hf=", hugging_face_flags().load_hf, " has ", has);
    FitLoadedModel(config.context, config.vocabulary, vocabulary);
    config.lora = flags.lora;
    config.sequence = sequence;
    config.ulysses = HeadsAxis();
    config.dropout = flags.dropout;
    return config;
  }
  return {.layers = flags.layers,
          .width = flags.width,
          .heads = flags.heads,
          .context = language_flags().context,
          .vocabulary = vocabulary,
          .lora = flags.lora,
          .sequence = sequence,
          .ulysses = HeadsAxis(),
          .dropout = flags.dropout};
}

LanguageModel GptOfFlags(int64_t vocabulary, const Mesh& mesh, const std::string& sequence,
                         const HuggingFaceConfig* theirs) {
  CheckFlags();
  constexpr int64_t kBytes = 256;
  const GptConfig config =
      ConfigOf(vocabulary > 0 || !hugging_face_flags().load_hf.empty() ? vocabulary : kBytes, sequence);
  CheckGpt(config, mesh);
  LanguageModel gpt;
  gpt.losses = [config](Scope scope, Tensor tokens, Tensor targets, Tensor positions, bool training) {
    GptConfig here = config;
    if (!training) here.dropout = 0;
    return GptLosses(std::move(scope), tokens, targets, here, positions);
  };
  gpt.next = [config](Scope scope, Tensor tokens, const nn::Cache& cache) {
    GptConfig here = config;
    here.dropout = 0;
    here.sequence = "";
    here.ulysses = "";
    return GptNext(std::move(scope), tokens, here, cache);
  };
  gpt.drops = flags.dropout > 0;
  gpt.vocabulary = config.vocabulary;
  gpt.logits_tile = LogitsTile(flags.logits_tile);
  gpt.config = Gpt2ConfigText(config, theirs);
  gpt.huggingface = Gpt2Format();
  if (flags.lora > 0) gpt.weights = {{"*", {.trainable = false}}, {"*_lora_*", {.trainable = true}}};
  return gpt;
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) {
  using namespace examples;
  training_flags().batch = 8;
  language_flags().text = "/usr/share/doc/jargon-text/jargon.txt.gz";
  return LanguageMain(argc, argv, "Trains a GPT on text, on any mesh of axes dp, tp and pp.", {ModelGroup()},
                      GptOfFlags);
}
