// The clock of a machine on paper (virtual_time.h), the links that its messages share, and the cores that its
// threads share. Private to virtual_time.cc and virtual_device.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actor/virtual_time.h"

namespace oneflow_like {

// Calls events in the order of their times; those of one moment in the order in which they were asked for. It
// stops at kLastPicosecond.
class VirtualClock {
 public:
  int64_t now() const { return now_; }
  bool stopped() const { return now_ == kLastPicosecond; }
  void At(int64_t time, std::function<void()> event) {
    events_.push({std::min(time, kLastPicosecond), next_++, std::move(event)});
  }
  // So many picoseconds from now on.
  void After(double time, std::function<void()> event) {
    At(now_ + std::llround(std::min(time, static_cast<double>(kLastPicosecond))), std::move(event));
  }
  // False: there are no more.
  bool RunNext() {
    if (events_.empty()) return false;
    Event event = std::move(const_cast<Event&>(events_.top()));
    events_.pop();
    now_ = std::max(now_, event.time);
    event.run();
    return true;
  }
  bool empty() const { return events_.empty(); }

 private:
  struct Event {
    int64_t time;
    uint64_t number;
    std::function<void()> run;
    bool operator<(const Event& o) const { return std::tie(o.time, o.number) < std::tie(time, number); }
  };
  std::priority_queue<Event> events_;
  uint64_t next_ = 0;
  int64_t now_ = 0;
};

// Flows of one time that share something: each is slower for the others, and ends when all of it has passed.
class VirtualSharing {
 public:
  explicit VirtualSharing(VirtualClock* clock) : clock_(clock) {}
  struct Flow {
    std::function<double()> needs;  // picoseconds for the whole, if things stayed as they are now
    std::function<void()> leave;    // before the others' needs are asked again
    std::function<void()> done;
    double left = 1, time = 0;  // of the whole; that needs() gave
  };
  void Start(Flow flow);
  // Those that end at this moment, before anything else changes.
  void EndDue() { End(); }
  // The needs of flows have changed.
  void Update() {
    Progress();
    Reckon();
  }

 private:
  void Progress();  // all flows to the present moment
  void Reckon();
  void End();

  VirtualClock* const clock_;
  std::deque<Flow> flows_;  // in the order they began
  int64_t since_ = 0;
  uint64_t version_ = 0;
};

// Links that flows share evenly: of n flows on one link each has the n-th part of it. A flow is reckoned anew
// when others begin or end on its links, and only then: most groups have links of their own.
class VirtualLinks {
 public:
  using Load = std::vector<VirtualLoad::Busy>;

  explicit VirtualLinks(VirtualClock* clock) : clock_(clock) {}
  // Calls `done` when all links have been busy for as long as they are needed. `links` must outlive the flow;
  // each has a time above 0, and none stands there twice.
  void Start(const Load* links, std::function<void()> done);

 private:
  struct Flow {
    const Load* links = nullptr;
    std::function<void()> done;
    double left = 1, time = 0;  // of the whole, and picoseconds that it takes as things are
    int64_t since = 0;
    uint32_t version = 0;  // of the event that ends it
  };
  // Those that use one of the links.
  void ReckonUsers(const Load& links);
  void Reckon(uint32_t number);
  void End(uint32_t number);

  VirtualClock* const clock_;
  std::deque<Flow> flows_;                                // by number
  std::vector<uint32_t> unused_;                          // numbers
  std::unordered_map<int, std::vector<uint32_t>> users_;  // by link, as they came
};

// The cores of a host, on which threads work. Work is slower the more other cores are busy, as they share
// memory and power; more work than there are cores takes turns.
class VirtualCores {
 public:
  // Each work keeps `each` of them busy; with `cores` 0 there are enough, and nothing is shared. With
  // `balance` 0, or where a work needs several cores, all cores share all work evenly, and while more is
  // wanted than there are, work takes `turns` times as long, besides waiting. Else it goes as the system's
  // scheduler has it. A thread that wakes up gets an idle core, or else waits on the one that it had last:
  // until the thread at work there waits for something, or ends a turn, which happens every `balance`
  // picoseconds since it began. Only every `balance` picoseconds an idle core takes a thread over that waits
  // on another one. A thread takes `turns` times as long while another one waits on its core.
  VirtualCores(VirtualClock* clock, int cores, int each, double turns, int64_t balance)
      : clock_(clock),
        work_(clock),
        cores_(cores),
        each_(each),
        turns_(turns),
        balance_(each == 1 ? balance : 0),
        queues_(static_cast<size_t>(std::max(cores, 0))) {}
  // Calls `done` when it has been done: picoseconds with the other cores idle, and with all at work. `thread`
  // has no other work meanwhile.
  void Start(int thread, int64_t alone, int64_t crowded, std::function<void()> done);

 private:
  struct Thread {
    int core = -1;                 // where it is, or was last
    int64_t ended = 0, since = 0;  // when its last work ended, and its last turn began
  };
  struct Queue {
    std::deque<int> threads;  // the first is at work, the others wait for their turns
    int64_t since = -1;       // when the turn of the first began, or there was none
    uint64_t version = 0;     // of the event that ends the turn
  };
  static bool FewerThreads(const Queue& a, const Queue& b) { return a.threads.size() < b.threads.size(); }
  struct Wanted {
    int thread;
    int64_t alone, crowded;
    std::function<void()> done;
  };
  double Needs(int64_t alone, int64_t crowded) const;
  double NeedsOn(int thread, int64_t alone, int64_t crowded) const;
  // Nobody has been at work there at this moment.
  bool IsIdle(const Queue& core) const { return core.threads.empty() && core.since < clock_->now(); }
  void Place();
  int CoreFor(const Thread& thread) const;
  void Return(int number);
  void Enter(int number);
  void Run(Wanted wanted);
  void Leave(int number);
  void AwaitTurn(Queue* core);
  void EndTurn(Queue* core, uint64_t version);
  void AwaitBalance();
  void Balance();

  VirtualClock* const clock_;
  VirtualSharing work_;
  const int cores_, each_;
  const double turns_;
  const int64_t balance_;
  int running_ = 0;
  std::vector<Queue> queues_;
  std::map<int, Thread> threads_;  // that have ever had work
  std::vector<Wanted> wanted_;     // at this moment
  bool awaits_balance_ = false;
};

}  // namespace oneflow_like
