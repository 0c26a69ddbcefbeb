// Where actors run: an executor has workers; a worker receives messages and runs what is ready, one thing at
// a time. The thread executor has one thread for each worker; the seeded executor has one worker and the
// caller's thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "actor/mailbox.h"
#include "core/error.h"

namespace oneflow_like {

// Something that can do one act now: the head of a stream, or an actor in no stream. Once queued it stays
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

// First in, first out, and intrusive. One thread.
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
  Runnable* PopAt(int index) {  // REQUIRES: 0 <= index < size()
    Runnable *before = nullptr, *r = head_;
    for (; index > 0; --index) before = r, r = r->next_;
    return Unlink(before, r);
  }
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

// The end of an edge: takes credits. Receive never acts.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual void Receive(int port, bool ok) = 0;
};

// One thing that happens once. Thread safe.
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
  // A lock, since the waiter is the user's thread, which has no mailbox; taken a few times a step.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

// What a worker that would sleep can do instead, for others who have not asked it to.
class IdleWork {
 public:
  virtual ~IdleWork() = default;
  // The worker's thread, when Take() of its `mail` has just returned nullptr: works, asleep when there is
  // nothing to do, and returns when `mail` has a message or at the end of such work. False, at once, when
  // somebody else does this work.
  virtual bool RunUntil(Mailbox* mail) = 0;
  // Any thread: ends a sleep inside RunUntil.
  virtual void Wake() = 0;
  // The worker's thread, which has other things to do: what it has asked for is somebody else's from here on.
  virtual void GoesOn() = 0;
};

class Worker {
 public:
  virtual ~Worker() = default;
  // From any thread.
  virtual void Post(Message* message) = 0;
  // From any thread, once its work begins: what to do in place of sleeping.
  virtual void WhenIdle(std::shared_ptr<IdleWork>) {}
  // The rest from the worker's own thread only.
  virtual const IdleWork* idle_work() const { return nullptr; }
  // Gives a credit to a port of an actor on this worker.
  virtual void Tell(const Receiver* from, Receiver* to, int port, bool ok) = 0;
  // Queues what is ready, if it is not queued yet. `first` for what others wait for and takes no time itself.
  virtual void Ready(Runnable* runnable, bool first) = 0;
  virtual void Forget(Runnable* runnable) = 0;  // takes it out of the queue
  // Time spent so far with nothing to receive or run, in Ticks(). Not of a worker that is the caller's
  // thread.
  virtual int64_t idle_ticks() const { return 0; }
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual int workers() const = 0;
  virtual Worker* worker(int index) = 0;
  // Blocks the caller, not a worker, until `completion` is done. A failure says that no event is left that
  // could bring it about; only an executor that sees all events can tell.
  virtual Status Await(Completion* completion) = 0;
  // Returns once every message posted before the call has been received.
  virtual void Fence() = 0;
};

}  // namespace oneflow_like
