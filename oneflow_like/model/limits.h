// Allowed ranges of numbers, for flags and for users of the library: a number outside is refused in one
// sentence before anything is started or allocated.
#pragma once

#include <cstdint>
#include <string>

#include "core/error.h"
#include "oneflow_like/model.h"

namespace oneflow_like {

inline constexpr int kMostProcessesHere = 256;  // most that --processes starts
inline constexpr int kMostRestarts = 1'000'000;
inline constexpr int kMostStepsInFlight = 1024;
inline constexpr int64_t kMostAveragedFrom = 1 << 24;  // averages count their updates in fp32
// Devices that plans are made for: a plan takes memory for each pair of a device and a member of its groups
// (0.6 GB for 16,384 along one axis), and estimates of messages between processors, which a topology file
// asks for, take time for each pair of members.
inline constexpr int kMostDevices = 1 << 16, kMostAlongAxis = 1 << 14, kMostEstimatedAlongAxis = 1 << 12;
inline constexpr double kShortestTimeout = 0.1, kLongestTimeout = 1e6;  // seconds

// Threads of a process, runtime threads times threads of a kernel: 1024, or four for each core if that is
// more.
int MostThreads();
inline constexpr int kMostDataThreads = 1024;

// Throws Error unless least <= value <= most; NaN is refused. `name` is the user's name for it: "--layers".
template <typename Number>
void CheckRange(const std::string& name, Number value, Number least, Number most) {
  if (value < least) Fail(name, " is ", value, ", must be at least ", least);
  if (!(value <= most)) Fail(name, " is ", value, ", must be at most ", most);
}

// Checks the numbers of ModelOptions; messages put `prefix` before their names: "--" or "ModelOptions::".
void CheckModelNumbers(const std::string& prefix, const ModelOptions& options);
// The number of runtime threads of a process with `devices` devices, as requested (0: `cores`), but at most
// one per device, because more would have nothing to do. Throws Error when all its kernels' threads are more
// than MostThreads().
int RuntimeThreads(const ModelOptions& options, int devices, int cores);
// Throws Error when the processes cannot share `mesh` equally. `mesh` is the text of the program or the user;
// empty: not known yet. `chosen_by`: the flag that chooses a mesh, of which `mesh` has the size alone; empty:
// there is none.
void CheckProcesses(int processes, const std::string& mesh, const std::string& chosen_by);

}  // namespace oneflow_like
