// The devices of a machine on paper (virtual_time.h): their memory, kernels, streams and events. Private to
// virtual_time.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "actor/virtual_clock.h"

namespace oneflow_like {

struct VirtualMemory final : Memory {
  explicit VirtualMemory(size_t size) : size(size) {}
  void* data() override { return reinterpret_cast<void*>(size_t{64}); }  // nobody looks
  size_t bytes() const override { return size; }
  size_t size;
};

struct VirtualHostMemory final : Memory {
  explicit VirtualHostMemory(size_t size) : held(size) {}
  void* data() override { return held.data(); }
  size_t bytes() const override { return held.size(); }
  std::vector<char> held;
};

// A turn of a thread of the host. What it does is decided when the turn begins; it happens when the work
// before it has been done, which takes the longer the more others work.
class VirtualTurn {
 public:
  virtual void Work(int64_t alone, int64_t crowded, std::function<void(int64_t start)> done) = 0;
  virtual void Then(std::function<void()> what) = 0;

 protected:
  ~VirtualTurn() = default;
};

// Where records go, and the clock that all parts share.
struct Paper {
  explicit Paper(std::function<void(const TraceRecord&)> record) : record(std::move(record)) {}

  // Of an actor, an end of an edge to another one.
  struct End {
    int64_t credits = 0;  // at the start
    int64_t period = 1, peer_period = 1;
  };
  // How many acts of `peer` must have ended before `act` (since the first step) may begin.
  int64_t Needs(int rank, int actor, int64_t act, int peer) const;
  void AddEnd(int rank, int actor, int peer, const End& end);

  // Picoseconds of work, and what else happens, at their place in the turn under way. Outside of all turns
  // work takes no time.
  void Work(int64_t alone, int64_t crowded, std::function<void(int64_t start)> done) {
    turn == nullptr ? done(clock.now()) : turn->Work(alone, crowded, std::move(done));
  }
  void Then(std::function<void()> what) { turn == nullptr ? what() : turn->Then(std::move(what)); }

  void Record(const TraceRecord& ended) const {
    if (record) record(ended);
  }

  const std::function<void(const TraceRecord&)> record;
  VirtualClock clock;
  VirtualTurn* turn = nullptr;

 private:
  std::vector<std::unordered_map<uint64_t, std::vector<End>>> edges_;  // by rank; by actor and peer
};

// Of the kernel that stands for every other one, and of its attributes.
inline constexpr char kPaperKernel[] = "on_paper", kPaperTime[] = "picoseconds", kPaperCrowded[] = "crowded",
                      kPaperRank[] = "rank", kPaperActor[] = "actor", kPaperIndex[] = "index",
                      kPaperActs[] = "acts";

// The plan as a machine on paper runs it (VirtualMachine::OnPaper). Kernels of an asynchronous device between
// which no credit goes become one, unless `each_kernel`: one after another they take as long.
using KernelTimes = std::function<ThreadTime(const plan::Actor&, const plan::Kernel&)>;
struct PaperOptions {
  bool asynchronous = false, each_kernel = true;
};
plan::Plan PlanOnPaper(const plan::Plan& plan, const KernelTimes& times, const PaperOptions& options);

class VirtualKernel final : public Kernel {
 public:
  VirtualKernel(const KernelSpec& spec, Paper* paper)
      : time(spec.attrs.Int(kPaperTime)),
        crowded(spec.attrs.Int(kPaperCrowded)),
        rank(static_cast<int>(spec.attrs.Int(kPaperRank))),
        actor(static_cast<int>(spec.attrs.Int(kPaperActor))),
        index(static_cast<int>(spec.attrs.Int(kPaperIndex))),
        acts(spec.attrs.Int(kPaperActs)),
        paper_(paper) {}

  // On a thread of the host.
  Status Run(const KernelContext&) override;
  // It has just ended.
  void Ran(int64_t start);

