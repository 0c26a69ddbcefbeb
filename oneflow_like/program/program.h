// The common part of programs that train: they begin or go on, save, report each step, stop when they
// are told to, and look at what is held out. A program gives its data and its model; flags are those of
// training_flags.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "oneflow_like/data/pipeline.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/training_flags.h"

namespace oneflow_like {

struct Program {
  std::string about;                            // the data and the model, for people
  std::shared_ptr<const SampleSource> samples;  // to learn from, with a field for each input
  // What is looked at in the end, where it comes from other files: processes compare it at the start, too.
  // May be empty.
  std::shared_ptr<const SampleSource> held_out = {};
  std::string unit = "samples";  // that rates count, and how many a sample has
  int64_t per_sample = 1;
  std::function<Tensor(Model& model)> loss;  // builds the model's own graph; inputs are of --batch samples
  Optimizer optimizer;
  ModelOptions model;
  TrainOptions train;
  std::map<std::string, std::string> state = {};  // beside what the loop keeps in checkpoints
  std::map<std::string, std::string> files = {};  // SaveOptions::files
  // The loss with sequences cut over tp between products, or not, whatever flags say; called by several
  // threads at once. Empty: the program cannot cut them.
  std::function<Tensor(Model& model, bool sequence_parallel)> cut_loss = {};
  // Called when a plan says what --mesh and --sequence_parallel would: what was made of them is made again.
  // May be empty.
  std::function<void(const Mesh& mesh, bool sequence_parallel)> chosen = {};
  // Weights from elsewhere, where the run begins and does not go on; after --load. May be empty.
  std::function<void(Model& model)> begin = {};
  // Follows a training that has made all its steps; what is measured goes to `metrics`. May be empty.
  std::function<void(Model& model, Metrics& metrics)> end = {};
};

// Makes a folder that gets something later, and tries whether it can be written; of a flag and its value.
// Does nothing in a dry run. Throws Error.
void RequireFolder(const Launcher& launcher, const std::string& flag, const std::string& value,
                   const std::string& folder);
// The same of those of --save and --tensorboard.
void RequireFolders(const Launcher& launcher);

// The checkpoint that the run goes on from (--resume, --restarts), else what it begins with (--load); empty:
// neither. Throws Error for a --resume that cannot be one.
std::string BeginningOf(const Launcher& launcher);
// Whether it is a checkpoint to go on from.
bool GoesOn(const Launcher& launcher);
// Throws Error where it is missing or broken, which is a mistake of the command as long as no session is
// made; TrainProgram calls it. One process looks, as thousands would be many for a file system that they
// share.
void RequireBeginning(const Launcher& launcher);

// From the compiled training to its end: returns the exit code. Flags, files and folders have been checked.
// With --auto_mesh the mesh is another one, and so is what else of the program is the search's choice.
int TrainProgram(const Launcher& launcher, const Mesh& mesh, const Program& program);

// --batch before the extents of a sample's field.
Dims BatchOf(const Dims& field);

// Runs `session`, whose inputs are of --batch samples, over `source` once and in its order, at most
// --eval_batches times. `see` is given each result and how many rows of its batch are samples; those behind
// them are 0, or as `fill` says for their field.
void ForEachHeldOut(const Launcher& launcher, Session& session, std::shared_ptr<const SampleSource> source,
                    const std::map<std::string, double>& fill,
                    const std::function<void(const StepResult& result, int64_t rows)>& see);

}  // namespace oneflow_like
