// The flags that every program with a Launcher has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oneflow_like/calibrate.h"
#include "oneflow_like/flags.h"

namespace oneflow_like {

// Values of the flags of these names. What each does: LauncherGroups().
struct LauncherFlags {
  std::string mesh, devices;
  uint64_t seed = 1;
  int32_t threads = 0, kernel_threads = 0, data_threads = 0;
  std::string memory_budget = "0";

  int32_t processes = 1, restarts = 0;
  std::string elastic;
  bool check_feeds = false;
  double start_timeout = 60, peer_timeout = 10;
  std::string network;
  bool shared_memory = true;

  bool dry_run = false, explain = false;
  std::string report, dump_dir, trace;
  double stall_seconds = 0;
  bool check_nan = false, tune = true, tf32 = false;
  int64_t check_replicas = 0;
  std::string config, out, calibrate;
  int32_t calibrate_models = kMostModels;
};
LauncherFlags& launcher_flags();  // of this process
int64_t MemoryBudget();           // bytes of --memory_budget

inline constexpr char kGroupOfLogs[] = "inspection";  // whose part of --help has glog's --log_dir
// "mesh", "processes", "inspection".
std::vector<FlagGroup> LauncherGroups();

}  // namespace oneflow_like
