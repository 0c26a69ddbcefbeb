#include "oneflow_like/launch/copies.h"

#include <gflags/gflags.h>

#include <algorithm>

#include "actor/net/launch/local_launcher.h"
#include "core/system/file_check.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/job/elastic.h"
#include "oneflow_like/launch/launcher_flags.h"
#include "oneflow_like/model/limits.h"

DECLARE_string(log_dir);  // of glog

namespace oneflow_like {
namespace {

// Returns the file of what process k prints under --processes with --log_dir.
std::string LogOfProcess(int k) { return Cat(FLAGS_log_dir, "/process", k, ".log"); }

// Appends to `argv`, where the last of equal flags counts, what `shape` says.
std::vector<std::string> WithShape(std::vector<std::string> argv, const JobShape& shape) {
  argv.push_back("--mesh=" + shape.mesh);
  argv.push_back(Cat("--processes=", shape.processes));
  if (shape.micro_batches > 0) argv.push_back(Cat("--micro_batches=", shape.micro_batches));
  return argv;
}

}  // namespace

void CheckLogs(const std::vector<std::string>& logs) {
  std::vector<NamedFile> named, written;
  std::vector<gflags::CommandLineFlagInfo> flags;
  gflags::GetAllFlags(&flags);
  for (const auto& flag : flags) {
    const std::string& value = flag.current_value;
    if (flag.type != "string" || value.empty()) continue;
    std::vector<std::string> files = {value};
    try {
      files = FilesOf(value);
    } catch (const Error&) {  // no file
    }
    for (const std::string& file : files) named.push_back({Cat("--", flag.name, "=", value), file});
  }
  for (const std::string& log : logs) written.push_back({Cat("the log ", log), log});
  RequireDistinct(named, written);
}

int RunCopies(const ProcessIdentity& identity, const std::vector<std::string>& argv, const std::string& mesh,
              const ProgramFlags& program) {
  if (!identity.launcher.empty())
    Fail(launcher_flags().processes > 1 ? Cat("--processes=", launcher_flags().processes)
                                        : Cat("--restarts=", launcher_flags().restarts),
         " starts processes, but ", identity.launcher, " has started this one as one of ", identity.processes,
         "; use one of the two");
  CheckProcesses(launcher_flags().processes, mesh, program.chosen_mesh_devices > 0 ? program.chosen_by : "");
  LocalJob local;
  local.processes = launcher_flags().processes;
  local.argv = argv;  // a copy knows by its environment that it is one
  local.grace = launcher_flags().peer_timeout;
  local.log_dir = FLAGS_log_dir;
  local.restarts = launcher_flags().restarts;
  if (!launcher_flags().elastic.empty()) {
    const JobShape whole = {mesh, launcher_flags().processes, program.micro_batches};
    CheckElastic(whole, launcher_flags().elastic);
    if (program.local)
      Fail("--elastic=", launcher_flags().elastic,
           " needs checkpoints that all processes can read, and --local keeps parts "
           "of them apart");
    local.shrink = [=, left = launcher_flags().processes, batch = program.batch](int lost,
                                                                                 LocalJob* job) mutable {
      left -= lost;
      const JobShape shape = Shrink(whole, launcher_flags().elastic, left, batch);
      job->processes = shape.processes;
      job->argv = WithShape(argv, shape);
      return Cat(" on ", shape.mesh, ", processes ", shape.processes);
    };
  }
  std::vector<std::string> logs;
  for (int k = 0; k < launcher_flags().processes && !FLAGS_log_dir.empty(); ++k)
    logs.push_back(LogOfProcess(k));
  CheckLogs(logs);
  return RunLocalJob(local);
}

int CalibrateByTwo(const ProcessIdentity& identity, std::vector<std::string> argv) {
  launcher_flags().processes = std::max(2, launcher_flags().processes);
  argv.push_back(Cat("--processes=", launcher_flags().processes));
  return RunCopies(identity, argv, "", {});
}

}  // namespace oneflow_like
