// The duty to drive the network: UCX, its handlers and the network's mailbox belong to the thread that holds
// the duty. An idle worker takes it, so that no other thread must wake up first for what the worker waits
// for; while no worker holds it, the network's own thread does. See README.md, Threads, for why nothing is
// lost when it changes hands.
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
    // Called while holding the duty. Works, sleeping when there is nothing to do, until `mail` has a message
    // or `ended()`.
    virtual void DriveUntil(Mailbox* mail) = 0;
    // Called while holding the duty: one turn, which does not sleep.
    virtual void TakeTurn() = 0;
  };

  // The duty is taken at first, until the network's thread releases it. `few_cores`: the network's thread
  // would take a core from a worker. So a worker that continues takes turns itself, between two acts, and the
  // thread waits longer for one to do so.
  Duty(Work* work, bool few_cores);
  ~Duty() override;
  Duty(const Duty&) = delete;
  Duty& operator=(const Duty&) = delete;

  // The new holder must then wake the mailbox and the pollers, and check all of them.
  bool Take();
  void Release() { taken_.store(false); }  // by the network's thread, which has armed its wake-up
  void Leave();                            // the network's thread will check, after a while
  bool Wanted() { return wanted_.load(std::memory_order_relaxed) && wanted_.exchange(false); }

  // For messages to the network: Post from any thread, the rest only by the holder.
  Mailbox* mailbox() { return &mailbox_; }
  void Post(Message* message) {
    if (mailbox_.Put(message)) Wake();
  }
  // By a worker whose idle work this is: wakes no thread until the worker has something else to do.
  void PostSoon(Message* message) {
    if (mailbox_.Put(message)) wake_owed_.store(true, std::memory_order_relaxed);
  }

  // By the holder: sleeps until there is an event or a thread calls Wake, at most until `deadline`
  // (ClockNow()).
  void Sleep(int event_fd, int64_t deadline);
  // The network's thread, not holding the duty: sleeps until the duty may be free. `event_fd` as in Sleep if
  // UCX and the mailbox were asleep when the duty was released, else -1: another thread holds it.
  void AwaitTurn(int event_fd, int64_t deadline);
  // The network's thread, after AwaitTurn: as Take, and takes the signal that ended AwaitTurn although its
  // sender may not have come to say so. The descriptor would else stay readable until that thread has a core
  // again, perhaps the one on which this thread looks at the descriptor over and over.
  bool TakeAwakened();

  // Any thread: from here on no worker takes the duty, and the network's thread, which is woken, gets it.
  void End();
  bool ended() const { return ended_.load(std::memory_order_acquire); }

  // IdleWork.
  bool RunUntil(Mailbox* mail) override;
  void Wake() override;
  void GoesOn() override;

 private:
  bool TakeInTurn(Mailbox* mail);  // by a worker, until it has mail
  bool TakeTurn();                 // by a worker; false: another thread has the duty
  void SetTimer();
  void CallThread();  // ends AwaitTurn
  void Call() {
    if (!called_.exchange(true)) CallThread();
  }
  void PayWake() {
    if (wake_owed_.load(std::memory_order_relaxed) && wake_owed_.exchange(false)) Wake();
  }

  Work* const work_;
  const bool few_cores_;
  Mailbox mailbox_;
  std::atomic<bool> taken_{true}, wanted_{false}, wake_owed_{false};
  std::atomic<bool> woken_{false};  // wake_fd_ may be readable
  std::atomic<bool> timer_set_{false}, called_{false}, ended_{false};
  std::atomic<uint64_t> left_{0};    // number of times a worker has left
  std::atomic<int64_t> left_at_{0};  // the last time
  uint64_t left_seen_ = 0;           // the network's thread
  bool signalled_ = false;           // the network's thread: wake_fd_ was readable when AwaitTurn ended
  int wake_fd_ = -1, call_fd_ = -1, timer_fd_ = -1;
};

}  // namespace oneflow_like
