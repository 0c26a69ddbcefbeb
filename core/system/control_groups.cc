#include "core/system/control_groups.h"

#include <sys/stat.h>

#include <fstream>
#include <set>
#include <sstream>

#include "core/error.h"

namespace oneflow_like {
namespace {

// A hierarchy of control groups: where it is mounted, and the group that this process is in below that.
struct Hierarchy {
  bool version2 = false;
  std::string mount, group;
};

// The part of `path` below `top`; a path outside it (as seen from a container) is taken as the top itself.
std::string Below(const std::string& top, const std::string& path) {
  if (top == "/" || top.empty()) return path.find("/..") == std::string::npos ? path : "/";
  if (path == top) return "/";
  return path.rfind(top + "/", 0) == 0 ? path.substr(top.size()) : "/";
}

std::vector<Hierarchy> HierarchiesWith(const std::string& root, const std::string& controller) {
  const std::string wanted = "," + controller + ",";
  std::string path1, path2;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,memory:/a" and "0::/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",,") path2 = line.substr(second + 1);
    if (controllers.find(wanted) != std::string::npos) path1 = line.substr(second + 1);
  }
  std::vector<Hierarchy> all;
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line;
       std::getline(mounts, line);) {  // "35 31 0:32 /top /mount options - type source options"
    std::istringstream words(line);
    std::string skip, top, mount, type, options;
    words >> skip >> skip >> skip >> top >> mount;
    while (words >> skip && skip != "-") {
    }
    words >> type >> skip >> options;
    const bool controls = ("," + options + ",").find(wanted) != std::string::npos;
    if (type == "cgroup2" && !path2.empty()) all.push_back({true, mount, Below(top, path2)});
    if (type == "cgroup" && controls && !path1.empty()) all.push_back({false, mount, Below(top, path1)});
  }
  return all;
}

}  // namespace

std::vector<ControlGroup> GroupsAround(const std::string& root, const std::string& controller) {
  std::vector<ControlGroup> all;
  std::set<std::string> seen;
  for (const Hierarchy& hierarchy : HierarchiesWith(root, controller)) {
    std::string group = hierarchy.group == "/" ? "" : hierarchy.group;
    for (;; group.resize(group.rfind('/'))) {
      if (seen.insert(hierarchy.mount + group).second)
        all.push_back({hierarchy.mount + group, hierarchy.version2});
      if (group.empty() || group.rfind('/') == std::string::npos) break;
    }
  }
  return all;
}

std::string KeyOfFile(const std::string& path) {
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0) return path;
  return Cat(path, ":", file.st_dev, ":", file.st_ino);
}

}  // namespace oneflow_like
