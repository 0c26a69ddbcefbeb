// Runs actors: an executor has workers; a worker receives messages and runs what is ready, one thing at a
// time. The thread executor has one thread for each worker.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "actor/mailbox.h"
#include "core/error.h"

namespace oneflow_like {

// An object that can run one act now: the head of a stream, or an actor in no stream. Once queued it stays
// ready until it runs.
class Runnable {
 public:
  virtual ~Runnable() = default;
  virtual void RunOne() = 0;

 private:
  friend class ReadyList;
  Runnable* next_ = nullptr;
  bool queued_ = false;
};

// An intrusive FIFO queue. Not thread-safe.
class ReadyList {
 public:
  void Push(Runnable* r, bool first) {
    if (r->queued_) return;
    r->queued_ = true;
    r->next_ = first ? head_ : nullptr;
    if (head_ == nullptr) {
      head_ = tail_ = r;
    } else if (first) {
      head_ = r;
    } else {
      tail_->next_ = r;
      tail_ = r;
    }
    ++size_;
  }
  Runnable* Pop() { return head_ == nullptr ? nullptr : Unlink(nullptr, head_); }
  void Remove(Runnable* r) {
    if (!r->queued_) return;
    Runnable* before = nullptr;
    for (Runnable* at = head_; at != r; at = at->next_) before = at;
    Unlink(before, r);
  }
  int size() const { return size_; }

 private:
  Runnable* Unlink(Runnable* before, Runnable* r) {
    (before == nullptr ? head_ : before->next_) = r->next_;
    if (tail_ == r) tail_ = before;
    r->queued_ = false;
    --size_;
    return r;
  }
  Runnable *head_ = nullptr, *tail_ = nullptr;
  int size_ = 0;
};

// The end of an edge: receives credits. Receive never acts.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual void Receive(int port, bool ok) = 0;
};

// An event that happens once. Thread-safe.
class Completion {
 public:
  void Signal() {
    // Notified under the lock: the waiter may destroy this as soon as it has the lock again.
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  bool Done() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  void Reset() {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = false;
  }

 private:
  // A lock, because the waiter is the user's thread, which has no mailbox; taken a few times a step.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

// Background work that an idle worker may run.
class IdleWork {
 public:
  virtual ~IdleWork() = default;
  // Called on the worker's thread when Take() of its `mail` has just returned nullptr: works, sleeping when
  // there is nothing to do, and returns when `mail` has a message or this work ends for good. Returns false
  // at once when another thread does this work.
  virtual bool RunUntil(Mailbox* mail) = 0;
  // Any thread: ends a sleep inside RunUntil.
  virtual void Wake() = 0;
  // Called on the worker's thread before each act: what it has posted to this work must be handled, here or
  // by another thread, although the worker is not idle.
  virtual void GoesOn() = 0;
};

class Worker {
 public:
  virtual ~Worker() = default;
  // From any thread.
  virtual void Post(Message* message) = 0;
  // From any thread, once its work begins: sets the work to do instead of sleeping.
  virtual void WhenIdle(std::shared_ptr<IdleWork>) {}
  // The following are called from the worker's own thread only.
  virtual const IdleWork* idle_work() const { return nullptr; }
  // Gives a credit to a port of an actor on this worker.
  virtual void Tell(const Receiver* from, Receiver* to, int port, bool ok) = 0;
  // Queues a ready object, if it is not queued yet. `first`: for acts that take no time and for which others
  // wait.
  virtual void Ready(Runnable* runnable, bool first) = 0;
  virtual void Forget(Runnable* runnable) = 0;  // removes it from the queue
  // Threads of the team that runs its kernels. From any thread.
  virtual int kernel_threads() const { return 1; }
  // Time spent so far with nothing to receive or run, in Ticks(). 0 for a worker on the caller's thread.
  virtual int64_t idle_ticks() const { return 0; }
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual int workers() const = 0;
  virtual Worker* worker(int index) = 0;
  // Blocks the caller, not a worker, until `completion` is done. Fails if no event is left that could
  // complete it, which only an executor that sees all events can detect.
  virtual Status Await(Completion* completion) = 0;
  // Returns once every message posted before the call has been received.
  virtual void Fence() = 0;
};

}  // namespace oneflow_like
