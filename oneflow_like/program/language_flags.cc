#include "oneflow_like/program/language_flags.h"

#include <gflags/gflags.h>

#include <algorithm>

#include "oneflow_like/model/limits.h"
#include "oneflow_like/program/huggingface_run.h"

DEFINE_int64(context, 128, "tokens of one sequence");
DEFINE_int64(batch, 8, "sequences of one step");
DEFINE_double(weight_decay, 0.1, "weight decay of AdamW");
DEFINE_bool(sequence_parallel, false, "sequences cut over tp");
DEFINE_bool(context_parallel, false, "sequences cut over cp");
DEFINE_bool(ulysses, false, "sequences cut over sp");
DEFINE_string(text, "", "text, .bin .idx .npy; '': synthetic");
DEFINE_int64(eval_batches, 16, "of held-out text; 0: none");
DEFINE_int64(sample_tokens, 300, "to write at the end");
DEFINE_double(temperature, 0.8, "of sampling; 0: the likeliest");
DEFINE_string(prompt, "The hacker", "the sample's beginning");

namespace oneflow_like {

void CheckLanguageFlags() {
  constexpr int64_t kMany = 1'000'000'000;
  CheckRange<int64_t>("--context", FLAGS_context, 1, 1 << 20);
  CheckTrainingFlags("sequences");
  CheckHuggingFaceFlags();
  CheckRange<int64_t>("--sample_tokens", FLAGS_sample_tokens, 0, kMany);
  CheckRange("--weight_decay", FLAGS_weight_decay, 0.0, 1e30);
  CheckRange("--temperature", FLAGS_temperature, 0.0, 1e30);
}

std::string SequenceAxis() {
  if (FLAGS_sequence_parallel + FLAGS_context_parallel + FLAGS_ulysses > 1)
    Fail("--sequence_parallel, --context_parallel and --ulysses each cut sequences: give one of them");
  return FLAGS_sequence_parallel ? "tp" : FLAGS_context_parallel ? "cp" : FLAGS_ulysses ? "sp" : "";
}

void FitLoadedModel(int64_t positions, int64_t tokens, int64_t vocabulary) {
  if (!IsGiven("context") && FLAGS_context > positions) FLAGS_context = positions;
  if (FLAGS_context > positions)
    Fail("--context=", FLAGS_context, ": the model of --load_hf=", FLAGS_load_hf, " has ", positions,
         " positions");
  if (vocabulary > tokens)
    Fail("--text=", FLAGS_text, " has a vocabulary of ", vocabulary,
         ", but the model of --load_hf=", FLAGS_load_hf, " has ", tokens);
}

std::string DealtAxis(const Mesh& mesh, bool drops) {
  return FLAGS_context_parallel && !drops && mesh.kind() == "cpu" ? SequenceAxis() : "";
}

Annotation TokensCut() {
  Annotation cut = {{"dp", S(0)}};
  const std::string sequence = SequenceAxis();
  if (!sequence.empty() && sequence != "tp") cut.push_back({sequence, S(1)});
  return cut;
}

TrainOptions LanguageTrainOptions() {
  TrainOptions options = TrainOptionsOfFlags();
  const std::string sequence = SequenceAxis();
  if (sequence != "tp") options.parallel.context = sequence;
  return options;
}

AdamW LanguageOptimizer() {
  return {.lr = FLAGS_lr, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = FLAGS_weight_decay};
}

}  // namespace oneflow_like
