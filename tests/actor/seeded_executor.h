// An executor of one thread, the caller's, and of all events that could come next (a message of any
// channel, a credit between any two actors, anything ready) the seed picks one.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "actor/executor.h"

namespace oneflow_like {

struct PendingEvent {
  const void* channel;
  const void* receiver;
  Message* message;  // or a credit
  Receiver* to;
  int port;
  bool ok;
};

class SeededExecutor final : public Executor, public Worker {
 public:
  explicit SeededExecutor(uint64_t seed) : random_(seed) {}

  int workers() const override { return 1; }
  Worker* worker(int) override { return this; }

  Status Await(Completion* completion) override {
    while (!completion->Done()) {
      if (!FireOne()) return Status("no event is left");
    }
    return Status();
  }

  void Fence() override {
    while (!pending_.empty()) Deliver(0);
  }

  void Post(Message* message) override {
    pending_.push_back({message->channel(), nullptr, message, nullptr, 0, true});
  }
  void Tell(const Receiver* from, Receiver* to, int port, bool ok) override {
    pending_.push_back({from, to, nullptr, to, port, ok});
  }
  void Ready(Runnable* runnable, bool first) override {
    if (std::find(ready_.begin(), ready_.end(), runnable) == ready_.end())
      ready_.insert(first ? ready_.begin() : ready_.end(), runnable);
  }
  void Forget(Runnable* runnable) override { std::erase(ready_, runnable); }

 private:
  bool FireOne() {
    size_t events = pending_.size() + ready_.size();
    if (events == 0) return false;
    size_t pick = random_() % events;
    if (pick < pending_.size()) {
      Deliver(pick);
    } else {
      const auto at = ready_.begin() + static_cast<std::ptrdiff_t>(pick - pending_.size());
      Runnable* const runnable = *at;
      ready_.erase(at);
      runnable->RunOne();
    }
    return true;
  }

  // Delivers the oldest event of the picked one's channel.
  void Deliver(size_t pick) {
    size_t oldest = 0;
    while (pending_[oldest].channel != pending_[pick].channel ||
           pending_[oldest].receiver != pending_[pick].receiver) {
      ++oldest;
    }
    PendingEvent event = pending_[oldest];
    pending_.erase(pending_.begin() + oldest);
    if (event.message != nullptr) {
      event.message->Receive();
    } else {
      event.to->Receive(event.port, event.ok);
    }
  }

  std::mt19937_64 random_;
  std::vector<PendingEvent> pending_;  // oldest first
  std::deque<Runnable*> ready_;
};

inline std::unique_ptr<Executor> MakeSeededExecutor(uint64_t seed) {
  return std::make_unique<SeededExecutor>(seed);
}

}  // namespace oneflow_like
