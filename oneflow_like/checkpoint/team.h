// The processes that write one folder of checkpoints.
#pragma once

#include <vector>

#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

// The processes that see one folder of checkpoints: all, or (SaveOptions::local) those of this host.
struct Team {
  Team(const ModelImpl& model, bool local);
  int me = 0;
  std::vector<int> processes = {0};  // ascending; the first makes folders and indexes
  bool leads() const { return me == processes[0]; }
};

}  // namespace oneflow_like
