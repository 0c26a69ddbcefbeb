// Checkpoints: the state of a run in files. A checkpoint is a folder <folder>/step-<number> of safetensors
// files and an index; it is complete or does not exist. It holds every variable (weights, state of trainings,
// scales of losses), the number of the next step of each session, the seed, and the program's own small
// values.
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
  // Contents of small files for the checkpoint's folder, by name: a tokenizer's, for instance. A name may
  // have one folder in front: "templates/chat.jinja".
  std::map<std::string, std::string> files;
  std::string training = "train";  // its next step names the checkpoint
  // How many of the newest checkpoints stay in the folder; 0: all. What no save named so is not counted and
  // stays: copies under other names, links, and files that somebody put into a checkpoint.
  int keep = 0;
  // For hosts without a common file system: each saves what its ranks hold in its own folder of that path. To
  // load such a checkpoint, each process must find what it needs on its own host. Which processes share a
  // folder is found out by looking. A checkpoint that only some of the hosts have is replaced.
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
  // Waits until the checkpoint is complete and returns its path. Throws Error, on all processes, when it
  // could not be written; earlier checkpoints are then unchanged. Collective in a job.
  std::string Wait() const;

 private:
  std::shared_ptr<ModelImpl> model_;
  std::shared_ptr<Saving> saving_;
};

// Begins to write <folder>/step-<next step of the training>: the state after all steps launched so far. These
// and later steps continue meanwhile (with devices other than the host, the next step waits until their
// memory has been read). Needs no memory for copies. Each process writes what its ranks hold, each shared
// piece once; no process ever holds a whole variable. Collective in a job; the processes share the folder.
// Waits for the previous save. Throws Error, on all processes, if the checkpoint exists already, if there is
// no room for it, if the previous save failed (unless its Wait has reported that), and while another program
// saves in that folder. If the model is destroyed before Wait was called, the checkpoint may stay incomplete,
// and is then not one.
SaveHandle Save(Model& model, const std::string& folder, const SaveOptions& options = {});

struct LoadOptions {
  bool weights_only = false;  // without state of trainings and numbers of steps
  // "average": weights only, and in place of each the average that the checkpoint's training kept of it
  // (TrainOptions::average), where it has one; of several trainings "<training>:average" says which.
  std::string weights = {};
  // Ignores variables that only one side has; otherwise they are an Error that names them, unless they are
  // all averages of a training (TrainOptions::average): a resumed training may begin to keep averages, which
  // then start from the weights, or drop them.
  bool partial = false;
  // Regular expressions (ECMAScript) and their replacements, applied one after the other to each name of the
  // checkpoint before it is compared with the model's: {"(^|/)encoder/", "$1bert/"} (with the state of
  // trainings, "train:adam_m/encoder/w"; {"^encoder/", "bert/"} is enough for weights_only).
  std::vector<std::pair<std::string, std::string>> rename;
};

struct Loaded {
  std::string path;
  std::vector<std::string> left_alone;  // variables of the model that the checkpoint could lack
  std::vector<std::string> dropped;     // averages of weights that it has, and the model does not keep
  std::map<std::string, int64_t> steps;
  std::map<std::string, std::string> state;
  // In a job, later checkpoints of the folder, which not all processes have: each as a sentence.
  std::vector<std::string> passed_over;
};

// Reads a checkpoint, or the newest complete one of a folder, into a model on any mesh with any number of
// processes; each process reads what its ranks hold. To resume a training, create its session first, so that
// the model knows its state. Throws Error naming all variables that are missing, unknown or of another shape
// or type, and the file when it is damaged. Collective in a job, where the newest is that which all processes
// have whole, of one save; Error when what they have under its name differs.
Loaded Load(Model& model, const std::string& path, const LoadOptions& options = {});

class VariableSource;  // oneflow_like/checkpoint/source.h

// The same from any source of weights: a safetensors file or a Hugging Face folder, also with other names or
// types. Each process opens a source of its own.
void LoadWeights(Model& model, VariableSource& source, LoadOptions options = {});

// The checkpoint that Load would read: `path` itself, or the newest complete one in the folder `path`; ""
// when there is none yet, or no such folder. Throws Error if `path` is neither.
std::string NewestCheckpoint(const std::string& path);
// The same in the job of `model`, where it is collective: the newest that all processes have; see
// Loaded::passed_over. Throws Error where processes have checkpoints, but none in common.
std::string NewestCheckpoint(const Model& model, const std::string& path,
                             std::vector<std::string>* passed_over = nullptr);

// Opens what Load would read, without a model: throws its Error, naming the file, for what is missing or has
// a broken index or header. Damaged numbers show when they are read.
void RequireCheckpoint(const std::string& path);

// Complete checkpoints in a folder under the names that Save gave them, oldest first; none when it does not
// exist.
std::vector<std::string> Checkpoints(const std::string& folder);

}  // namespace oneflow_like
