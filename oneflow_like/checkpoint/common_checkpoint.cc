#include "oneflow_like/checkpoint/common_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>

#include "actor/net/talk/job.h"
#include "oneflow_like/checkpoint.h"
#include "oneflow_like/checkpoint/reader.h"
#include "oneflow_like/checkpoint/step_folders.h"
#include "oneflow_like/checkpoint/team.h"
#include "oneflow_like/job/together.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

// What one process sees of a path.
struct SeenFolder {
  bool checkpoint = false;          // it is one
  std::vector<std::string> whole;   // names of checkpoints in it, oldest first
  std::set<std::string> under_way;  // of those that a save was cut off in
};

bool IsCheckpoint(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::path(path) / CheckpointIndex::kFile, error);
}

// A line a name.
std::string LookAt(const std::string& path) {
  std::error_code error;
  if (IsCheckpoint(path)) return "checkpoint\n";
  if (fs::exists(path, error) && !fs::is_directory(path, error))
    Fail(path, ": it is neither a checkpoint nor a folder of them");
  std::string text;
  for (const std::string& checkpoint : Checkpoints(path))
    text += Cat("whole ", fs::path(checkpoint).filename().string(), '\n');
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (const std::optional<int64_t> step = StepOfPartial(entry.path().filename().string()))
      text += Cat("under_way ", StepFolder(*step), '\n');
  }
  return text;
}

SeenFolder SeenOf(const std::string& text) {
  SeenFolder seen;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(line.find(' ') + 1);
    if (line == "checkpoint") seen.checkpoint = true;
    if (line.rfind("whole ", 0) == 0) seen.whole.push_back(name);
    if (line.rfind("under_way ", 0) == 0) seen.under_way.insert(name);
  }
  return seen;
}

std::string WithHost(const Job& job, int process) {
  const std::string& host = job.peers()[process].host;
  return Cat("process ", process, host.empty() ? "" : Cat(" on ", host));
}

// Names in any of the folders, newest first.
std::vector<std::string> NewestFirst(const std::vector<SeenFolder>& all) {
  auto number = [](const std::string& name) { return StepOfFolder(name).value_or(-1); };
  std::set<std::string> names;
  for (const SeenFolder& seen : all) names.insert(seen.whole.begin(), seen.whole.end());
  std::vector<std::string> sorted(names.begin(), names.end());
  std::sort(sorted.begin(), sorted.end(), [&](const std::string& a, const std::string& b) {
    return std::pair(number(a), a) > std::pair(number(b), b);
  });
  return sorted;
}

// The first process that lacks it; -1: none does.
int FirstWithout(const std::vector<SeenFolder>& all, const std::string& name) {
  for (size_t p = 0; p < all.size(); ++p)
    if (std::find(all[p].whole.begin(), all[p].whole.end(), name) == all[p].whole.end())
      return static_cast<int>(p);
  return -1;
}

// Whether processes lack it, all of which were cut off in saving it.
bool WasUnderWay(const std::vector<SeenFolder>& all, const std::string& name) {
  return FirstWithout(all, name) >= 0 && std::all_of(all.begin(), all.end(), [&](const SeenFolder& seen) {
           return std::find(seen.whole.begin(), seen.whole.end(), name) != seen.whole.end() ||
                  seen.under_way.count(name) > 0;
         });
}

// What processes see of one checkpoint: "+" and what tells it from others, or "-" and what is wrong with it.
std::vector<std::string> LookTogether(Job* job, const std::string& checkpoint) {
  return Together(job, "checkpoint is whole", [&]() -> std::string {
    try {
      CheckpointReader reader(checkpoint);
      if (reader.index().local) reader.RequireFiles();
      return "+" + reader.index().Identity();
    } catch (const Error& error) {
      return Cat("-", error.what());
    }
  });
}

std::string DifferenceOf(const Job& job, const std::string& checkpoint,
                         const std::vector<std::string>& seen) {
  for (size_t p = 0; p < seen.size(); ++p)
    if (seen[p][0] == '-')
      return Cat(checkpoint, " is not whole for ", WithHost(job, static_cast<int>(p)), ": ",
                 seen[p].substr(1));
  for (size_t p = 1; p < seen.size(); ++p)
    if (seen[p] != seen[0])
      return Cat(checkpoint, " of ", WithHost(job, static_cast<int>(p)), " is of another save than that of ",
                 WithHost(job, 0));
  return "";
}

}  // namespace

std::string WhyNotCommon(Job* job, const std::string& checkpoint) {
  return DifferenceOf(*job, checkpoint, LookTogether(job, checkpoint));
}

CommonCheckpoint NewestInCommon(Job* job, const std::string& path) {
  std::vector<SeenFolder> all;
  for (const std::string& text : Together(job, "checkpoint is found", [&] { return LookAt(path); }))
    all.push_back(SeenOf(text));
  const auto is_one = [](const SeenFolder& seen) { return seen.checkpoint; };
  if (const auto one = std::find_if(all.begin(), all.end(), is_one); one != all.end()) {
    const auto other = std::find_if_not(all.begin(), all.end(), is_one);
    if (other == all.end()) return {path, {}};
    Fail(path, ": it is a checkpoint for ", WithHost(*job, static_cast<int>(one - all.begin())),
         ", but not for ", WithHost(*job, static_cast<int>(other - all.begin())));
  }
  CommonCheckpoint common;
  const std::vector<std::string> names = NewestFirst(all);
  for (const std::string& name : names) {
    const std::string checkpoint = path + "/" + name;
    if (!job) return {checkpoint, {}};
    std::string wrong;
    if (const int without = FirstWithout(all, name); without >= 0) {
      wrong = Cat(checkpoint, " is not there for ", WithHost(*job, without));
    } else {
      const std::vector<std::string> seen = LookTogether(job, checkpoint);
      wrong = DifferenceOf(*job, checkpoint, seen);
      // Damaged for all, it is what a single process would take, and be told.
      const bool damaged =
          std::all_of(seen.begin(), seen.end(), [](const auto& text) { return text[0] == '-'; });
      if (wrong.empty() || damaged) {
        common.path = checkpoint;
        return common;
      }
    }
    common.passed_over.push_back(wrong);
  }
  if (!std::all_of(names.begin(), names.end(),
                   [&](const std::string& name) { return WasUnderWay(all, name); }))
    Fail(path, ": no checkpoint in it is whole for all processes: ", common.passed_over[0],
         "; bring back what that process had, or remove the folder on all hosts to begin anew");
  return common;
}

}  // namespace oneflow_like
