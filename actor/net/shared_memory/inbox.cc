#include "actor/net/shared_memory/inbox.h"

#include <glog/logging.h>

#include <cstring>

namespace oneflow_like {
namespace {

constexpr uint32_t kSlots = 16;  // a power of two: counters wrap around

}  // namespace

struct Inbox::Head {
  alignas(64) std::atomic<uint32_t> asleep{0};
};

struct Inbox::Lane {
  struct Slot {
    uint32_t bytes;
    char data[kMaxBytes];
  };
  alignas(64) std::atomic<uint32_t> written{0};  // by the sender
  alignas(64) std::atomic<uint32_t> read{0};     // by the owner
  alignas(64) Slot slots[kSlots];
};

Inbox::Lane* Inbox::LaneOf(void* inbox, int sender) {
  return reinterpret_cast<Lane*>(static_cast<char*>(inbox) + sizeof(Head)) + sender;
}

size_t Inbox::BytesFor(int processes) { return sizeof(Head) + processes * sizeof(Lane); }

Inbox::Inbox(int me, int processes, std::unique_ptr<Memory> memory)
    : me_(me), memory_(std::move(memory)), peers_(processes) {
  static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared by processes");
  CHECK_GE(memory_->bytes(), BytesFor(processes));
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory_->data()) % alignof(Lane), 0u);
  // All zeros is a Head that is awake and lanes that are empty; pages that nobody writes to are never there.
}

void Inbox::Connect(int peer, void* inbox) {
  if (peers_[peer] != nullptr) return;
  peers_[peer] = inbox;
  connected_.push_back(peer);
}

Inbox::Outcome Inbox::Send(int peer, const void* message, size_t bytes) {
  CHECK_LE(bytes, kMaxBytes);
  Lane* lane = LaneOf(peers_[peer], me_);
  const uint32_t at = lane->written.load(std::memory_order_relaxed);
  if (at - lane->read.load(std::memory_order_acquire) == kSlots) return Outcome::kFull;
  Lane::Slot& slot = lane->slots[at % kSlots];
  slot.bytes = static_cast<uint32_t>(bytes);
  std::memcpy(slot.data, message, bytes);
  // The owner says that it sleeps and then looks at `written`, we the other way round: one of us sees the
  // other.
  lane->written.store(at + 1, std::memory_order_seq_cst);
  Head* head = HeadOf(peers_[peer]);
  const bool ring = head->asleep.load(std::memory_order_seq_cst) != 0 && head->asleep.exchange(0) != 0;
  return ring ? Outcome::kRing : Outcome::kSent;
}

bool Inbox::Poll() {
  bool any = false;
  for (size_t i = 0; i < connected_.size(); ++i) {
    const int peer = connected_[i];
    Lane* lane = LaneOf(memory_->data(), peer);
    uint32_t at = lane->read.load(std::memory_order_relaxed);
    // What comes meanwhile waits for the next turn.
    for (const uint32_t end = lane->written.load(std::memory_order_acquire); at != end; ++at) {
      const Lane::Slot& slot = lane->slots[at % kSlots];
      char message[kMaxBytes];
      const size_t bytes = slot.bytes;
      CHECK_LE(bytes, kMaxBytes);
      std::memcpy(message, slot.data, bytes);
      lane->read.store(at + 1, std::memory_order_release);
      if (handler_) handler_(peer, message, bytes);
      any = true;
    }
  }
  return any;
}

bool Inbox::FallAsleep() {
  Head* head = HeadOf(memory_->data());
  head->asleep.store(1, std::memory_order_seq_cst);
  for (int peer : connected_) {
    const Lane* lane = LaneOf(memory_->data(), peer);
    if (lane->written.load(std::memory_order_seq_cst) == lane->read.load(std::memory_order_relaxed)) continue;
    WakeUp();
    return false;
  }
  return true;
}

void Inbox::WakeUp() {
  Head* head = HeadOf(memory_->data());
  if (head->asleep.load(std::memory_order_relaxed) != 0) head->asleep.store(0, std::memory_order_relaxed);
}

}  // namespace oneflow_like
