// Checks that the hosts have the memory for a session, before its first block is allocated.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/memory_limits.h"
#include "oneflow_like/session_impl.h"

namespace oneflow_like {

// `plans` are those of the ranks hosted here. Throws Error, the same on all processes of a job, if the
// session still needs more than the tightest limit leaves for all the processes that share it; the error
// names the limit, the processes, both numbers and the largest consumers. Collective in a job.
void RequireHostMemory(const Session::Impl& session, const std::vector<plan::Plan>& plans);

// Throws Error in place of a failure while the session's plans were loaded: `reason`, what to do, and what
// the ranks hosted here hold.
[[noreturn]] void FailOutOfMemory(const Session::Impl& session, const std::string& reason);

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
