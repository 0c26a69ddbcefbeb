// Control groups (cgroups of version 1 and 2) that this process is in.
#pragma once

#include <string>
#include <vector>

namespace oneflow_like {

// A group, where its files are: "/sys/fs/cgroup/job", and whether they are those of version 2.
struct ControlGroup {
  std::string folder;
  bool version2 = false;
};

// The groups of this process whose files a controller ("memory", "cpu") may have: of each hierarchy the one
// that the process is in, then those around it, out to where the hierarchy is mounted. `root` is prepended to
// /proc: "" for this machine, for tests a folder with copies of its files. Thread-safe.
std::vector<ControlGroup> GroupsAround(const std::string& root, const std::string& controller);

// A text that is equal for processes that see the same file, whatever they call its folder: path, device and
// number. Without such a file the path alone.
std::string KeyOfFile(const std::string& path);

}  // namespace oneflow_like
