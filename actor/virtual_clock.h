// The clock of a machine on paper (virtual_time.h), and the links that its messages share. Private to
// virtual_time.cc and virtual_device.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "actor/virtual_time.h"

namespace oneflow_like {

// Calls events in the order of their times; those of one moment in the order in which they were asked for.
class VirtualClock {
 public:
  int64_t now() const { return now_; }
  void At(int64_t time, std::function<void()> event) { events_.push({time, next_++, std::move(event)}); }
  // False: there are no more.
  bool RunNext() {
    if (events_.empty()) return false;
    Event event = std::move(const_cast<Event&>(events_.top()));
    events_.pop();
    now_ = std::max(now_, event.time);
    event.run();
    return true;
  }
  // Of the next event; REQUIRES: there is one.
  bool empty() const { return events_.empty(); }
  int64_t next_time() const { return events_.top().time; }
  // Work on a thread of the host: what it does next happens this much later.
  void Spend(int64_t time) { now_ += time; }
  void ReturnTo(int64_t time) { now_ = time; }

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

// Links that flows share evenly: of n flows on one link each has the n-th part of it.
class VirtualLinks {
 public:
  explicit VirtualLinks(VirtualClock* clock) : clock_(clock) {}
  // Calls `done` when all links have been busy for as long as they are needed.
  void Start(std::vector<VirtualLoad::Busy> links, std::function<void()> done);

 private:
  struct Flow {
    std::vector<VirtualLoad::Busy> links;
    std::function<void()> done;
    double left = 1;   // of the whole
    double needs = 0;  // picoseconds for the whole, as things are
  };

  void Progress();  // all flows to the present moment
  void Reckon();
  void End();

  VirtualClock* const clock_;
  std::deque<Flow> flows_;  // in the order they began
  std::map<int, int> users_;
  int64_t since_ = 0;
  uint64_t version_ = 0;
};

}  // namespace oneflow_like
