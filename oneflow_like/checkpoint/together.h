// What the processes of a job do at one time, with one outcome.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "oneflow_like/model_impl.h"

namespace oneflow_like {

constexpr const char* kStepPrefix = "step-";  // of the folders of checkpoints

// Does `work` on every process, all of which call it, and throws on all what it throws on one. Gives what all
// return, by process.
std::vector<std::string> Together(const ModelImpl& model, const std::string& what,
                                  const std::function<std::string()>& work);

// The processes that see one folder of checkpoints: all, or (SaveOptions::local) those of this host.
struct Team {
  Team(const ModelImpl& model, bool local);
  int me = 0;
  std::vector<int> processes = {0};  // ascending; the first makes folders and indexes
  bool leads() const { return me == processes[0]; }
};

}  // namespace oneflow_like
