// Communication between threads: intrusive messages, and a mailbox to which many threads post and which one
// thread empties. Nothing is allocated; a message belongs to its creator and is in one mailbox at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace oneflow_like {

class Message {
 public:
  virtual ~Message() = default;
  // Runs on the receiver's thread. The message may be posted again, or destroyed, from here on.
  virtual void Receive() = 0;
  // Messages of one channel to one receiver are received in the order they were posted, on every executor.
  virtual const void* channel() const { return this; }

 private:
  friend class Mailbox;
  Message* next_ = nullptr;
};

class Mailbox {
 public:
  // Any thread. Messages of one poster are taken in its order.
  void Post(Message* message) {
    if (Put(message)) EndWait();
  }
  // Any thread, when Put has returned true (the owner sleeps): ends its Wait.
  void EndWait() {
    wakes_.fetch_add(1, std::memory_order_release);
    wakes_.notify_one();
  }

  // Post for owners that sleep in their own way, between FallAsleep and WakeUp: if it returns true, the
  // caller must wake the owner.
  bool Put(Message* message) {
    Message* head = head_.load(std::memory_order_relaxed);
    do {
      message->next_ = head == asleep() ? nullptr : head;
    } while (
        !head_.compare_exchange_weak(head, message, std::memory_order_acq_rel, std::memory_order_relaxed));
    return head == asleep();
  }

  // The owner's thread: from here on Put returns true. Returns false if there is a message already. REQUIRES:
  // Take() has just returned nullptr.
  bool FallAsleep() {
    // The head itself says that the owner sleeps, so a post to a waking owner costs one exchange and no
    // fence.
    Message* empty = nullptr;
    return head_.compare_exchange_strong(empty, asleep(), std::memory_order_acq_rel);
  }
  // The owner's thread, after FallAsleep, before Take().
  void WakeUp() {
    Message* sleeping = asleep();
    head_.compare_exchange_strong(sleeping, nullptr, std::memory_order_acq_rel);
  }

  // Any thread: whether something was posted that the owner has not begun to take.
  bool posted() const {
    const Message* head = head_.load(std::memory_order_acquire);
    return head != nullptr && head != asleep();
  }

  // The owner's thread: the next message, or nullptr.
  Message* Take() {
    if (taken_ == nullptr) {
      if (head_.load(std::memory_order_relaxed) == nullptr) return nullptr;
      Reverse(head_.exchange(nullptr, std::memory_order_acquire));
    }
    Message* message = taken_;
    taken_ = message->next_;
    return message;
  }

  // The owner's thread: returns once there is a message. Spins for at most `spin` before it sleeps.
  // REQUIRES: Take() has just returned nullptr.
  void Wait(std::chrono::nanoseconds spin) {
    if (spin.count() > 0 && Spin(spin)) return;
    if (!FallAsleep()) return;
    for (;;) {
      uint32_t seen = wakes_.load(std::memory_order_acquire);
      if (head_.load(std::memory_order_acquire) != asleep()) return;
      wakes_.wait(seen, std::memory_order_acquire);
    }
  }

 private:
  Message* asleep() const {
    return reinterpret_cast<Message*>(const_cast<Mailbox*>(this));
  }  // an address no message has

  void Reverse(Message* newest) {
    while (newest != nullptr) {
      Message* older = newest->next_;
      newest->next_ = taken_;
      taken_ = newest;
      newest = older;
    }
  }

  bool Spin(std::chrono::nanoseconds spin) {
    auto until = std::chrono::steady_clock::now() + spin;
    do {
      for (int i = 0; i < 32; ++i) {
        if (head_.load(std::memory_order_relaxed) != nullptr) return true;
#if defined(__x86_64__)
        _mm_pause();
#endif
      }
    } while (std::chrono::steady_clock::now() < until);
    return false;
  }

  alignas(64) std::atomic<Message*> head_{nullptr};  // newest first
  std::atomic<uint32_t> wakes_{0};
  alignas(64) Message* taken_ = nullptr;  // oldest first; the owner's
};

}  // namespace oneflow_like
