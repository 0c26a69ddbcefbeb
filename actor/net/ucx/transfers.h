// Transfers in flight: one Operation for each send or receive that UCX has begun, one UcxIncoming for each
// message that arrived and was not yet received or dropped. Both are reused, so that messages cost no
// allocation. All on the network's thread.
#pragma once

#include <ucp/api/ucp.h>

#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "actor/net/ucx/network.h"

namespace oneflow_like {

struct Peer;
class UcxIncoming;

constexpr size_t kMaxHeader = 1024;  // of a message, by the contract of Network::Send

// Precedes the sender's own header.
struct Envelope {
  uint32_t process = 0;   // the sender
  uint32_t sequence = 0;  // number of the message, by receiver and channel
  uint32_t channel = 0;
  uint32_t reserved = 0;  // keeps the following bytes aligned
};

// Links objects in a ring, so that one can be removed without a search.
struct RingLink {
  RingLink* previous = this;
  RingLink* next = this;
  void Remove() {
    previous->next = next;
    next->previous = previous;
    previous = next = this;
  }
};

template <typename T>
class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  bool empty() const { return head_.next == &head_; }
  T* front() { return static_cast<T*>(head_.next); }
  void Add(RingLink* thing) {
    thing->previous = head_.previous;
    thing->next = &head_;
    thing->previous->next = head_.previous = thing;
  }
  // `f` may remove its argument.
  template <typename F>
  void ForEach(F f) {
    for (RingLink *link = head_.next, *next; link != &head_; link = next) {
      next = link->next;
      f(static_cast<T*>(link));
    }
  }

 private:
  RingLink head_;
};

struct Operation : RingLink {
  Peer* peer = nullptr;
  Transfer* done = nullptr;
  void* request = nullptr;  // UCX's, while in flight
  bool greeting = false;    // opens a connection (Peer::Opening)
  // For a send.
  const void* data = nullptr;
  size_t bytes = 0, header_bytes = 0;
  alignas(16) char header[sizeof(Envelope) + kMaxHeader];  // UCX reads it until the send has ended
};

template <typename T>
class FreeList {
 public:
  ~FreeList() {
    for (T* thing : free_) ::delete thing;
  }
  T* Take() {
    if (free_.empty()) return new T();
    T* thing = free_.back();
    free_.pop_back();
    return thing;
  }
  void Give(T* thing) { free_.push_back(thing); }

 private:
  std::vector<T*> free_;
};

// The owner of incoming messages, to which they return.
class IncomingHome {
 public:
  virtual ~IncomingHome() = default;
  virtual void ReceiveFrom(Peer* peer, void* descriptor, void* to, size_t bytes, Transfer* done) = 0;
  virtual void Release(void* descriptor) = 0;
  virtual void GoHome(UcxIncoming* incoming) = 0;
};

class UcxIncoming : public Incoming, public RingLink {
 public:
  void Arrive(IncomingHome* home, Peer* peer, void* descriptor, size_t bytes, bool here) {
    home_ = home;
    peer_ = peer;
    descriptor_ = descriptor;
    bytes_ = bytes;
    here_ = here;
    delivering_ = true;
  }
  // Called when UCX's handler is about to return: whether the descriptor is kept. Otherwise UCX takes it
  // back.
  bool Keep() {
    delivering_ = false;
    return descriptor_ != nullptr;
  }

  size_t bytes() const override { return bytes_; }
  const void* data() const override { return bytes_ == 0 ? this : here_ ? descriptor_ : nullptr; }

  void Receive(void* to, Transfer* done) override {
    void* descriptor = descriptor_;
    descriptor_ = nullptr;
    if (bytes_ != 0 && descriptor == nullptr) return done->TransferDone(false);  // the network has ended
    if (bytes_ != 0 && !here_) return home_->ReceiveFrom(peer_, descriptor, to, bytes_, done);
    if (bytes_ != 0) std::memcpy(to, descriptor, bytes_);
    if (bytes_ != 0 && !delivering_) home_->Release(descriptor);
    done->TransferDone(true);
  }

  // Called when the network ends; the holder of this object may still destroy it.
  void Leave() {
    Drop();
    home_ = nullptr;
  }

  // Returns to its home instead of being destroyed.
  static void operator delete(UcxIncoming* self, std::destroying_delete_t) {
    self->Drop();
    if (self->home_ != nullptr) return self->home_->GoHome(self);
    self->~UcxIncoming();
    ::operator delete(self);
  }

 private:
  void Drop() {
    if (descriptor_ != nullptr && !delivering_) home_->Release(descriptor_);
    descriptor_ = nullptr;
  }

  IncomingHome* home_ = nullptr;
  Peer* peer_ = nullptr;
  void* descriptor_ = nullptr;  // UCX's: the data, or a handle for pulling it
  size_t bytes_ = 0;
  bool here_ = false;
  bool delivering_ = false;  // UCX's handler has not returned yet; its return value releases the descriptor
};

}  // namespace oneflow_like
