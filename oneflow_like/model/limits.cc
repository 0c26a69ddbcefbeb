#include "oneflow_like/model/limits.h"

#include <algorithm>

#include "core/system/cores.h"

namespace oneflow_like {

int MostThreads() { return std::max(1024, 4 * UsableCores()); }

void CheckModelNumbers(const std::string& prefix, const ModelOptions& options) {
  CheckRange(prefix + "threads", options.threads, 0, MostThreads());
  CheckRange(prefix + "kernel_threads", options.kernel_threads, 0, MostThreads());
  if (options.check_replicas < 0)
    Fail(prefix, "check_replicas is ", options.check_replicas, ", must be 0 (never) or a number of steps");
  if (options.memory_budget < 0)
    Fail(prefix, "memory_budget is ", options.memory_budget, ", must be 0 (no limit) or a number of bytes");
}

int RuntimeThreads(const ModelOptions& options, int devices, int cores) {
  const int threads = std::min(options.threads > 0 ? options.threads : cores, devices);
  if (int64_t{threads} * options.kernel_threads > MostThreads())
    Fail(threads, " runtime threads with ", options.kernel_threads, " kernel threads each are ",
         int64_t{threads} * options.kernel_threads, " threads, at most ", MostThreads(),
         " are started; lower --threads or --kernel_threads");
  return std::max(1, threads);
}

void CheckProcesses(int processes, const std::string& mesh, const std::string& chosen_by) {
  if (mesh.empty()) return;
  const Mesh parsed = Mesh::Parse(mesh);
  if (parsed.size() % processes != 0)
    Fail(chosen_by.empty() ? "mesh " + parsed.str() : chosen_by, " has ", parsed.size(), " devices, which ",
         processes, " processes cannot share equally");
}

}  // namespace oneflow_like