  const int64_t time, crowded;   // crowded: on a thread of the host, while all cores are busy
  const int rank, actor, index;  // actor -1: of no actor
  const int64_t acts;
  int64_t enqueued = 0;  // runs

 private:
  Paper* const paper_;
  int64_t runs_ = 0;
};

class VirtualStream;

// Recorded once in each act of its actor.
struct VirtualEvent final : DeviceEvent {
  int actor = -1;
  int64_t happened = 0;  // so often
  std::vector<VirtualStream*> waiting;
};

// Of an asynchronous device: what it was given, one thing after another.
class VirtualStream final : public DeviceStream {
 public:
  VirtualStream(Paper* paper, bool synchronous) : paper_(paper), synchronous_(synchronous) {}

  bool synchronous() const override { return synchronous_; }
  Status Run(Kernel& kernel, const KernelContext& context) override;
  void NotifyWhenDone(std::function<void(Status)> done) override;
  std::unique_ptr<DeviceSegment> MakeSegment() override { return std::make_unique<DeviceSegment>(); }
  Status RunSegment(DeviceSegment*, std::span<const KernelRun> kernels) override;
  std::unique_ptr<DeviceEvent> MakeEvent() override { return std::make_unique<VirtualEvent>(); }
  void Record(DeviceEvent* event) override;
  void WaitFor(const DeviceEvent& event) override;
  void CopyIn(void*, const void*, size_t) override {}
  void CopyOut(void*, const void*, size_t) override {}
  Status Combine(DType, Reduce, const Box&, std::span<const Piece>, std::span<const Piece>) override {
    return Status();
  }

  // `begin`, which must live until then, is called when all before it has been done; what comes after it
  // waits for Resume().
  void Meet(int rank, int actor, int64_t act, const std::function<void()>* begin);
  void Resume();

 private:
  struct Meets {
    const std::function<void()>* begin;
  };
  struct Records {
    VirtualEvent* event;
  };
  struct Waits {
    VirtualEvent* event;
    int64_t asked;  // how often it must have happened
  };
  struct Calls {};  // the first of calls_
  // Small: a thread may enqueue whole steps ahead.
  using Task = std::variant<VirtualKernel*, Meets, Records, Waits, Calls>;

  // An act comes next, which waits for what its credits stand for: so many acts of others. An event that is
  // recorded anew for each act, as CUDA's, may make it wait for later ones as well (actor/README.md).
  void Begin(int rank, int actor, int64_t act);

  void Enqueue(Task task);
  void Pump();
  static void Happen(VirtualEvent* event);
  void Start(VirtualKernel* kernel);

  Paper* const paper_;
  const bool synchronous_;
  int actor_ = -1;                      // whose act was enqueued last
  std::vector<VirtualEvent*> awaited_;  // by the act that comes next
  std::deque<Task> tasks_;
  std::deque<std::function<void()>> calls_;
  bool busy_ = false, pumping_ = false;
  int64_t began_ = 0;  // the kernel that runs
};

class VirtualDevice final : public Device {
 public:
  VirtualDevice(int rank, bool synchronous, Paper* paper)
      : rank_(rank), synchronous_(synchronous), paper_(paper) {}
  const std::string& kind() const override { return kind_; }
  int index() const override { return rank_; }
  std::unique_ptr<Memory> Allocate(size_t bytes, const std::string&) override {
    return std::make_unique<VirtualMemory>(bytes);
  }
  std::unique_ptr<Memory> AllocateHost(size_t bytes, const std::string&) override {
    return std::make_unique<VirtualHostMemory>(bytes);
  }
  void CopyIn(void*, const void*, size_t) override {}
  void CopyOut(void*, const void*, size_t) override {}
  std::unique_ptr<DeviceStream> MakeStream(const std::string&) override {
    return std::make_unique<VirtualStream>(paper_, synchronous_);
  }
  bool Reaches(const Device&) const override { return true; }

 private:
  const std::string kind_ = "paper";
  const int rank_;
  const bool synchronous_;
  Paper* const paper_;
};

}  // namespace oneflow_like
