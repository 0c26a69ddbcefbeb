// The limits on this process's memory: the machine, its control groups (cgroups of version 1 and 2, with all
// enclosing groups) and the limits of a process (ulimit).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oneflow_like {

// The source of the limit on a process's address space, which counts what is mapped, used or not.
inline constexpr const char* kAddressSpace = "ulimit -v";

struct MemoryLimit {
  std::string source;  // for people: "the machine", "/sys/fs/cgroup/job/memory.max", "ulimit -v"
  bool shared =
      true;  // with other processes; false: it bounds this one alone, and `left` counts all that is mapped
  int64_t bytes = 0;  // in all
  int64_t left = 0;   // of them now; of a shared one, memory counts from when it is first touched
};

// `root` is prepended to /proc and /sys: "" for this machine, for tests a folder with copies of these files.
// A file that is missing or has unexpected contents sets no limit. Thread-safe.
std::vector<MemoryLimit> ReadMemoryLimits(const std::string& root = "");

}  // namespace oneflow_like
