// What the programs that train language models do: data, training, checkpoints, held-out loss, a sample of
// writing. A program adds its model and the flags of its size to those of language_flags.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "oneflow_like/checkpoint/huggingface.h"
#include "oneflow_like/generation/generator.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/huggingface_config.h"

namespace oneflow_like {

struct LanguageModel {
  // tokens i32[batch, s] -> logits f32[batch, s, vocabulary]; the same variables in every graph. Positions
  // i32[s] are those of the tokens, where these do not lie in order. Only where `training` may it drop
  // anything.
  std::function<Tensor(Scope scope, Tensor tokens, Tensor positions, bool training)> logits;
  bool drops = false;          // whether it does, in training
  bool cuts_sequences = true;  // whether sequences may be cut over tp between products
  NextLogits next;             // the same model, piece by piece; may be empty: then it writes no samples
  int64_t vocabulary = 0;
  // The loss of training, where that is more than the mean cross entropy of the logits; may be empty.
  std::function<Tensor(Scope scope, Tensor tokens, Tensor targets)> loss = {};
  std::string config;                       // its config.json, which checkpoints keep; empty: none
  ModelFormat huggingface = {};             // for --load_hf and --save_hf
  std::vector<WeightPattern> weights = {};  // ModelOptions::weights
};

// The model that the program's flags ask for, for data of so many different tokens (0: of as few as it
// likes), on a mesh of axes dp, tp and pp, with sequences cut over mesh axis `sequence` (SequenceAxis();
// empty: whole). `theirs` is the config.json of what the run begins with, or nullptr. Throws Error where they
// contradict each other. The first call comes before any data is opened, with 0 tokens.
using MakeLanguageModel = std::function<LanguageModel(
    int64_t vocabulary, const Mesh& mesh, const std::string& sequence, const HuggingFaceConfig* theirs)>;

// The body of main(): returns the exit code. The mesh may have `more_axes` beside dp, tp and pp.
int TrainLanguageModel(const Launcher& launcher, const MakeLanguageModel& make,
                       const std::vector<std::string>& more_axes = {"cp", "sp"});

}  // namespace oneflow_like
