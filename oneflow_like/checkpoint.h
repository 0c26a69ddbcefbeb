// Checkpoints: what a run has learnt, kept in files. A checkpoint is a folder <folder>/step-<number>,
// complete or not there, of safetensors files and an index. It holds every variable (weights, state of
// trainings, scales of losses), the number of the next step of each session, the seed, and the program's own
// small values.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "oneflow_like/model.h"

namespace oneflow_like {

struct SaveOptions {
  std::map<std::string, std::string> state;  // the program's own, in UTF-8: {"epoch", "3"}
  std::string training = "train";            // whose next step names the checkpoint
  int keep = 0;                              // so many of the newest stay in the folder; 0: all
  // For hosts without a common file system: each keeps what its ranks hold, in a folder of that path of its
  // own. Such a checkpoint is loaded by processes that find what they need on their own host.
  bool local = false;
};

class Saving;

// A checkpoint that is being written. Copyable.
class SaveHandle {
 public:
  SaveHandle(std::shared_ptr<ModelImpl> model, std::shared_ptr<Saving> saving)
      : model_(std::move(model)), saving_(std::move(saving)) {}
  const std::string& path() const;
  bool Done() const;  // whether this process has done its part
  // Until the checkpoint is complete; returns its path. Throws Error, on all processes, when it could not be
  // written; what was complete before is left as it is then. In a job all processes call it in the same
  // order.
  std::string Wait() const;

 private:
  std::shared_ptr<ModelImpl> model_;
  std::shared_ptr<Saving> saving_;
};

// Begins to write <folder>/step-<next step of the training>: the state after all steps launched so far,
// though they and later ones go on meanwhile (on devices that are not the host's, the next step waits until
// their memory has been read). Takes no memory for copies. Each process writes what its ranks hold, what
// several hold once; nothing is whole anywhere. In a job all processes call it in the same order, and share
// the folder. Throws Error, on all processes, when the checkpoint is there already, when there is no room for
// it, for what made the save before fail, which it waits for (unless its own Wait has told that), and while
// another program saves in that folder. A checkpoint that nobody has waited for when the model goes may stay
// incomplete, and is then no checkpoint.
SaveHandle Save(Model& model, const std::string& folder, const SaveOptions& options = {});

struct LoadOptions {
  bool weights_only = false;  // neither state of trainings nor numbers of steps
  // Variables that either side lacks are left alone; otherwise they are an Error that names them.
  bool partial = false;
  // Regular expressions (ECMAScript), and what they become, one after the other, in each name of the
  // checkpoint before it is compared with the model's: {"(^|/)encoder/", "$1bert/"} (with the state of
  // trainings, "train:adam_m/encoder/w"; {"^encoder/", "bert/"} is enough for weights_only).
  std::vector<std::pair<std::string, std::string>> rename;
};

struct Loaded {
  std::string path;
  std::vector<std::string>
      left_alone;  // variables of the model that LoadOptions::partial let the checkpoint lack
  std::map<std::string, int64_t> steps;
  std::map<std::string, std::string> state;
};

// Reads a checkpoint, or the newest complete one of a folder, into a model on any mesh with any number of
// processes; each process reads what its ranks hold. A training that goes on makes its session first, so that
// the model knows its state. Throws Error naming all variables that are missing, unknown or of another shape
// or type, and the file when it is damaged.
Loaded Load(Model& model, const std::string& path, const LoadOptions& options = {});

class VariableSource;  // oneflow_like/checkpoint/source.h

// The same from anything that has weights: a safetensors file, a folder of Hugging Face's, either under other
// names or types. All processes open one of their own.
void LoadWeights(Model& model, VariableSource& source, LoadOptions options = {});

// What Load would read: the checkpoint itself, or the newest complete one of a folder; "" when there is none
// yet, or no such folder. Throws Error for what is neither.
std::string NewestCheckpoint(const std::string& path);

// Complete checkpoints below a folder, oldest first; none when it is not there.
std::vector<std::string> Checkpoints(const std::string& folder);

}  // namespace oneflow_like
