// The flags of programs that train language models, in addition to those of training_flags.h, and what they
// ask for. What each flag does: LanguageGroup().
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "oneflow_like/program/training_flags.h"

namespace oneflow_like {

// Values of the flags of these names. A program sets its own defaults here before it makes its Launcher.
struct LanguageFlags {
  int64_t context = 128, sample_tokens = 300;
  std::string text, prompt = "The hacker";
  double weight_decay = 0.1, temperature = 0.8;
  bool sequence_parallel = false, context_parallel = false, ulysses = false;
};
LanguageFlags& language_flags();  // of this process

FlagGroup LanguageGroup();  // "text"

// Throws Error if flags contradict one another; takes the slash off the end of folders.
void CheckLanguageFlags();
// Throws Error if a flag cuts sequences over a mesh axis that the mesh lacks.
void RequireSequenceAxes(const Mesh& mesh);
// Returns the mesh axes that cut sequences, such as "cp*sp*tp"; empty if none does. `between_products`:
// whether tp is one of them, between matrix products; by default as --sequence_parallel says.
std::string SequenceAxes(bool between_products);
std::string SequenceAxes();
// Returns the axis that attention exchanges for heads: "sp" with --ulysses, else empty.
std::string HeadsAxis();
// For a model of --load_hf with this many positions and tokens: lowers the default of --context to fit.
// Throws Error if a given --context, or the vocabulary of the text (0: no text), is larger than the model's.
void FitLoadedModel(int64_t positions, int64_t tokens, int64_t vocabulary);
// Returns the mesh axis over which sequences are dealt (nn::DealtSequence): that of --context_parallel,
// otherwise empty. It is empty, too, if training drops values at random, because losses would differ from
// those of one device, and on GPUs, whose kernels do not skip keys by their positions.
std::string DealtAxis(const Mesh& mesh, bool drops);
// Returns the annotation of tokens [batch, s]: the batch is cut over dp, sequences over cp and sp as flags
// say.
Annotation TokensCut(const Mesh& mesh);
// SessionOptions::logits_tile of a --logits_tile, "auto" or a number of tokens. Throws Error.
std::optional<int64_t> LogitsTile(const std::string& said);
TrainOptions LanguageTrainOptions();
AdamW LanguageOptimizer();

}  // namespace oneflow_like
