// Identity of this build: compared by the processes of a job, and printed by --version.
#pragma once

#include <string>

namespace oneflow_like {

struct BuildId {
  std::string version;  // of the project
  std::string commit;   // empty: not built in a repository
  std::string sources;  // a hash of the libraries' sources, committed or not
  // Versions of libraries that cannot be queried at run time. Empty: unknown, or (CUDA) built without.
  std::string glog, gflags, cuda;
};
// Updated by every build (build_id.cmake).
BuildId ThisBuild();

// Equal for compatible builds: "0.2.0 (sources ba9876543210)". The commit is not part of it, because a commit
// that only changes a README does not change the program.
std::string Comparable(const BuildId& build);

// Version, commit, sources, a line for each library that this program uses, and the level of its CPU kernels.
std::string VersionText(const BuildId& build);

}  // namespace oneflow_like
