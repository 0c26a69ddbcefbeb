// Whether the hosts can hold a session, asked before its first block is allocated.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/memory_limits.h"
#include "oneflow_like/session_impl.h"

namespace oneflow_like {

// `plans` of the ranks hosted here. Throws Error, the same on all processes of a job, when what the session
// still needs is more than the tightest limit has left for all the processes that share it: it names the
// limit, the processes, both numbers and the largest consumers. With a job all processes call it.
void RequireHostMemory(const Session::Impl& session, const std::vector<plan::Plan>& plans);

// The part that is arithmetic. What one process tells the others of itself.
struct MemoryOfProcess {
  std::string host;  // equal for processes of one host
  int64_t needed = 0, held = 0;
  std::vector<std::pair<std::string, MemoryLimit>> limits;  // each with what is equal for all who share it
};
struct ShortMemory {
  std::vector<int> processes;  // that share the limit; empty: there is enough
  MemoryLimit limit;
  int64_t needed = 0, left = 0;  // of all of them
};
// The first limit that is too tight.
ShortMemory FindShortMemory(const std::vector<MemoryOfProcess>& processes);

}  // namespace oneflow_like
