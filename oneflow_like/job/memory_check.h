// Checks that the hosts have the memory for a session, before its first block is allocated.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/system/memory_limits.h"
#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

// `plans` are those of the ranks hosted here, for a session of this name, and `more` those in which steps run
// again, in the same arenas. Throws Error, the same on all
// processes of a job, if the session still needs more than the tightest limit leaves for all the processes
// that share it; the error names the limit, the processes and both numbers, and ends with what `consumers`
// says of the first rank of the first of these processes. Collective in a job.
void RequireHostMemory(const ModelImpl& model, const std::string& session,
                       const std::vector<plan::Plan>& plans, const std::vector<plan::Plan>& more,
                       int steps_in_flight, const std::function<std::string(int rank)>& consumers);

// Throws Error in place of a failure while the session's plans were loaded: `reason`, what to do, and what
// `consumers` says of the first rank hosted here.
[[noreturn]] void FailOutOfMemory(const ModelImpl& model, const std::string& session,
                                  const std::string& reason,
                                  const std::function<std::string(int rank)>& consumers);

// The part that is arithmetic. Each process sends one of these to the others.
struct MemoryOfProcess {
  std::string host;  // equal for processes of one host
  int64_t needed = 0, held = 0;
  std::vector<std::pair<std::string, MemoryLimit>> limits;  // each with a key, equal for all sharers
};
struct ShortMemory {
  std::vector<int> processes;  // sharing the limit; empty: there is enough
  MemoryLimit limit;
  int64_t needed = 0, left = 0;  // of all of them
};
// The first limit that is too tight.
ShortMemory FindShortMemory(const std::vector<MemoryOfProcess>& processes);

}  // namespace oneflow_like
