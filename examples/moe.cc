// Trains a GPT of experts on synthetic tokens or any text, on any mesh of axes dp, tp, pp and ep.
//   build/examples/moe --experts=8 --mesh=cpu:dp=2,ep=2,pp=2 --micro_batches=4
#include <gflags/gflags.h>

#include <utility>

#include "examples/moe_model.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/program/huggingface_run.h"
#include "oneflow_like/program/language_flags.h"
#include "oneflow_like/program/language_model.h"

DEFINE_int64(layers, 4, "blocks");
DEFINE_int64(width, 128, "channels of the residual stream");
DEFINE_int64(heads, 4, "attention heads; divide width");
DEFINE_int64(experts, 8, "of each block");
DEFINE_int64(top_k, 2, "experts that a token uses");
DEFINE_double(capacity, 1.25, "of experts, in even shares");
DEFINE_int64(shared, 0, "experts that every token uses");
DEFINE_double(balance, 0.01, "loss that spreads tokens");

namespace oneflow_like {
namespace {

LanguageModel MoeOfFlags(int64_t vocabulary, const Mesh& mesh, const std::string& sequence,
                         const HuggingFaceConfig*) {
  constexpr int64_t kBytes = 256, kMost = 1 << 20;
  CheckRange<int64_t>("--layers", FLAGS_layers, 1, 10'000);
  CheckRange<int64_t>("--width", FLAGS_width, 1, kMost);
  CheckRange<int64_t>("--heads", FLAGS_heads, 1, kMost);
  CheckRange<int64_t>("--experts", FLAGS_experts, 1, 1 << 16);
  if (FLAGS_top_k < 1 || FLAGS_top_k > FLAGS_experts)
    Fail("--top_k is ", FLAGS_top_k, ", must be at least 1, and at most the ", FLAGS_experts,
         " of --experts");
  CheckRange<int64_t>("--shared", FLAGS_shared, 0, 1 << 16);
  CheckRange("--balance", FLAGS_balance, 0.0, 1e30);
  if (!(FLAGS_capacity > 0 && FLAGS_capacity <= 1e6))
    Fail("--capacity is ", FLAGS_capacity, ", must be more than 0, at most 1e6");
  if (!sequence.empty()) Fail("moe: sequences cannot be cut, as the room of experts is of whole sequences");
  const MoeConfig config = {.layers = FLAGS_layers,
                            .width = FLAGS_width,
                            .heads = FLAGS_heads,
                            .context = FLAGS_context,
                            .vocabulary = vocabulary > 0 ? vocabulary : kBytes,
                            .experts = FLAGS_experts,
                            .top_k = FLAGS_top_k,
                            .inner = 2 * FLAGS_width,
                            .shared = FLAGS_shared,
                            .capacity = FLAGS_capacity,
                            .balance = FLAGS_balance};
  CheckMoe(config, mesh);
  return {.logits = [config](Scope scope, Tensor tokens, Tensor,
                             bool) { return MoeLogits(std::move(scope), tokens, config); },
          .cuts_sequences = false,
          .vocabulary = config.vocabulary,
          .loss = [config](Scope scope, Tensor tokens,
                           Tensor targets) { return MoeLoss(std::move(scope), tokens, targets, config); }};
}

int TrainMoe(const Launcher& launcher) {
  if (!FLAGS_load_hf.empty() || !FLAGS_save_hf.empty())
    Fail("moe: there is no folder of Hugging Face's for this model; leave --load_hf and --save_hf out");
  return TrainLanguageModel(launcher, MoeOfFlags, {"ep"});
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  oneflow_like::SetDefault("sample_tokens", "0");
  oneflow_like::Launcher launcher(&argc, &argv,
                                  "Trains a GPT of experts on text, on any mesh of axes dp, tp, pp and ep.",
                                  oneflow_like::kTrainingMesh, oneflow_like::TrainingProgram);
  return launcher.Main([&] { return oneflow_like::TrainMoe(launcher); });
}
