#include "oneflow_like/checkpoint/team.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "actor/net/talk/job.h"
#include "oneflow_like/checkpoint/safetensors.h"
#include "oneflow_like/checkpoint/step_folders.h"
#include "oneflow_like/job/together.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

// A file by which processes find out who sees the same folder. One that is left is removed as what is left of
// saves.
std::string ProbeOf(int process) { return ProbeFile(RandomToken(), process); }

void MakeProbe(const std::string& path) {
  const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
  if (fd < 0) Fail(path, ": it cannot be made: ", std::strerror(errno));
  close(fd);
}

std::vector<int> NumbersIn(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream in(text);
  for (int number; in >> number;) numbers.push_back(number);
  return numbers;
}

}  // namespace

Team TeamOf(Job* job, const std::string& folder) {
  auto make_folder = [&] {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) Fail(folder, ": it cannot be made: ", error.message());
  };
  Team team;
  if (!job) {
    make_folder();
    return team;
  }
  team.me = job->process();
  const std::string mine = ProbeOf(team.me);
  std::vector<std::string> seen;
  try {
    // Each name says where it was made; when all are there, each process looks which it sees.
    const std::vector<std::string> names = Together(job, "folder of checkpoints is made", [&] {
      make_folder();
      MakeProbe(folder + "/" + mine);
      return mine;
    });
    seen = Together(job, "folder of checkpoints is seen", [&] {
      std::string numbers;
      std::error_code error;
      for (size_t p = 0; p < names.size(); ++p)
        if (fs::exists(folder + "/" + names[p], error)) numbers += Cat(p, " ");
      return numbers;
    });
  } catch (const Error&) {
    unlink((folder + "/" + mine).c_str());
    throw;
  }
  unlink((folder + "/" + mine).c_str());
  team.processes = NumbersIn(seen[team.me]);
  team.everyone = static_cast<int>(team.processes.size()) == job->processes();
  for (size_t p = 0; p < seen.size(); ++p)
    for (int q : NumbersIn(seen[p]))
      if (seen[q] != seen[p])
        Fail(folder, ": process ", p, " sees what process ", q, " has put there, but not all that process ",
             q, " sees: the file system does not show all processes the same");
  return team;
}

SaveFolder::SaveFolder(Job* job, std::string given, bool is_local)
    : folder(std::move(given)), local(is_local), team(TeamOf(job, folder)) {
  if (!is_local && job) {
    // The same on all processes: of the first that does not see process 0's.
    const std::vector<std::string> leaders =
        Together(job, "folder of checkpoints is one", [&] { return Cat(team.processes[0]); });
    for (size_t p = 0; p < leaders.size(); ++p)
      if (leaders[p] != leaders[0])
        Fail(folder, ": process ", p,
             " does not see the folder of that name that process 0 has made; share the ",
             "folder of checkpoints between all hosts, or let each keep its own (SaveOptions::local, "
             "--local)");
  }
  Together(job, "folder of checkpoints is free", [&] {
    if (team.leads())
      lock = std::make_unique<FolderLock>(
          folder, ".saving",
          "another program saves checkpoints in this folder; give each run one of its own");
    return "";
  });
}

SaveFolder::~SaveFolder() = default;

}  // namespace oneflow_like
