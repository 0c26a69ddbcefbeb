// Actors, streams and shards: they execute the acts of a plan. Everything in a shard belongs to one worker;
// nothing here is locked except members marked "shared".
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "actor/clock.h"
#include "actor/collective.h"
#include "actor/executor.h"
#include "actor/profile.h"
#include "actor/runtime.h"
#include "actor/trace.h"
#include "core/boxes/copy_box.h"
#include "core/device/device.h"
#include "core/device/kernel.h"

namespace oneflow_like {

class Actor;
class PeerSteps;
class Stream;
class Shard;
struct WaitingAct;  // actor/who_waits.h

// One end of an edge.
struct Port {
  Actor* peer = nullptr;
  int peer_port = 0;
  bool out = false;  // a writer's end: credits are empty slots; else full ones
  int credits = 0;
  int period = 1;     // acts that share a slot
  int phase = 0;      // the act's place in its period
  int kernel = 0;     // the kernel after which it announces or returns its slot
  bool ok = true;     // of the slot being read or filled
  int64_t taken = 0;  // credits taken so far
  std::vector<int64_t>
      bad;  // full slots that carry an error, by number, oldest first; empty until something fails
  // When the peer is on another asynchronous stream: where the peer's stream was when it last announced.
  const DeviceEvent* after = nullptr;

  bool starved() const { return phase == 0 && credits == 0; }
};

// The place of an act's operand, and the box of its tensor that it holds.
struct OperandPlace {
  char* const* base = nullptr;        // an arena may move between steps, a variable does not
  std::vector<int64_t> offset = {0};  // of consecutive messages, in turn
  int period = 1, skip = 0;
  std::vector<Box> boxes;  // one, or one for each act of a step
};

struct KernelCall {
  KernelSpec spec;
  std::unique_ptr<Kernel> kernel;   // nullptr for feeds, fetches and collectives
  std::vector<OperandPlace> place;  // inputs, then outputs
  std::vector<TensorArg> args;      // the same, of the act under way
  int inputs = 0;
  char* const* scratch_base = nullptr;
  int64_t scratch_offset = 0;
  int64_t ticks = 0, runs = 0;  // spent so far; for a collective only on its own work

  std::span<const TensorArg> in() const { return {args.data(), static_cast<size_t>(inputs)}; }
  std::span<const TensorArg> out() const { return {args.data() + inputs, args.size() - inputs}; }
};

// Kernels of an actor, up to `end`, that are enqueued together on an asynchronous stream; then credits are
// sent.
struct KernelLaunch {
  size_t end = 0;
  std::unique_ptr<DeviceSegment> segment;
  std::unique_ptr<DeviceEvent> event;  // of the end, when another stream waits for it
};

// How many slots of a buffer are taken, from the start of its writer's act to the end of its last reader's.
struct BufferCount {
  int rank = 0, id = 0, full = 0;
  int64_t written = 0;        // slots whose writing has begun
  std::vector<int64_t> read;  // slots that are read, by reader
  std::atomic<int> peak{0};   // shared: the user's thread reads it
};
struct Counted {
  BufferCount* buffer;
  int reader;  // index in BufferCount::read; unused for writers
  int period;
};

// One of the steps that may be in flight; the user's thread fills it before it posts the launch.
struct StepSlot {
  std::shared_ptr<StepHandle::State> state;
  std::vector<std::vector<FeedPiece>> feeds;  // by input: the boxes that ranks here read
  std::shared_ptr<WriteWatch> watch;
  std::atomic<int> shards_left{0};  // shared
  // Shared: something has failed for a reason that is not known here yet: a peer will send it, or it comes
  // with a device's final notification of this step. If neither arrives, the runtime was closed.
  std::atomic<bool> unexplained{false};
  int64_t launched_ticks = 0;
};

// Shared by all shards of a runtime.
struct RunState {
  int steps_in_flight = 1;
  int64_t warm_up_steps = 0;
  bool check_finite = false;
  int times = 1;
  uint64_t seed = 0;
  std::vector<std::unique_ptr<StepSlot>> slots;
  std::atomic<bool> cancelled{false};
  std::atomic<bool> recording{false};
  PeerSteps* peers = nullptr;  // of a runtime in a job of several processes
  // Counted where a step ends: by its last shard, or under the lock of `peers`. Steps end in their order,
  // each before what its last shard does next, so nothing here is atomic; the user's thread reads them when
  // no step is under way.
  int64_t ended = 0;                           // steps, of all
  int64_t steps_ended = 0, warm_up_ended = 0;  // since a profile was taken
  int64_t wall_ticks = 0;  // while any step was under way, from the end of the warm-up steps on
  int64_t last_end = 0;
  std::chrono::steady_clock::time_point born = std::chrono::steady_clock::now();

