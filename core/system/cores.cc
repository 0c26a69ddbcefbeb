#include "core/system/cores.h"

#include <omp.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "core/system/control_groups.h"
#include "core/system/text_lines.h"

namespace oneflow_like {
namespace {

// "0-3,8" are five; 0 for what is no list.
int CountOfList(const std::string& list) {
  constexpr int64_t kMost = 1 << 20;
  int64_t count = 0;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream text(range);
    int64_t first = -1, last = -1;
    char dash = 0;
    text >> first;
    last = first;
    if (text >> dash && (dash != '-' || !(text >> last))) return 0;
    if (first < 0 || last < first || last >= kMost) return 0;
    count += last - first + 1;
  }
  return static_cast<int>(std::min(count, kMost));
}

// Of /proc/self/status.
std::string AllowedList(const std::string& root) {
  std::ifstream in(root + "/proc/self/status");
  const std::string name = "Cpus_allowed_list:";
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(name, 0) != 0) continue;
    std::string list;
    std::istringstream(line.substr(name.size())) >> list;
    return list;
  }
  return "";
}

// Quota and period in microseconds; "max" and -1 are none.
void AddQuota(const std::string& path, double quota, double period, std::vector<CoreLimit>* limits) {
  if (quota > 0 && period > 0 && quota / period < 1 << 20)
    limits->push_back({path, KeyOfFile(path), quota / period});
}

void AddGroupsOfCores(const std::string& root, std::vector<CoreLimit>* limits) {
  for (const ControlGroup& group : GroupsAround(root, "cpu")) {
    double quota = 0, period = 0;
    if (group.version2) {
      std::istringstream(FirstLine(root + group.folder + "/cpu.max")) >> quota >> period;
    } else {
      std::istringstream(FirstLine(root + group.folder + "/cpu.cfs_quota_us")) >> quota;
      std::istringstream(FirstLine(root + group.folder + "/cpu.cfs_period_us")) >> period;
    }
    AddQuota(root + group.folder + (group.version2 ? "/cpu.max" : "/cpu.cfs_quota_us"), quota, period,
             limits);
  }
}

int RoundedCores(double cores) { return std::max(1, static_cast<int>(cores + 1e-6)); }

}  // namespace

std::vector<CoreLimit> ReadCoreLimits(const std::string& root) {
  int machine = CountOfList(FirstLine(root + "/sys/devices/system/cpu/online"));
  if (machine == 0) machine = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<CoreLimit> limits = {{"the machine", "machine", static_cast<double>(machine)}};
  const std::string list = AllowedList(root);
  int allowed = CountOfList(list);
  // OpenMP's library may have bound the first thread to one core, but remembers which it could choose from.
  if (root.empty() && allowed > 0) allowed = std::max(allowed, omp_get_num_procs());
  if (allowed > 0 && allowed < machine)
    limits.push_back({"the affinity", Cat("cores:", list), 1.0 * allowed});
  AddGroupsOfCores(root, &limits);
  for (CoreLimit& limit : limits)
    std::replace_if(
        limit.key.begin(), limit.key.end(), [](unsigned char c) { return c <= ' '; }, '_');
  return limits;
}

int UsableCores() {
  static const int cores = [] {
    double least = std::numeric_limits<double>::max();
    for (const CoreLimit& limit : ReadCoreLimits()) least = std::min(least, limit.cores);
    return RoundedCores(least);
  }();
  return cores;
}

std::string ToText(const std::vector<CoreLimit>& limits) {
  std::string text;
  for (const CoreLimit& limit : limits) text += Cat(limit.cores, ' ', limit.key, '\n');
  return text;
}

int ShareOfCores(const std::vector<std::string>& texts, int which) {
  std::map<std::string, int> sharers;
  std::map<std::string, double> mine;
  for (int p = 0; p < static_cast<int>(texts.size()); ++p) {
    std::istringstream in(texts[p]);
    double cores = 0;
    for (std::string key; in >> cores >> key;) {
      ++sharers[key];
      if (p == which) mine[key] = cores;
    }
  }
  double least = std::numeric_limits<double>::max();
  for (const auto& [key, cores] : mine) least = std::min(least, cores / sharers.at(key));
  return mine.empty() ? 0 : RoundedCores(least);
}

}  // namespace oneflow_like
