// Checkpoints: what a run has learnt, kept in files. A checkpoint is a folder <folder>/step-<number>,
// complete or not there, of safetensors files and an index. It holds every variable (weights, state of
// trainings, scales of losses), the number of the next step of each session, the seed, and the program's own
// small values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "oneflow_like/model.h"

namespace oneflow_like {

struct SaveOptions {
  std::map<std::string, std::string> state;  // the program's own: {"epoch", "3"}
  std::string training = "train";            // whose next step names the checkpoint
  int keep = 0;                              // so many of the newest stay in the folder; 0: all
};

// Waits for steps under way, then writes <folder>/step-<next step of the training>. Each process writes what
// its ranks hold, what several hold once; nothing is whole in memory. In a job all processes call it in the
// same order, and share the folder. Throws Error, on all processes, when it cannot be written or is there
// already; what was complete before is left as it is. Returns the checkpoint's path.
std::string Save(Model& model, const std::string& folder, const SaveOptions& options = {});

struct LoadOptions {
  bool weights_only = false;  // neither state of trainings nor numbers of steps
  // Variables that either side lacks are left alone; otherwise they are an Error that names them.
  bool partial = false;
};

struct Loaded {
  std::string path;
  std::map<std::string, int64_t> steps;
  std::map<std::string, std::string> state;
};

// Reads a checkpoint, or the newest complete one of a folder, into a model on any mesh with any number of
// processes; each process reads what its ranks hold. A training that goes on makes its session first, so that
// the model knows its state. Throws Error naming all variables that are missing, unknown or of another shape
// or type, and the file when it is damaged.
Loaded Load(Model& model, const std::string& path, const LoadOptions& options = {});

// Complete checkpoints below a folder, oldest first; none when it is not there.
std::vector<std::string> Checkpoints(const std::string& folder);

}  // namespace oneflow_like
