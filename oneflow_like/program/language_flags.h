// Flags of programs that train language models, beside those of training_flags.h (--help says what they
// mean), and what they ask for.
#pragma once

#include <gflags/gflags_declare.h>

#include <cstdint>
#include <string>

#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/training_flags.h"

DECLARE_int64(context);
DECLARE_string(text);
DECLARE_int64(sample_tokens);
DECLARE_double(temperature);
DECLARE_string(prompt);
DECLARE_bool(ulysses);

namespace oneflow_like {

// Throws Error for what is out of range or contradicts itself; takes the slash off the end of folders.
void CheckLanguageFlags();
// The mesh axis that cuts sequences; empty: none.
std::string SequenceAxis();
// With --load_hf, of a model of so many positions and tokens: makes the default of --context fit. Throws
// Error when --context, or the vocabulary of the text (0: none), is larger.
void FitLoadedModel(int64_t positions, int64_t tokens, int64_t vocabulary);
// The mesh axis over which sequences are dealt (nn::DealtSequence): that of --context_parallel, but not where
// training drops anything at random, whose losses would not be those of one device, nor on GPUs, whose
// kernels do not skip keys by their positions. Empty: none.
std::string DealtAxis(const Mesh& mesh, bool drops);
// How tokens[batch s] come: their batch over dp, and sequences that another axis than that of products cuts.
Annotation TokensCut();
TrainOptions LanguageTrainOptions();
AdamW LanguageOptimizer();

}  // namespace oneflow_like
