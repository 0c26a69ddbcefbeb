// Actors, streams and shards: what acts. All of a shard belongs to one worker; nothing here is locked but
// what is marked as shared.
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
#include "core/copy_box.h"
#include "core/device.h"
#include "core/kernel.h"

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
  int kernel = 0;     // after which it announces or gives back
  bool ok = true;     // of the slot being read or filled
  int64_t taken = 0;  // credits taken so far
  std::vector<int64_t>
      bad;  // full slots that carry an error, by number, oldest first; empty until something fails
  // When the peer is on another asynchronous stream: where the peer's stream was when it last announced.
  const DeviceEvent* after = nullptr;

  bool starved() const { return phase == 0 && credits == 0; }
};

// Where the operand of act k lies and which box of its tensor it holds.
struct OperandPlace {
  char* const* base = nullptr;        // an arena may move between steps, a variable does not
  std::vector<int64_t> offset = {0};  // of one message after another, in turn
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
  int64_t ticks = 0, runs = 0;  // spent so far; of a collective on its own work

  std::span<const TensorArg> in() const { return {args.data(), static_cast<size_t>(inputs)}; }
  std::span<const TensorArg> out() const { return {args.data() + inputs, args.size() - inputs}; }
};

// Kernels of an actor that an asynchronous stream is given together, up to `end`; then credits go.
struct KernelLaunch {
  size_t end = 0;
  std::unique_ptr<DeviceSegment> segment;
  std::unique_ptr<DeviceEvent> event;  // of the end, when another stream waits for it
};

// How many slots of a buffer are taken, from the start of its writer's act to the end of its last reader's.
struct BufferCount {
  int rank = 0, id = 0, full = 0;
  int64_t written = 0;        // slots that writing has begun on
  std::vector<int64_t> read;  // slots done with, by reader
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
  // Shared: something has failed for a reason that is not known here yet: it is a peer's to tell, or comes
  // with a device's last word of this step. Without either the runtime was closed.
  std::atomic<bool> unexplained{false};
  int64_t launched_ticks = 0;
};

// What all shards of a runtime share.
struct RunState {
  int steps_in_flight = 1;
  int64_t warm_up_steps = 0;
  bool check_finite = false;
  int times = 1;
  uint64_t seed = 0;
  std::vector<std::unique_ptr<StepSlot>> slots;
  std::atomic<bool> cancelled{false};
  std::atomic<bool> recording{false};
  PeerSteps* peers = nullptr;  // of a runtime that is one of several processes
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
  // The step is done, whatever has become of it. Nothing of its slot is touched afterwards: the user's thread
  // may use it again.
  void EndStep(StepSlot* slot);
  // The first error of the runtime; whether it was the first. A lock, since it is taken only when something
  // has failed.
  bool SetError(const std::string& message);
  std::string error() const;

 private:
  mutable std::mutex mutex_;
  std::string error_;
};

// Adds up what was counted since the last call and starts anew. REQUIRES: no step is under way.
StepProfile CollectProfile(RunState* run, const std::vector<std::unique_ptr<Shard>>& shards,
                           const TickScale& scale);

class Actor final : public Receiver, public Runnable, public CollectiveListener {
 public:
  enum class Kind { kKernels, kCollective, kFeed, kFetch };

