#include "oneflow_like/program/language_flags.h"

#include <charconv>
#include <tuple>

#include "oneflow_like/model/limits.h"
#include "oneflow_like/program/huggingface_run.h"

namespace oneflow_like {

LanguageFlags& language_flags() {
  static auto* flags = new LanguageFlags;  // gflags keeps pointers to the fields
  return *flags;
}

FlagGroup LanguageGroup() {
  LanguageFlags& f = language_flags();
  return {
      "text",
      "Text",
      {{"text", &f.text,
        "Learns from this text, or from files of tokens (.bin, .idx, .npy); a pattern may name several; "
        "empty means synthetic tokens.",
        kAnyValue, kCommon},
       {"context", &f.context, "Sets how many tokens a sequence has.", RangeOf(1, 1 << 20), kCommon | kKept},
       {"weight_decay", &f.weight_decay, "Sets the weight decay of AdamW.", RangeOf(0, 1e30), kKept},
       {"sequence_parallel", &f.sequence_parallel,
        "Cuts sequences over mesh axis tp between matrix products, which saves memory."},
       {"context_parallel", &f.context_parallel,
        "Cuts sequences over mesh axis cp; attention gathers keys and values."},
       {"ulysses", &f.ulysses, "Cuts sequences over mesh axis sp; attention exchanges sequences for heads."},
       {"sample_tokens", &f.sample_tokens, "Writes a sample of this many tokens at the end; 0 writes none.",
        RangeOf(0, 1e9), kCommon},
       {"temperature", &f.temperature,
        "Sets the temperature of the sample; 0 takes the most likely token each time.", RangeOf(0, 1e30)},
       {"prompt", &f.prompt, "Begins the sample with this text."}}};
}

void CheckLanguageFlags() {
  CheckTrainingFlags();
  CheckHuggingFaceFlags();
}

void RequireSequenceAxes(const Mesh& mesh) {
  for (const auto& [on, flag, axis] :
       {std::tuple{language_flags().context_parallel, "context_parallel", "cp"},
        {language_flags().ulysses, "ulysses", "sp"}})
    if (on && training_flags().auto_mesh > 0)
      Fail("--", flag, " cuts sequences over mesh axis ", axis,
           ", and --auto_mesh=", training_flags().auto_mesh,
           " finds extents of dp, tp and pp alone; leave one of the two out");
    else if (on && mesh.FindAxes(axis).empty())
      Fail("--", flag, " cuts sequences over mesh axis ", axis, ", which the mesh ", mesh.str(),
           " lacks; give it in --mesh, for example ", mesh.kind(), ":", axis, "=2");
}

std::string SequenceAxes(bool between_products) {
  std::string axes;
  for (const auto& [cuts, axis] : {std::pair{language_flags().context_parallel, "cp"},
                                   {language_flags().ulysses, "sp"},
                                   {between_products, "tp"}})
    if (cuts) axes += Cat(axes.empty() ? "" : "*", axis);
  return axes;
}

std::string SequenceAxes() { return SequenceAxes(language_flags().sequence_parallel); }

std::string HeadsAxis() { return language_flags().ulysses ? "sp" : ""; }

void FitLoadedModel(int64_t positions, int64_t tokens, int64_t vocabulary) {
  if (!IsGiven("context") && language_flags().context > positions) language_flags().context = positions;
  if (language_flags().context > positions)
    Fail("--context=", language_flags().context, ": the model of --load_hf=", hugging_face_flags().load_hf,
         " has ", positions, " positions");
  if (vocabulary > tokens)
    Fail("--text=", language_flags().text, " has a vocabulary of ", vocabulary,
         ", but the model of --load_hf=", hugging_face_flags().load_hf, " has ", tokens);
}

std::string DealtAxis(const Mesh& mesh, bool drops) {
  return language_flags().context_parallel && !drops && mesh.kind() == "cpu" ? "cp" : "";
}

Annotation TokensCut(const Mesh& mesh) {
  Annotation cut = CutBatch(mesh);
  if (const std::string axes = SequenceAxes(false); !axes.empty()) cut.push_back({axes, S(1)});
  return cut;
}

std::optional<int64_t> LogitsTile(const std::string& said) {
  if (said == "auto") return {};
  int64_t tile = -1;
  const auto [end, error] = std::from_chars(said.data(), said.data() + said.size(), tile);
  if (error != std::errc() || end != said.data() + said.size() || tile < 0 || tile > kMostLogitRows)
    Fail("--logits_tile=", said, ": must be auto, or a number of tokens from 0 to ", kMostLogitRows);
  return tile;
}

TrainOptions LanguageTrainOptions() {
  TrainOptions options = TrainOptionsOfFlags();
  options.parallel.context = SequenceAxes(false);
  // Else what each device keeps of keys and values grows with the axis. --recompute=auto weighs it by layer.
  if (language_flags().context_parallel && !options.gather_again && options.recompute != Recompute::kAuto)
    options.gather_again = true;
  return options;
}

AdamW LanguageOptimizer() {
  return {.lr = training_flags().lr,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .eps = 1e-8,
          .weight_decay = language_flags().weight_decay};
}

}  // namespace oneflow_like
