// Trains a GPT on any text, on any mesh of axes dp, tp and pp; then measures it on held-out text and lets it
// write.
//   build/examples/gpt --mesh=cpu:dp=2,tp=2,pp=2 --micro_batches=4 --steps=300
#include <gflags/gflags.h>

#include <string>
#include <tuple>
#include <utility>

#include "examples/gpt_huggingface.h"
#include "examples/gpt_model.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/program/huggingface_run.h"
#include "oneflow_like/program/language_flags.h"
#include "oneflow_like/program/language_model.h"

DEFINE_int64(layers, 4, "Transformer blocks");
DEFINE_int64(width, 128, "channels of the residual stream");
DEFINE_int64(heads, 4, "attention heads; divide width");
DEFINE_double(dropout, 0.1, "probability of dropping");
DEFINE_int64(lora, 0, "rank of adapters; 0: none");

namespace oneflow_like {
namespace {

void CheckFlags() {
  CheckRange<int64_t>("--layers", FLAGS_layers, 1, 10'000);
  CheckRange<int64_t>("--width", FLAGS_width, 1, 1 << 20);
  CheckRange<int64_t>("--heads", FLAGS_heads, 1, 1 << 20);
  if (!(FLAGS_dropout >= 0 && FLAGS_dropout < 1))
    Fail("--dropout is ", FLAGS_dropout, ", must lie in [0, 1)");
  CheckRange<int64_t>("--lora", FLAGS_lora, 0, 1 << 20);
  if (FLAGS_lora > 0 && !FLAGS_save_hf.empty())
    Fail("--save_hf has no place for the adapters of --lora=", FLAGS_lora, "; leave one of them out");
}

// The model's size: by the flags, or what --load_hf says, which a flag may repeat.
GptConfig ConfigOf(int64_t vocabulary, const std::string& sequence) {
  if (!FLAGS_load_hf.empty()) {
    GptConfig config = ReadGpt2Config(FLAGS_load_hf);
    const std::tuple<const char*, int64_t, int64_t> sizes[] = {{"layers", FLAGS_layers, config.layers},
                                                               {"width", FLAGS_width, config.width},
                                                               {"heads", FLAGS_heads, config.heads}};
    for (const auto& [flag, asked, has] : sizes)
      if (IsGiven(flag) && asked != has)
        Fail("--", flag, "=", asked, ": the model of --load_hf=", FLAGS_load_hf, " has ", has);
    FitLoadedModel(config.context, config.vocabulary, vocabulary);
    config.lora = FLAGS_lora;
    config.sequence = sequence;
    config.ulysses = FLAGS_ulysses;
    config.dropout = FLAGS_dropout;
    return config;
  }
  return {.layers = FLAGS_layers,
          .width = FLAGS_width,
          .heads = FLAGS_heads,
          .context = FLAGS_context,
          .vocabulary = vocabulary,
          .lora = FLAGS_lora,
          .sequence = sequence,
          .ulysses = FLAGS_ulysses,
          .dropout = FLAGS_dropout};
}

LanguageModel GptOfFlags(int64_t vocabulary, const Mesh& mesh, const std::string& sequence,
                         const HuggingFaceConfig* theirs) {
  CheckFlags();
  constexpr int64_t kBytes = 256;
  const GptConfig config = ConfigOf(vocabulary > 0 || !FLAGS_load_hf.empty() ? vocabulary : kBytes, sequence);
  CheckGpt(config, mesh);
  LanguageModel gpt;
  gpt.logits = [config](Scope scope, Tensor tokens, Tensor positions, bool training) {
    GptConfig here = config;
    if (!training) here.dropout = 0;
    return GptLogits(std::move(scope), tokens, here, positions);
  };
  gpt.next = [config](Scope scope, Tensor tokens, const nn::Cache& cache) {
    GptConfig here = config;
    here.dropout = 0;
    here.sequence = "";
    here.ulysses = false;
    return GptNext(std::move(scope), tokens, here, cache);
  };
  gpt.drops = FLAGS_dropout > 0;
  gpt.vocabulary = config.vocabulary;
  gpt.config = Gpt2ConfigText(config, theirs);
  gpt.huggingface = Gpt2Format();
  if (FLAGS_lora > 0) gpt.weights = {{"*", {.trainable = false}}, {"*_lora_*", {.trainable = true}}};
  return gpt;
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  oneflow_like::SetDefault("text", "/usr/share/doc/jargon-text/jargon.txt.gz");
  oneflow_like::Launcher launcher(&argc, &argv, "Trains a GPT on text, on any mesh of axes dp, tp and pp.",
                                  oneflow_like::kTrainingMesh, oneflow_like::TrainingProgram);
  return launcher.Main([&] { return oneflow_like::TrainLanguageModel(launcher, oneflow_like::GptOfFlags); });
}