  bool ready() const { return !busy_ && waiting_ == 0; }
  bool busy() const { return busy_; }
  // Does the next act, or starts it when it ends later. REQUIRES: ready().
  void Act();
  // A credit has come; marks the actor ready, never acts.
  void Receive(int port, bool ok) override;
  void RunOne() override { Act(); }  // of an actor in no stream
  void CollectiveWorked(int64_t start, int64_t end) override { Count(0, start, end); }
  void CollectiveDone(bool ok) override { Finish(ok); }
  // Queues the actor, or the stream it is head of, if it may act now.
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
  bool synchronous = true;  // the stream
  int acts = 1;
  std::vector<Port> ports;  // by kernel
  std::vector<KernelCall> kernels;
  std::unique_ptr<CollectiveMember> member;
  std::vector<void*> pieces;  // of the operands of a collective's act, those it brings before those it gets
  int host_tensor = -1;       // index of the input or output that a feed or fetch moves
  // Of a feed: which piece of its input each box of its operand lies in; -1: it is empty.
  std::vector<int> fed;
  // Of asynchronous streams. A collective, feed or fetch has one launch, without a segment.
  std::vector<KernelLaunch> launches;
  std::unique_ptr<Memory> staging;  // of a feed or fetch
  std::vector<Counted> writes, reads;
  std::vector<std::string> variables;  // that it writes
  void Loaded();                       // after the last change

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
  // Where the box of a feed's act lies. REQUIRES: it is not empty.
  Piece Fed();
  // What a fetch has, from `data` in the host's memory.
  void Deliver(const TensorArg& arg, void* data);
  void Locate(KernelCall& call);
  void Announce(int kernel, bool ok);
  // Time spent in a kernel of the act under way.
  void Count(int kernel, int64_t start, int64_t end);
  void Finish(bool ok);
  void FailStep(const KernelCall* call, const std::string& message);
  // `message` names the kernel.
  void FailDevice(const std::string& message);
  void CountWrites();
  void CountReads();
  void TellWatch();

  int waiting_ = 0;  // starved ports; kept while the actor is not busy
  bool busy_ = false;
  size_t announced_ = 0;  // ports done with in this act
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
  // Of an asynchronous device: an act that does not end where it starts (a collective) holds up the next, so
  // that all ranks enqueue collectives in the order of the plan.
  bool in_turn = false;

  Actor* head() const { return order.empty() ? nullptr : order[next_]; }
  bool under_way() const;  // the head's next act is of a step that was launched
  bool ready() const;
  void RunOne() override;
  void Wake();
  // After the last change.
  void Loaded();
  // The device's word comes when all that was enqueued has been done.
  void AskWhenSettled();

 private:
  // What an asynchronous device says: all of a step has been done, or (-1) of everything.
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
  const Actor* started_ = nullptr;  // of a stream in turn, the last
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
  // Nothing acts any more once `*left` has been decremented; the last signals `all`.
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
  // From the user's thread when no step is under way: time the worker was not idle during steps, since the
  // last call.
  int64_t TakeBusyTicks() { return std::exchange(busy_ticks_, 0); }
  // The worker's thread: what all acts under way wait for. `plans` are the runtime's.
  std::vector<WaitingAct> Waiting(const std::vector<plan::Plan>& plans) const;

  // Shared: what the worker does just now, for who asks while it is in a kernel. Written by the worker alone.
  struct Now {
    std::atomic<const Actor*> actor{nullptr};  // nullptr: it is in no kernel
    std::atomic<int> kernel{0};
    std::atomic<int64_t> since{0};  // ticks
    std::atomic<int64_t> acts{0};   // that have ended
    void Begin(const Actor* now, int number, int64_t ticks) {
      kernel.store(number, std::memory_order_relaxed);
      since.store(ticks, std::memory_order_relaxed);
      actor.store(now, std::memory_order_release);
    }
    void End() { actor.store(nullptr, std::memory_order_relaxed); }
  } now;

  RunState* const run;
  Worker* const worker;
  // In this order: what actors have of a stream goes before it.
  std::vector<std::unique_ptr<DeviceStream>> unordered_streams;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Actor>> actors;
  std::vector<KernelRun> kernel_runs;  // of the launch under way
  int64_t acts_per_step = 0;  // and one for each asynchronous stream, whose end of the step is such an act
  TraceBuffer trace;

  std::mutex records_mutex;  // a lock, since the user's thread takes the records; used only when recording
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
  // Of the time while any step is under way here, what the worker was busy.
  void BeginBusy();
  void EndBusy();
  // The warm-up steps have ended here. A later step may be under way, whose kernels have been counted.
  void StartCounting();

  int64_t launched_ = 0;            // steps launched so far
  int64_t ended_ = 0;               // steps whose acts here have all ended
  std::vector<int64_t> acts_left_;  // by slot
  int under_way_ = 0;               // steps
  int64_t busy_since_ = 0, idle_before_ = 0, busy_ticks_ = 0;
  int64_t on_device_ = 0;  // words of asynchronous devices that are still to come
  bool abandoned_ = false;
  std::vector<Launched> launch_;
  Abandoned abandon_;
};

}  // namespace oneflow_like