  double Now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - born).count();
  }
  // The step is done, successfully or not. Its slot is not touched afterwards: the user's thread may reuse
  // it.
  void EndStep(StepSlot* slot);
  // Keeps the first error of the runtime; returns whether this is the first. A lock, because it is taken only
  // when something has failed.
  bool SetError(const std::string& message);
  std::string error() const;
  // A device reports a failure in the slot's step. If something has failed before, that is the step's error:
  // the device fails because its collectives were cancelled.
  void FailDevice(StepSlot* slot, const std::string& message);

 private:
  mutable std::mutex mutex_;
  std::string error_;
};

// Sums the counts since the last call and resets them. REQUIRES: no step is under way.
StepProfile CollectProfile(RunState* run, const std::vector<std::unique_ptr<Shard>>& shards,
                           const TickScale& scale);

class Actor final : public Receiver, public Runnable, public CollectiveListener {
 public:
  enum class Kind { kKernels, kCollective, kFeed, kFetch };

  bool ready() const { return !busy_ && waiting_ == 0; }
  bool busy() const { return busy_; }
  // Runs the next act, or starts it if it ends later. REQUIRES: ready().
  void Act();
  // Counts a credit; may mark the actor ready, but never acts.
  void Receive(int port, bool ok) override;
  void RunOne() override { Act(); }  // of an actor in no stream
  void CollectiveWorked(int64_t start, int64_t end) override { Count(0, start, end); }
  void CollectiveDone(bool ok) override { Finish(ok); }
  // Queues the actor, or the stream whose head it is, if it may act now.
  void Wake();
  // What the actor waits for, in words.
  std::string Describe() const;
  // The same in the user's words. `plan` is its rank's.
  WaitingAct Waiting(const plan::Plan& plan) const;
  bool under_way() const;  // its next act is of a step that was launched

  // Set while loading, fixed afterwards.
  const plan::Actor* spec = nullptr;
  Kind kind = Kind::kKernels;
  int rank = 0;
  Shard* shard = nullptr;
  Stream* stream = nullptr;  // nullptr: in no list
  DeviceStream* device_stream = nullptr;
  Device* device = nullptr;
  bool synchronous = true;  // whether its stream is
  int acts = 1;
  std::vector<Port> ports;  // by kernel
  std::vector<KernelCall> kernels;
  std::unique_ptr<CollectiveMember> member;
  std::vector<void*> pieces;  // of a collective's operands: first the in pieces, then the out pieces
  int host_tensor = -1;       // index of the input or output that a feed or fetch moves
  // For a feed: the piece of its input that contains each box of its operand; -1: the box is empty.
  std::vector<int> fed;
  // On asynchronous streams. A collective, feed or fetch has one launch, without a segment.
  std::vector<KernelLaunch> launches;
  std::unique_ptr<Memory> staging;  // of a feed or fetch
  std::vector<Counted> writes, reads;
  std::vector<std::string> variables;  // the ones that it writes
  void Loaded();                       // call it after the last change

 private:
  struct DeviceDone : Message {
    Actor* actor = nullptr;
    Status status;
    void Receive() override;
  };

  StepSlot& slot() const;
  bool TakeCredits();
  bool RunKernels(bool ok);
  Status RunKernel(KernelCall& call, int64_t step);
  Status RunChecked(KernelCall& call, int64_t step);
  KernelContext ContextOf(const KernelCall& call, int64_t step) const;
  // On an asynchronous stream: an act ends when its kernels are enqueued.
  bool LaunchKernels(bool ok);
  void LaunchMove(bool ok);
  bool Cancelled();
  Status MoveHostTensor(KernelCall& call);
  // The piece with the box of a feed's act. REQUIRES: it is not empty.
  Piece Fed();
  // Delivers a fetch's data, from `data` in host memory.
  void Deliver(const TensorArg& arg, void* data);
  void Locate(KernelCall& call);
  void Announce(int kernel, bool ok);
  // Counts time spent in a kernel of the act under way.
  void Count(int kernel, int64_t start, int64_t end);
  void Finish(bool ok);
  void FailStep(const KernelCall* call, const std::string& message);
  // `message` names the kernel.
  void FailDevice(const std::string& message);
  void CountWrites();
  void CountReads();
  void TellWatch();

  int waiting_ = 0;  // number of starved ports; valid while the actor is not busy
  bool busy_ = false;
  size_t announced_ = 0;  // ports that have announced in this act
  int64_t k_ = 0;         // acts ended since the first step
  int t_ = 0;             // k_ % acts
  int64_t step_ = 0;      // k_ / acts
  int slot_ = 0;          // step_ % steps_in_flight
  double start_ = 0;
  int64_t start_ticks_ = 0;  // of the act under way, when tracing
  DeviceDone device_done_;
};

// The order of acts of one step, repeated every step.
class Stream final : public Runnable {
 public:
  Shard* shard = nullptr;
  std::unique_ptr<DeviceStream> device;
  std::vector<Actor*> order;
  // For an asynchronous device: an act that does not end where it starts (a collective) delays the next, so
  // that all ranks enqueue collectives in the order of the plan.
  bool in_turn = false;

