// What this build is: what the processes of a job compare, and what --version prints.
#pragma once

#include <string>

namespace oneflow_like {

struct BuildId {
  std::string version;  // of the project
  std::string commit;   // empty: not built in a repository
  std::string sources;  // a hash of the libraries' sources, committed or not
  // Of libraries that cannot be asked when the program runs. Empty: unknown, or (CUDA) built without.
  std::string glog, gflags, cuda;
};
// Brought up to date by every build (build_id.cmake).
BuildId ThisBuild();

// What is equal in builds that understand one another: "0.2.0 (sources ba9876543210)". The commit is not part
// of it: one that only changes a README makes no other program.
std::string Comparable(const BuildId& build);

// Version, commit, sources, a line for each library that this program runs with, and the level of its CPU
// kernels.
std::string VersionText(const BuildId& build);

}  // namespace oneflow_like
