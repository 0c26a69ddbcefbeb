// The clock of a machine on paper (virtual_time.h), the links that its messages share, and the cores that its
// threads share. Private to virtual_time.cc and virtual_device.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
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

// The cores of a host, which threads at work share evenly. Work is slower the more other cores are busy, as
// they share memory and power.
class VirtualCores {
 public:
  // Each work keeps `each` of them busy; with `cores` 0 there are enough, and nothing is shared.
  VirtualCores(VirtualClock* clock, int cores, int each) : clock_(clock), cores_(cores), each_(each) {}
  // Calls `done` when it has been done: picoseconds with the other cores idle, and with all at work.
  void Start(int64_t alone, int64_t crowded, std::function<void()> done);

 private:
  struct Work {
    int64_t alone, crowded;
    std::function<void()> done;
    double left = 1, time = 0;  // of the whole, and picoseconds that it takes as things are
  };
  double TimeOf(const Work& work) const;
  void Progress();  // all works to the present moment
  void Reckon();
  void End();

  VirtualClock* const clock_;
  const int cores_, each_;
  std::deque<Work> works_;  // in the order they began
  int64_t since_ = 0;
  uint64_t version_ = 0;
};

}  // namespace oneflow_like
