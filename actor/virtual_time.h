// A machine on paper: the real runtime loads real plans and its actors act, but kernels and messages only
// take time, on a clock that jumps from one event to the next. Predictions are therefore of the plans that
// are executed: their orders, credits and waits, which nothing models a second time.
//
// Times are whole picoseconds, and of events at one moment the one first caused comes first, so every machine
// and every repetition gives the same numbers. All of it runs on the caller's thread, inside
// StepHandle::Wait().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "actor/collective.h"
#include "actor/executor.h"
#include "actor/peers.h"
#include "actor/runtime.h"
#include "actor/trace.h"
#include "core/device/device.h"
#include "core/plan.pb.h"

namespace oneflow_like {

inline constexpr double kPicosecondsPerSecond = 1e12;
// Where the clock stops, after 26 days: whatever would be later happens at this moment. Two times that are at
// most this can be added.
inline constexpr int64_t kLastPicosecond = int64_t{1} << 61;
// Rounded, and at most kLastPicosecond; REQUIRES: seconds are not negative.
int64_t Picoseconds(double seconds);

// The time and links that one act of a collective takes of the machine for one of its members.
struct VirtualLoad {
  int64_t latency = 0;  // before the first byte moves; without links, the member's own work on its thread
  struct Busy {
    int link = 0;      // any number; a link is shared by all that name it
    int64_t time = 0;  // that it would be busy if nobody else used it
  };
  std::vector<Busy> links;  // used together: the slowest decides
  // Without links, beside `latency`: the own work while all cores are busy (below `latency`: as long as
  // that), and what a message takes of a thread that waits for it. Each act has two, one after the other.
  int64_t crowded = 0, message = 0;
};

// Seconds that work takes of a thread of the host: while other cores are idle, and while all of them work.
struct ThreadTime {
  double alone = 0, crowded = 0;
  ThreadTime(double both) : alone(both), crowded(both) {}  // NOLINT: a number is both
  ThreadTime(double alone, double crowded) : alone(alone), crowded(crowded) {}
};

struct VirtualOptions {
  // Of the host: kernels run on them, a rank's on one, and so do the members' parts of collectives that use
  // no link. 0: each rank is an asynchronous device, whose streams work beside each other.
  int threads = 0;
  // With threads: of each hosted rank, in their order, the number of its thread. Empty: number i of them is
  // on thread i mod threads.
  std::vector<int> thread_of = {};
  // With threads: the cores that these share evenly, and how many of them one kernel uses. 0: each thread has
  // what it uses to itself.
  int cores = 0, kernel_cores = 1;
  // Whether each kernel is recorded; false: of an asynchronous device, those of an act between which no
  // credit goes may be recorded as one, which takes as long and is simulated in less.
  bool each_kernel = true;
  // The load of an act of a collective at its member on `rank`.
  std::function<VirtualLoad(const plan::Collective& collective, int rank)> load;
  // The hosted rank that stands for a rank: where ranks are alike, one of them acts for all. Empty: every
  // rank for itself.
  std::function<int(int rank)> stands_for;
  // Called of all that ends, when it does, in picoseconds: kernels, each of a collective from when all its
  // members have come, and acts of collectives (kernel -1). May be empty.
  std::function<void(const TraceRecord&)> record;
};

class VirtualMachine {
 public:
  explicit VirtualMachine(VirtualOptions options);
  ~VirtualMachine();

  // The plan as this machine runs it: with its actors, streams and credits, and kernels that take the given
  // time and touch nothing. It has neither inputs nor outputs.
  plan::Plan OnPaper(const plan::Plan& plan,
                     const std::function<ThreadTime(const plan::Actor&, const plan::Kernel&)>& time) const;

  // Devices, kernels, executor and peers for a Store and a Runtime of such plans, which the machine must
  // outlive.
  std::unique_ptr<Device> MakeDevice(int rank);
  const KernelRegistry& registry() const;
  Executor* executor();
  Peers* peers();

  int64_t now() const;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace oneflow_like
