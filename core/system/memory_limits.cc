#include "core/system/memory_limits.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <tuple>

#include "core/system/control_groups.h"

namespace oneflow_like {
namespace {

// "max", what version 1 gives for no limit, and anything unexpected: none.
std::optional<int64_t> Number(const std::string& text) {
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  constexpr int64_t kNoLimit = int64_t{1} << 62;
  if (error != std::errc() || end == text.data() || number < 0 || number >= kNoLimit) return std::nullopt;
  return number;
}

std::optional<int64_t> NumberIn(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return Number(word);
}

// Of lines "name: 12 kB" or "name 12": the number of a name, 0 if there is none.
int64_t Entry(const std::string& path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string first, second;
    words >> first >> second;
    if (first == name) return Number(second).value_or(0);
  }
  return 0;
}

int64_t Kilobytes(const std::string& path, const std::string& name) {
  const int64_t kilobytes = Entry(path, name);
  return kilobytes < (int64_t{1} << 52) ? kilobytes * 1024 : 0;
}

// Of one group. What it holds of files is given back when memory is short.
void AddGroup(const std::string& root, const std::string& folder, bool version2,
              std::vector<MemoryLimit>* limits) {
  const std::vector<std::string> names = version2 ? std::vector<std::string>{"memory.max", "memory.high"}
                                                  : std::vector<std::string>{"memory.limit_in_bytes"};
  std::optional<int64_t> used;
  for (const std::string& name : names) {
    const std::optional<int64_t> bytes = NumberIn(root + folder + "/" + name);
    if (!bytes) continue;
    if (!used) {
      used = NumberIn(root + folder + (version2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
      for (const char* files : {"inactive_file", "active_file"})
        *used -= Entry(root + folder + "/memory.stat", version2 ? files : std::string("total_") + files);
      used = std::max<int64_t>(0, *used);
    }
    limits->push_back(
        {.source = folder + "/" + name, .bytes = *bytes, .left = std::max<int64_t>(0, *bytes - *used)});
  }
}

// Address space and data segments of this process: both count what is taken, touched or not.
void AddProcessLimits(const std::string& root, std::vector<MemoryLimit>* limits) {
  std::ifstream in(root + "/proc/self/limits");
  for (std::string line; std::getline(in, line);) {
    for (const auto& [name, source, used] :
         {std::tuple<std::string, const char*, const char*>{"Max address space", kAddressSpace, "VmSize:"},
          std::tuple<std::string, const char*, const char*>{"Max data size", "ulimit -d", "VmData:"}}) {
      if (line.rfind(name, 0) != 0) continue;
      std::istringstream words(line.substr(name.size()));
      std::string soft;
      words >> soft;
      if (const std::optional<int64_t> bytes = Number(soft))
        limits->push_back(
            {.source = source,
             .shared = false,
             .bytes = *bytes,
             .left = std::max<int64_t>(0, *bytes - Kilobytes(root + "/proc/self/status", used))});
    }
  }
}

}  // namespace

std::vector<MemoryLimit> ReadMemoryLimits(const std::string& root) {
  std::vector<MemoryLimit> limits;
  const std::string meminfo = root + "/proc/meminfo";
  if (const int64_t total = Kilobytes(meminfo, "MemTotal:"); total > 0) {
    const int64_t available = Kilobytes(meminfo, "MemAvailable:");
    limits.push_back({.source = "the machine",
                      .bytes = total,
                      .left = available > 0 ? std::min(available, total) : total});
  }
  // Each group bounds all that is inside it.
  for (const ControlGroup& group : GroupsAround(root, "memory"))
    AddGroup(root, group.folder, group.version2, &limits);
  AddProcessLimits(root, &limits);
  return limits;
}

}  // namespace oneflow_like
