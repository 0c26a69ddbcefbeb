#include "oneflow_like/launch/launcher_flags.h"

#include "oneflow_like/model/limits.h"

namespace oneflow_like {

LauncherFlags& launcher_flags() {
  static auto* flags = new LauncherFlags;  // gflags keeps pointers to the fields
  return *flags;
}

int64_t MemoryBudget() { return ParseBytes("memory_budget", launcher_flags().memory_budget); }

std::vector<FlagGroup> LauncherGroups() {
  LauncherFlags& f = launcher_flags();
  return {
      {"mesh",
       "Mesh and devices",
       {{"mesh", &f.mesh,
         "Names the kind of devices and the extents of mesh axes, for example cpu:dp=2,tp=2 or cuda:dp=8; "
         "empty means the program's default, and axes that are left out have extent 1.",
         kAnyValue, kCommon},
        {"devices", &f.devices, "Lists the GPUs of this host to use, for example 0,1; empty means all.",
         kAnyValue, kPerProcess},
        {"seed", &f.seed, "Seeds initial weights, dropout masks and the order of samples.", kAnyValue,
         kCommon | kKept},
        {"memory_budget", &f.memory_budget,
         "Refuses plans that need more than this many bytes on a device, for example 24GB; 0 sets no limit.",
         BytesUpTo(0x1p63), kCommon},
        {"tune", &f.tune,
         "Measures cuBLASLt's first algorithms for each matrix product once and uses the fastest (on GPUs); "
         "false uses its first."},
        {"tf32",
         &f.tf32,
         "Lets matrix products and convolutions in fp32 round their operands to TF32 (on GPUs), which is "
         "several times as fast.",
         {},
         kKept},
        {"threads", &f.threads,
         "Sets the number of runtime threads of a process; 0 means one per core, at most one per device.",
         kAnyValue, kPerProcess},
        {"kernel_threads", &f.kernel_threads,
         "Sets the number of threads of one kernel; 0 divides the cores among the runtime threads.",
         kAnyValue, kPerProcess},
        {"data_threads", &f.data_threads,
         "Sets the number of threads that read and decode data; 0 means the cores that kernels leave.",
         RangeOf(0, kMostDataThreads), kPerProcess}}},
      {"processes",
       "Several processes",
       {{"processes", &f.processes,
         "Starts this many copies of the program on this machine, which share the devices of the mesh.",
         RangeOf(1, kMostProcessesHere), kCommon | kPerProcess},
        {"restarts", &f.restarts,
         "Starts the processes again from --save, at most this many times, when one of them is lost.",
         RangeOf(0, kMostRestarts), kCommon},
        {"elastic", &f.elastic,
         "Names the mesh axis that becomes shorter by lost processes when --restarts starts the others "
         "again, for "
         "example dp; empty starts all again."},
        {"check_feeds", &f.check_feeds, "Compares in every step what the processes feed to the model."},
        {"start_timeout", &f.start_timeout,
         "Sets how many seconds processes wait for one another at the start.",
         RangeOf(kShortestTimeout, kLongestTimeout), kPerProcess},
        {"peer_timeout", &f.peer_timeout,
         "Sets after how many seconds a process that does not answer counts as lost.",
         RangeOf(kShortestTimeout, kLongestTimeout)},
        {"network", &f.network,
         "Lists the network devices that UCX may use, for example eth0; empty means any.", kAnyValue,
         kPerProcess},
        {"shared_memory", &f.shared_memory,
         "Sends messages between processes of one host through shared memory."}}},
      {kGroupOfLogs,
       "Looking inside",
       {{"dry_run", &f.dry_run,
         "Compiles the model, prints the memory, messages and estimated time of each rank, and runs nothing.",
         kAnyValue, kCommon},
        {"explain", &f.explain,
         "Prints why data is sent, with the line of the operator that needs it, and the work of each rank.",
         kAnyValue, kCommon},
        {"report", &f.report,
         "Writes an HTML page with memory over a step, the schedule, messages, the graph and times to this "
         "file.",
         kAnyValue, kCommon},
        {"trace", &f.trace,
         "Writes what each stream did when to this file, which ui.perfetto.dev and chrome://tracing show.",
         kAnyValue, kCommon},
        {"out", &f.out,
         "Keeps the flags, log, metrics and checkpoints of the run in this folder; the same command "
         "continues it.",
         kAnyValue, kCommon},
        {"config", &f.config,
         "Reads flags from this file, one --name=value per line; flags of the command line win.", kAnyValue,
         kCommon | kPerProcess},
        {"dump_dir", &f.dump_dir,
         "Writes the graph after each pass of the compiler, and the plans, to this folder."},
        {"stall_seconds", &f.stall_seconds,
         "Reports which part waits for what when nothing has moved for this many seconds; 0 never does.",
         kAnyValue, kPerProcess},
        {"check_nan", &f.check_nan, "Stops at the first operator whose result is not finite (on CPUs)."},
        {"check_replicas", &f.check_replicas,
         "Compares copies of weights bit for bit every N steps; 0 never does."},
        {"calibrate", &f.calibrate,
         "Measures this machine instead of running the program, and writes a file for --topology."},
        {"calibrate_models", &f.calibrate_models,
         "Sets how many models --calibrate trains; fewer take less time and give rougher numbers.",
         RangeOf(1, kMostModels)}}}};
}

}  // namespace oneflow_like
