// Who drives the network: UCX, its handlers and the network's mailbox belong to whoever has the duty, one
// thread at a time. A worker with nothing else to do takes it, so that what it waits for needs no other
// thread to wake up first; while no worker has it the network's own thread does. See README.md, Threads, for
// why nothing is lost when it changes hands.
#pragma once

#include <atomic>
#include <cstdint>

#include "actor/executor.h"
#include "actor/mailbox.h"

namespace oneflow_like {

class Duty final : public IdleWork {
 public:
  class Work {
   public:
    virtual ~Work() = default;
    // Has the duty. Works, asleep when there is nothing to do, until `mail` has a message or `ended()`.
    virtual void DriveUntil(Mailbox* mail) = 0;
  };

  // Taken, until the network's thread releases it.
  explicit Duty(Work* work);
  ~Duty() override;
  Duty(const Duty&) = delete;
  Duty& operator=(const Duty&) = delete;

  // Whoever has it wakes what sleeps and looks at all of it next.
  bool Take();
  void Release() { taken_.store(false); }  // the network's thread, which has seen to it that it is woken
  void Leave();                            // the network's thread will look, after a while
  bool Wanted() { return wanted_.load(std::memory_order_relaxed) && wanted_.exchange(false); }

  // Of messages to the network: Post by any thread, the rest on duty.
  Mailbox* mailbox() { return &mailbox_; }
  void Post(Message* message) {
    if (mailbox_.Put(message)) Wake();
  }
  // A worker of which this is the idle work: it wakes nobody before it has something else to do.
  void PostSoon(Message* message) {
    if (mailbox_.Put(message)) wake_owed_.store(true, std::memory_order_relaxed);
  }

  // On duty: until there is an event or somebody calls Wake, at most until `deadline` (ClockNow()).
  void Sleep(int event_fd, int64_t deadline);
  // The network's thread, not on duty: until the duty may be free. `event_fd` as of Sleep when UCX and the
  // mailbox were asleep as the duty was released, else -1: somebody else has it.
  void AwaitTurn(int event_fd, int64_t deadline);

  // Any thread: from here on no worker takes the duty, and the network's thread, which is woken, gets it.
  void End();
  bool ended() const { return ended_.load(std::memory_order_acquire); }

  // IdleWork.
  bool RunUntil(Mailbox* mail) override;
  void Wake() override;
  void GoesOn() override;

 private:
  bool TakeInTurn(Mailbox* mail);  // a worker, until it has mail
  void SetTimer();
  void CallThread();  // ends AwaitTurn
  void Call() {
    if (!called_.exchange(true)) CallThread();
  }
  void PayWake() {
    if (wake_owed_.load(std::memory_order_relaxed) && wake_owed_.exchange(false)) Wake();
  }

  Work* const work_;
  Mailbox mailbox_;
  std::atomic<bool> taken_{true}, wanted_{false}, wake_owed_{false};
  std::atomic<bool> woken_{false};  // wake_fd_ may be readable
  std::atomic<bool> timer_set_{false}, called_{false}, ended_{false};
  std::atomic<uint64_t> left_{0};  // how often a worker has left
  uint64_t left_seen_ = 0;         // the network's thread
  int wake_fd_ = -1, call_fd_ = -1, timer_fd_ = -1;
};

}  // namespace oneflow_like
