// The common part of programs that train: they begin or resume a run, save checkpoints, report each step,
// stop when they are told to, and measure held-out data. A program provides its data, its model and the flags
// of its own; docs/your_own_program.md shows one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "oneflow_like/data/pipeline.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/training_flags.h"

namespace oneflow_like {

// The body of main(): makes the Launcher, with the flags of `groups` before those of training_flags.h, and
// runs `body`. Returns the exit code.
int ProgramMain(int argc, char** argv, const std::string& usage, const std::vector<FlagGroup>& groups,
                const std::function<int(const Launcher& launcher)>& body);

struct Program {
  std::string about;                            // the data and the model, for people
  std::shared_ptr<const SampleSource> samples;  // to learn from, with a field for each input
  // Data to measure at the end that comes from other files, which processes then compare at the start. May be
  // empty.
  std::shared_ptr<const SampleSource> held_out = {};
  std::string unit = "samples";              // of rates: "tokens"
  int64_t per_sample = 1;                    // units in a sample
  std::function<Tensor(Model& model)> loss;  // builds the model's own graph; inputs are of --batch samples
  Optimizer optimizer;
  ModelOptions model;
  TrainOptions train;
  std::map<std::string, std::string> state = {};  // texts of the program that checkpoints keep
  std::map<std::string, std::string> files = {};  // SaveOptions::files
  // Builds the loss with sequences cut over tp between matrix products, or not, whatever the flags say.
  // Several threads call it at a time. Empty: the program cannot cut sequences.
  std::function<Tensor(Model& model, bool sequence_parallel)> cut_loss = {};
  // Called if a plan chooses the mesh and whether sequences are cut, before `loss`: updates what the program
  // has made from --mesh and --sequence_parallel. May be empty.
  std::function<void(const Mesh& mesh, bool sequence_parallel)> chosen = {};
  // Called when a run begins and is not resumed, after --load: loads weights from elsewhere. May be empty.
  std::function<void(Model& model)> begin = {};
  // Called after the last step, with the trained weights: measures, and adds what it finds to `metrics`. May
  // be empty.
  std::function<void(Model& model, Metrics& metrics)> end = {};
};

// Creates a folder that the value of a flag names, and checks that it can be written. Does nothing in a dry
// run. Throws Error.
void RequireFolder(const Launcher& launcher, const std::string& flag, const std::string& value,
                   const std::string& folder);
// Does so for --save and --tensorboard.
void RequireFolders(const Launcher& launcher);

// Returns the checkpoint that the run resumes (--resume, --restarts), otherwise the one that it loads weights
// from
// (--load), otherwise an empty text. Throws Error if --resume cannot be read.
std::string BeginningOf(const Launcher& launcher);
// Returns whether the run is resumed.
bool GoesOn(const Launcher& launcher);
// Throws Error if that checkpoint is missing or broken. Call it before the first session is made: the error
// is then reported as a mistake in the command. TrainProgram calls it. Only one process reads, to spare a
// shared file system.
void RequireBeginning(const Launcher& launcher);

// Compiles the training and runs it to its end. Returns the exit code. Flags, files and folders have been
// checked. With --auto_mesh or --plan the mesh, and other choices of the program, are those of the plan.
int TrainProgram(const Launcher& launcher, const Mesh& mesh, const Program& program);

// Returns the shape of a batch of samples: --batch, then the extents of the field.
Dims BatchOf(const Dims& field);

// Runs `session`, whose inputs have --batch samples, once over `source` in order, at most --eval_batches
// times. `see` gets each result and the number of rows of its batch that are samples; the rows after them are
// 0, or the value that `fill` has for their field.
void ForEachHeldOut(const Launcher& launcher, Session& session, std::shared_ptr<const SampleSource> source,
                    const std::map<std::string, double>& fill,
                    const std::function<void(const StepResult& result, int64_t rows)>& see);

}  // namespace oneflow_like