  Actor* head() const { return order.empty() ? nullptr : order[next_]; }
  bool under_way() const;  // the head's next act is of a step that was launched
  bool ready() const;
  void RunOne() override;
  void Wake();
  // Call it after the last change.
  void Loaded();
  // Asks the device for a notification when everything enqueued has been done.
  void AskWhenSettled();

 private:
  // Notification of an asynchronous device: all work of a step is done, or (-1) all work.
  struct Done : Message {
    Stream* stream = nullptr;
    int slot = -1;
    Status status;
    void Receive() override;
  };
  void Ask(Done* done);

  std::vector<Done> done_;  // by slot
  Done settled_;
  int ending_ = -1;  // slot of the step whose last act has started
  size_t next_ = 0;
  int64_t step_ = 0;                // of the head
  const Actor* started_ = nullptr;  // the last one, if in_turn
  friend class Actor;
};

// The part of a runtime that one worker runs.
class Shard {
 public:
  Shard(RunState* run, Worker* worker) : run(run), worker(worker), acts_left_(run->steps_in_flight) {
    launch_.resize(run->steps_in_flight);
    for (Launched& message : launch_) message.shard = this;
    abandon_.shard = this;
  }

  // From the user's thread; at most steps_in_flight launches are under way.
  void PostLaunch(int slot) {
    launch_[slot].slot = slot;
    worker->Post(&launch_[slot]);
  }
  // Once `*left` has been decremented, nothing in this shard acts any more; the last shard signals `all`.
  void PostAbandon(std::atomic<int>* left, Completion* all) {
    abandon_.left = left;
    abandon_.all = all;
    worker->Post(&abandon_);
  }

  bool open(int64_t step) const { return step < launched_ && !abandoned_; }
  void ActEnded(int slot);
  void DeviceStarted() { ++on_device_; }
  void DeviceEnded();
  void Record(const ActRecord& record);
  // From the user's thread when no step is under way: the worker's busy time during steps since the last
  // call.
  int64_t TakeBusyTicks() { return std::exchange(busy_ticks_, 0); }
  // The worker's thread: what all acts under way wait for. `plans` are the runtime's.
  std::vector<WaitingAct> Waiting(const std::vector<plan::Plan>& plans) const;

  // Shared: the worker's current activity, for threads that ask while it is in a kernel. Only the worker
  // writes it.
  struct Now {
    std::atomic<const Actor*> actor{nullptr};  // nullptr: not in a kernel
    std::atomic<int> kernel{0};
    std::atomic<int64_t> since{0};  // ticks
    std::atomic<int64_t> acts{0};   // number of ended acts
    void Begin(const Actor* now, int number, int64_t ticks) {
      kernel.store(number, std::memory_order_relaxed);
      since.store(ticks, std::memory_order_relaxed);
      actor.store(now, std::memory_order_release);
    }
    void End() { actor.store(nullptr, std::memory_order_relaxed); }
  } now;

  RunState* const run;
  Worker* const worker;
  // In this order: actors' segments and events are destroyed before their streams.
  std::vector<std::unique_ptr<DeviceStream>> unordered_streams;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Actor>> actors;
  std::vector<KernelRun> kernel_runs;  // of the launch under way
  int64_t acts_per_step = 0;           // plus one for each asynchronous stream, for its end of the step
  TraceBuffer trace;

  std::mutex records_mutex;  // a lock, because the user's thread takes the records; used only when
                             // recording
  std::vector<ActRecord> records;

 private:
  struct Launched : Message {
    Shard* shard = nullptr;
    int slot = 0;
    void Receive() override { shard->Launch(slot); }
    const void* channel() const override { return shard; }
  };
  struct Abandoned : Message {
    Shard* shard = nullptr;
    std::atomic<int>* left = nullptr;
    Completion* all = nullptr;
    void Receive() override { shard->Abandon(); }
    const void* channel() const override { return shard; }
  };

  void Launch(int slot);
  void Abandon();
  void AbandonIfIdle();
  // Measures the worker's busy time while any step is under way here.
  void BeginBusy();
  void EndBusy();
  // Called when the warm-up steps have ended here. The kernels of a later step under way may have been
  // counted already.
  void StartCounting();

  int64_t launched_ = 0;            // steps launched so far
  int64_t ended_ = 0;               // steps whose acts here have all ended
  std::vector<int64_t> acts_left_;  // by slot
  int under_way_ = 0;               // steps
  int64_t busy_since_ = 0, idle_before_ = 0, busy_ticks_ = 0;
  int64_t on_device_ = 0;  // outstanding notifications of asynchronous devices
  bool abandoned_ = false;
  std::vector<Launched> launch_;
  Abandoned abandon_;
};

}  // namespace oneflow_like
