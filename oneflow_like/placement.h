// Which of its host's devices a rank has, and what it takes of memory beside its plan.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "oneflow_like/model_impl.h"

namespace oneflow_like {

// The job's processes on the host of one of them, and which of them that one is.
struct ProcessesOfHost {
  int count = 1, me = 0;
};
ProcessesOfHost ProcessesBeside(const Job* job, int process);

// Which of `given` devices of its host a rank has: one of its own where there are enough, else several ranks
// share one as virtual devices, neighbours together.
int64_t DeviceOf(const ModelImpl& model, int rank, int64_t given);

// Of a rank on a device that is not the host. Where devices have not been opened and are not named, as if
// there were one for each rank.
struct MemoryBesides {
  int64_t device = 0;  // what groups pack in
  int64_t host = 0;    // what the device copies to and from: inputs, outputs, groups that meet on the host
  std::vector<std::pair<std::string, int64_t>> consumers;  // of `device`
};
MemoryBesides MemoryBesidesPlan(const ModelImpl& model, const plan::Plan& plan);

}  // namespace oneflow_like
