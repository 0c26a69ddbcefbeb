// Trains a GPT of experts on synthetic tokens or any text, on any mesh of axes dp, tp, pp and ep.
//   build/examples/moe --experts=8 --mesh=cpu:dp=2,ep=2,pp=2 --micro_batches=4
#include <set>
#include <string>
#include <utility>

#include "examples/moe_model.h"
#include "oneflow_like/program/language_flags.h"
#include "oneflow_like/program/language_model.h"
#include "oneflow_like/program/program.h"

namespace examples {
namespace {

using namespace oneflow_like;

struct Flags {
  int64_t layers = 4, width = 128, heads = 4, experts = 8, top_k = 2, shared = 0;
  double capacity = 1.25, room = 0, retry_room = 0, balance = 0.01;
  std::string overflow = "drop";
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
       {"experts", &flags.experts, "Sets the number of experts of each block.", RangeOf(1, 1 << 16),
        kCommon | kKept},
       {"top_k", &flags.top_k, "Sends each token to this many experts.", kAnyValue, kCommon | kFixed},
       {"shared", &flags.shared, "Adds this many experts that every token uses.", RangeOf(0, 1 << 16), kKept},
       {"capacity", &flags.capacity, "Lets each expert take this many times its even share of the tokens.",
        RangeAbove(0, 1e6), kKept},
       {"room", &flags.room,
        "Gives each rank with experts room for this many times its even share of the tokens, instead of "
        "--capacity; 0 uses --capacity.",
        RangeOf(0, 1e6), kKept},
       {"overflow", &flags.overflow,
        "Sets what happens where experts have no room: drop leaves choices out, error ends the run, "
        "retry runs the step again with --retry_room (needs --room).",
        ChoiceOf({"drop", "error", "retry"}), kKept},
       {"retry_room", &flags.retry_room,
        "Sets the room of steps that --overflow=retry runs again; 0 gives room for everything.",
        RangeOf(0, 1e6), kKept},
       {"balance", &flags.balance, "Sets the weight of the loss that spreads tokens evenly over the experts.",
        RangeOf(0, 1e30), kKept}}};
}

// It writes no samples.
FlagGroup TextGroup() {
  const std::set<std::string> lacks = {"sample_tokens", "temperature", "prompt"};
  FlagGroup group = LanguageGroup();
  std::erase_if(group.flags, [&](const FlagEntry& flag) { return lacks.count(flag.name) > 0; });
  return group;
}

LanguageModel MoeOfFlags(int64_t vocabulary, const Mesh& mesh, const std::string& sequence,
                         const HuggingFaceConfig*) {
  constexpr int64_t kBytes = 256;
  if (flags.top_k < 1 || flags.top_k > flags.experts)
    Fail("--top_k is ", flags.top_k, ", must be at least 1, and at most the ", flags.experts,
         " of --experts");
  if (flags.room > 0 && IsGiven("capacity")) Fail("--room is in place of --capacity; leave one of them out");
  if (flags.overflow == "retry" && flags.room == 0)
    Fail("--overflow=retry is for the room of ranks; give --room, or leave --overflow out");
  if (flags.overflow != "retry" && flags.retry_room > 0)
    Fail("--retry_room is for --overflow=retry; give that, or leave --retry_room out");
  if (!sequence.empty()) Fail("moe: sequences cannot be cut, as the room of experts is of whole sequences");
  const MoeConfig config = {.layers = flags.layers,
                            .width = flags.width,
                            .heads = flags.heads,
                            .context = language_flags().context,
                            .vocabulary = vocabulary > 0 ? vocabulary : kBytes,
                            .experts = flags.experts,
                            .top_k = flags.top_k,
                            .inner = 2 * flags.width,
                            .shared = flags.shared,
                            .capacity = flags.capacity,
                            .room = flags.room,
                            .overflow = flags.overflow == "retry"   ? nn::ExpertOverflow::kRetry
                                        : flags.overflow == "error" ? nn::ExpertOverflow::kError
                                                                    : nn::ExpertOverflow::kDrop,
                            .retry_room = flags.retry_room,
                            .balance = flags.balance};
  CheckMoe(config, mesh);
  return {.losses = [config](Scope scope, Tensor tokens, Tensor targets, Tensor,
                             bool) { return MoeLosses(std::move(scope), tokens, targets, config); },
          .cuts_sequences = false,
          .vocabulary = config.vocabulary,
          .loss = [config](Scope scope, Tensor tokens,
                           Tensor targets) { return MoeLoss(std::move(scope), tokens, targets, config); }};
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) {
  using namespace examples;
  training_flags().unit = "sequences";
  training_flags().batch = 8;
  language_flags().sample_tokens = 0;
  // Without the flags of Hugging Face's folders, as there are none of this model.
  return ProgramMain(argc, argv, "Trains a GPT of experts on text, on any mesh of axes dp, tp, pp and ep.",
                     {ModelGroup(), TextGroup()}, [](const Launcher& launcher) {
                       return TrainLanguageModel(launcher, MoeOfFlags, {"ep"});
                     });
}
