// The actor runtime: executes the plans of the ranks this process hosts by passing messages between actors
// over rings of slots. It knows plans and kernels; nothing of operators, signatures or passes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actor/profile.h"
#include "core/boxes/feeds.h"
#include "core/device/device.h"
#include "core/device/kernel.h"
#include "core/dims.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/host_tensor.h"
#include "core/plan.pb.h"

namespace oneflow_like {

// Runs the work: a thread executor; tests have one that picks any legal next event.
class Executor;
// `threads` threads, each with `kernel_threads` threads for ParallelFor. REQUIRES: both >= 1.
std::unique_ptr<Executor> MakeThreadExecutor(int threads, int kernel_threads);

// Called before steps write variables.
class WriteWatch {
 public:
  virtual ~WriteWatch() = default;
  // Called on any worker before an act that writes the variable, possibly several times for one variable. On
  // an asynchronous device earlier work may not be done yet.
  virtual void BeforeWrite(int rank, const std::string& variable) = 0;
  // On an asynchronous device: what the act's stream waits for before it writes, in place of BeforeWrite.
  // nullptr: nothing of the kind.
  virtual const DeviceEvent* WritesAfter(int /*rank*/, const std::string& /*variable*/) { return nullptr; }
};

// The memory of the ranks of one process: variables by name, and arenas, which the plans of the store use one
// after another.
class Store {
 public:
  // `ranks` are the ranks hosted here, on `devices` (same length; owned by the store).
  Store(std::vector<int> ranks, std::vector<std::unique_ptr<Device>> devices);
  ~Store();

  const std::vector<int>& ranks() const;
  Device* device(int rank) const;  // REQUIRES: hosted here
  // Creates the plan's variables that do not exist yet (running their initialisers) and grows arenas to the
  // plan's size. A variable that the plan has on the host goes there. Throws Error when memory is short, or a
  // variable exists with another type, shape or box.
  // REQUIRES: no step in flight.
  void Prepare(const plan::Plan& plan, const KernelRegistry& registry);
  // Local piece of a variable, nullptr when this rank has none.
  void* Variable(int rank, const std::string& name) const;
  struct VariableInfo {
    std::string name;
    DType dtype;
    Dims global;
    Box box;
    int64_t bytes;
    bool on_host = false;  // in memory of Device::AllocateHost
  };
  std::vector<VariableInfo> Variables(int rank) const;
  const VariableInfo* Find(int rank, const std::string& name) const;  // nullptr when this rank has none
  char* Arena(int rank, const std::string& memory = "device") const;  // nullptr when there is none
  int64_t ArenaBytes(int rank, const std::string& memory = "device") const;
  int64_t PersistentBytes(int rank, const std::string& memory = "device") const;  // of variables
  // Steps launched from now on call `watch` before their writes; steps in flight keep their watch. nullptr:
  // none.
  void SetWatch(std::shared_ptr<WriteWatch> watch);

  struct Impl;
  Impl* impl() { return impl_.get(); }

 private:
  std::unique_ptr<Impl> impl_;
};

// One step in flight. Copyable; outlives its runtime (reading it then gives the error "closed").
class StepHandle {
 public:
  StepHandle() = default;
  Status Wait() const;  // waits until every act of the step has ended; returns the first error, with the
                        // actor and the user's line
  bool Done() const;
  int64_t step() const;
  // The whole tensor, assembled from the ranks. REQUIRES: Wait() returned OK, and the plan has that output.
  const HostTensor& Get(const std::string& output) const;

