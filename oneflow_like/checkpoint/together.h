// Collective work of the processes of a job, with one outcome.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

constexpr const char* kStepPrefix = "step-";  // of the folders of checkpoints

// Collective: runs `work` on every process. If it throws on one, the error is thrown on all. Returns the
// results of all, by process.
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
