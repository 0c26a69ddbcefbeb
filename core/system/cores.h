// The cores that this process may use: those of the machine, of its affinity, and the share that control
// groups (cgroups of version 1 and 2, with all enclosing groups) allow a container.
#pragma once

#include <string>
#include <vector>

namespace oneflow_like {

struct CoreLimit {
  std::string source;  // for people: "the machine", "the affinity", "/sys/fs/cgroup/job/cpu.max"
  std::string key;     // equal for processes of one host that share these cores; without white space
  double cores = 0;    // of a quota a part of one, too
};

// `root` is prepended to /proc and /sys: "" for this machine, for tests a folder with copies of these files.
// A file that is missing or has unexpected contents sets no limit. The first is the machine. Thread-safe.
std::vector<CoreLimit> ReadCoreLimits(const std::string& root = "");

// Cores of the tightest limit, read once: rounded down, since threads that use up a quota are all stopped
// together until its next period, but at least 1. Thread-safe.
int UsableCores();

// A limit a line, for other processes.
std::string ToText(const std::vector<CoreLimit>& limits);
// Cores for each of the processes that share them, of those whose limits `texts` are and who are all on one
// host: the share of the process whose text is `texts[which]`, at least 1. 0 when that text has no limit.
int ShareOfCores(const std::vector<std::string>& texts, int which);

}  // namespace oneflow_like
