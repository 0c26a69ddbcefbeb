// The actor runtime: executes the plans of the ranks this process hosts by passing messages between actors
// over rings of slots. It knows plans and kernels; nothing of operators, signatures or passes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actor/profile.h"
#include "core/device.h"
#include "core/dims.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/feeds.h"
#include "core/host_tensor.h"
#include "core/kernel.h"
#include "core/plan.pb.h"

namespace oneflow_like {

// Where work runs. Threads for work; SeededExecutor picks any legal next event, for tests.
class Executor;
// `threads` threads, each with `kernel_threads` threads for ParallelFor. REQUIRES: both >= 1.
std::unique_ptr<Executor> MakeThreadExecutor(int threads, int kernel_threads);
// One thread, the caller's: events fire inside Drive (called by Handle::Wait), in an order drawn from `seed`.
std::unique_ptr<Executor> MakeSeededExecutor(uint64_t seed);

// Told of what steps do to variables, before they do it.
class WriteWatch {
 public:
  virtual ~WriteWatch() = default;
  // Any worker: an act that writes the variable comes next. May be called again for the same one. On an
  // asynchronous device what was enqueued before may not be done yet.
  virtual void BeforeWrite(int rank, const std::string& variable) = 0;
};

// The memory of the ranks of one process: variables by name, and arenas, which all plans of the store share,
// one after another.
class Store {
 public:
  // `ranks` are the ranks hosted here, on `devices` (same length; owned by the store).
  Store(std::vector<int> ranks, std::vector<std::unique_ptr<Device>> devices);
  ~Store();

  const std::vector<int>& ranks() const;
  Device* device(int rank) const;  // REQUIRES: hosted here
  // Makes the plan's variables that are not there yet (running their initialisers) and grows arenas to what
  // the plan needs. Throws Error when memory is short, or a variable is there with another
  // type, shape or box. REQUIRES: no step in flight.
  void Prepare(const plan::Plan& plan, const KernelRegistry& registry);
  // Local piece of a variable, nullptr when this rank has none.
  void* Variable(int rank, const std::string& name) const;
  struct VariableInfo {
    std::string name;
    DType dtype;
    Dims global;
    Box box;
    int64_t bytes;
  };
  std::vector<VariableInfo> Variables(int rank) const;
  const VariableInfo* Find(int rank, const std::string& name) const;  // nullptr when this rank has none
  char* Arena(int rank, const std::string& memory = "device") const;  // nullptr when there is none
  int64_t ArenaBytes(int rank) const;                                 // of all
  int64_t PersistentBytes(int rank) const;
  // Steps launched from now on tell `watch` of their writes; those under way tell whom they told before.
  // nullptr: nobody.
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
  Status Wait()
      const;  // until every act of the step has ended; the first error, with the actor and the user's line
  bool Done() const;
  int64_t step() const;
  // REQUIRES: Wait() gave OK, and the plan has that output. The whole tensor, assembled from the ranks.
  const HostTensor& Get(const std::string& output) const;

  struct State;
  explicit StepHandle(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

class Peers;    // actor/peers.h
class Backend;  // core/backend.h

struct RuntimeOptions {
  int steps_in_flight = 2;
  // Number of the next step, raised by each launch. Runtimes that are given the same one share its steps.
  // Outlives the runtime; nullptr: the runtime counts its own, from 0. REQUIRES: touched by the thread that
  // launches alone.
  int64_t* next_step = nullptr;
  // Steps at the start that no profile counts, as libraries warm up in them.
  int64_t warm_up_steps = 0;
  // Slices (acts and kernels) each thread keeps for WriteTrace, 40 bytes each; the first ones. 0: no tracing.
  int64_t trace_records = 0;
  // A kernel whose results are not finite although all it read is fails its step. REQUIRES: the host's
  // devices.
  bool check_finite = false;
  // To the same runtime of the other processes, when there are several; nullptr: alone. Outlives the runtime.
  Peers* peers = nullptr;
  // Of the store's asynchronous devices; nullptr: their collectives do without its library. Outlives the
  // runtime.
  Backend* backend = nullptr;
};

class TraceFile;  // actor/trace.h

// What happened when, for tests. Times are seconds since the runtime was made.
struct ActRecord {
  int rank = 0, actor = 0, stream = 0;
  int64_t step = 0;
  int act = 0;
  double start = 0, end = 0;
};

// An act of a rank hosted here, as it was traced; times in nanoseconds of the steady clock.
struct TracedAct {
  int rank = 0, actor = 0, act = 0;
  int64_t step = 0, start = 0, end = 0;
};

// Loads the plans (one for each rank of the store) and runs steps of them. All methods from one thread at a
// time. Several runtimes may share a store and an executor; their steps do not overlap: Launch waits for the
// others'.
//
// With peers the other ranks of the plans are in other processes, which make the same runtimes and launch the
// same steps in the same order. Every process gets every output whole. The first error of any process ends
// the steps under way of all, with its message.
class Runtime {
 public:
  // Throws Error when a kernel is missing. `executor` and `store` outlive the runtime.
  Runtime(std::vector<plan::Plan> plans, const KernelRegistry& registry, Store* store, Executor* executor,
          const RuntimeOptions& options);
  ~Runtime();  // Close()

  // Starts one step with a copy of its feeds; waits while steps_in_flight are under way. Each input is fed
  // whole, or in pieces that hold what ranks here read of it. Throws Error for a feed that is missing,
  // unknown, or of another shape or type, naming both, and for pieces that WrongPieces refuses; nothing has
  // started then.
  StepHandle Launch(const Feeds& feeds, const FeedPieces& pieces = {});
  // The boxes of each input that ranks here read: this much of a step's feeds is held.
  FeedNeeds Needs() const;
  // Ends what is in flight (kernels not yet started are skipped, handles say "closed") and gives back
  // everything. May be called at any moment, also after an error; idempotent. With peers, which need our part
  // of the steps they wait for, steps in flight first come to their end unless something has failed.
  void Close();

  // Any thread, until the runtime is destroyed. For people: what the acts under way wait for, a line each, by
  // rank, in the words of the user's operators and lines. Takes at most `patience` seconds, the more of it
  // when a worker is in a kernel, which is then named. Empty when no step is under way.
  std::vector<std::string> WhoWaits(double patience) const;
  // The same threads: acts that have ended so far. While there are no more nothing moves.
  int64_t ActsEnded() const;

  int64_t next_step() const;
  void SetNextStep(int64_t step);
  // Most slots of each buffer taken at once so far, by rank and buffer id.
  std::map<std::pair<int, int>, int> PeakSlots() const;
  // Records acts from now on (costs an allocation per act; off by default).
  void Record(bool on);
  std::vector<ActRecord> TakeRecords();
  // Where the time of all steps since the last call (or the start) went. Waits for the steps in flight; after
  // Close, of the steps before it. On asynchronous devices a kernel's time is what the host spent on it.
  StepProfile TakeProfile();
  // Adds what was kept to the file; returns how many slices were not kept for want of room. REQUIRES: closed.
  int64_t WriteTrace(TraceFile* file) const;
  // The acts that were kept for WriteTrace, each rank's by their start; `*missing`: as WriteTrace returns.
  // REQUIRES: closed.
  std::vector<TracedAct> TracedActs(int64_t* missing) const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace oneflow_like
