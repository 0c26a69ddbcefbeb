// The common part of programs that train language models: data, training, checkpoints, held-out loss, a
// sample of text. A program provides its model and the flags of its size.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "oneflow_like/checkpoint/huggingface.h"
#include "oneflow_like/generation/generator.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/huggingface_config.h"

namespace oneflow_like {

struct LanguageModel {
  // tokens i32[batch, s], targets i32[batch, s] -> cross entropy of each token, f32[batch, s], 0 where the
  // target is negative. Weights have the same names in every graph. `positions` i32[s] are given if tokens do
  // not lie in order. Values may be dropped at random only if `training`.
  std::function<Tensor(Scope scope, Tensor tokens, Tensor targets, Tensor positions, bool training)> losses;
  bool drops = false;          // whether values are dropped in training
  bool cuts_sequences = true;  // whether sequences may be cut over tp between matrix products
  NextLogits next;             // the same model with a cache, for samples; empty: the program writes none
  int64_t vocabulary = 0;      // number of different tokens
  std::optional<int64_t> logits_tile = {};  // SessionOptions::logits_tile of training and held-out loss
  // The loss of training; empty: the mean of `losses`.
  std::function<Tensor(Scope scope, Tensor tokens, Tensor targets)> loss = {};
  std::string config;                       // text of its config.json, which checkpoints keep; empty: none
  ModelFormat huggingface = {};             // format of --load_hf and --save_hf
  std::vector<WeightPattern> weights = {};  // ModelOptions::weights
};

// Returns the model that the program's flags ask for. `vocabulary`: number of different tokens in the data; 0
// in the first call, which comes before any data is opened. `sequence`: mesh axes that cut sequences
// (SequenceAxes()); empty: none. `theirs`: config.json of the weights that the run begins with, or nullptr.
// Throws Error if these contradict one another.
using MakeLanguageModel = std::function<LanguageModel(
    int64_t vocabulary, const Mesh& mesh, const std::string& sequence, const HuggingFaceConfig* theirs)>;

// Trains the model: the body of Launcher::Main. Returns the exit code. The mesh may have `more_axes` in
// addition to dp, tp and pp.
int TrainLanguageModel(const Launcher& launcher, const MakeLanguageModel& make,
                       const std::vector<std::string>& more_axes = {"cp", "sp"});

// The body of main(): ProgramMain with TrainLanguageModel. Flags are those of `groups`, LanguageGroup(),
// HuggingFaceGroup() and TrainingGroups().
int LanguageMain(int argc, char** argv, const std::string& usage, std::vector<FlagGroup> groups,
                 const MakeLanguageModel& make, const std::vector<std::string>& more_axes = {"cp", "sp"});

}  // namespace oneflow_like