  struct State;
  explicit StepHandle(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  friend class Runtime;
  std::shared_ptr<State> state_;
};

class Peers;    // actor/peers.h
class Backend;  // core/device/backend.h

struct RuntimeOptions {
  int steps_in_flight = 2;
  // Number of the next step, incremented by each launch. Runtimes with the same pointer share its steps. Must
  // outlive the runtime; nullptr: the runtime counts its own, from 0. REQUIRES: only the launching thread
  // touches it.
  int64_t* next_step = nullptr;
  // Steps at the start that profiles do not count, because libraries warm up in them.
  int64_t warm_up_steps = 0;
  // Number of slices (acts and kernels), the first ones, that each thread keeps for WriteTrace, 40 bytes
  // each. 0: no tracing.
  int64_t trace_records = 0;
  // A kernel that computes non-finite results from finite operands fails its step. REQUIRES: devices of the
  // host.
  bool check_finite = false;
  // Connects to the same runtime in the other processes; nullptr: a single process. Must outlive the runtime.
  Peers* peers = nullptr;
  // The backend of the store's asynchronous devices; nullptr: their collectives do not use its library. Must
  // outlive the runtime.
  Backend* backend = nullptr;
  // Whether the backend's library has its ways of a piece of work timed (actor/library_choices.h).
  bool tune = true;
};

class TraceFile;  // actor/trace.h

// A record of an act, for tests. Times are seconds since the runtime was created.
struct ActRecord {
  int rank = 0, actor = 0, stream = 0;
  int64_t step = 0;
  int act = 0;
  double start = 0, end = 0;
};

// A traced act of a rank hosted here; times in nanoseconds of the steady clock.
struct TracedAct {
  int rank = 0, actor = 0, act = 0;
  int64_t step = 0, start = 0, end = 0;
};

// Loads the plans (one for each rank of the store) and runs steps of them. All methods from one thread at a
// time. Several runtimes may share a store and an executor; their steps do not overlap: Launch waits for the
// steps of the others.
//
// With peers the other ranks of the plans are in other processes, which create the same runtimes and launch
// the same steps in the same order. Every process gets every output whole. The first error of any process
// ends the steps under way of all, with its message.
class Runtime {
 public:
  // Throws Error when a kernel is missing. `executor` and `store` must outlive the runtime.
  Runtime(std::vector<plan::Plan> plans, const KernelRegistry& registry, Store* store, Executor* executor,
          const RuntimeOptions& options);
  ~Runtime();  // Close()

  // Starts one step with a copy of its feeds; waits while steps_in_flight steps are in flight. Each input is
  // fed whole, or in pieces that contain what ranks here read of it. Throws Error for a feed that is missing,
  // unknown, or of another shape or type, naming both, and for pieces that WrongPieces refuses; the step has
  // then not started.
  StepHandle Launch(const Feeds& feeds, const FeedPieces& pieces = {});
  // Returns the feeds of a step. They stay in memory until `steps_in_flight` more steps have been launched.
  // REQUIRES: fewer have been launched since.
  FeedPieces FeedsOf(const StepHandle& step) const;
  // The boxes of each input that ranks here read; only these are kept of a step's feeds.
  FeedNeeds Needs() const;
  // Cancels steps in flight (kernels not yet started are skipped, handles report "closed") and releases
  // everything. May be called at any moment, also after an error; idempotent. With peers, which need this
  // process's part of the steps that they wait for, steps in flight are completed first unless something has
  // failed.
  void Close();

  // Any thread, until the runtime is destroyed. Describes what the acts under way wait for, one line each, by
  // rank, with the user's operators and lines. Takes at most `patience` seconds, which it needs only when a
  // worker is in a kernel; the kernel is then named. Empty when no step is under way.
  std::vector<std::string> WhoWaits(double patience) const;
  // Any thread, until the runtime is destroyed: the number of acts that have ended so far. If it does not
  // change, nothing moves.
  int64_t ActsEnded() const;

  int64_t next_step() const;
  void SetNextStep(int64_t step);
  // Largest number of slots of each buffer in use at once so far, by rank and buffer id.
  std::map<std::pair<int, int>, int> PeakSlots() const;
  // Records acts from now on (costs an allocation per act; off by default).
  void Record(bool on);
  std::vector<ActRecord> TakeRecords();
  // Where the time of all steps since the last call (or the start) went. Waits for the steps in flight; after
  // Close, it covers the steps before. On asynchronous devices a kernel's time is the host's time for
  // enqueuing it.
  StepProfile TakeProfile();
  // Adds the kept slices to the file; returns how many slices did not fit in the buffers. REQUIRES: closed.
  int64_t WriteTrace(TraceFile* file) const;
  // The acts that were kept for WriteTrace, each rank's by their start; `*missing`: as WriteTrace returns.
  // REQUIRES: closed.
  std::vector<TracedAct> TracedActs(int64_t* missing) const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace oneflow_like
