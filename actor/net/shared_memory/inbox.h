// Short messages between the processes of one host, through shared memory: each process has an inbox in its
// region, with a lane for each sender. The network's thread checks it in every turn; while it sleeps, a
// sender wakes it by a message through the network.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "actor/net/ucx/network.h"
#include "core/device/device.h"

namespace oneflow_like {

class Inbox final : public Poller {
 public:
  static constexpr size_t kMaxBytes = 1020;  // of a message
  using Handler = std::function<void(int from, const void* message, size_t bytes)>;

  // Bytes of the memory, which must be zeroed, for a job of so many processes.
  static size_t BytesFor(int processes);
  // `memory` must be in this process's shared region. All other methods are for the network's thread.
  Inbox(int me, int processes, std::unique_ptr<Memory> memory);
  const void* address() const { return memory_->data(); }

  // From here on messages of `peer` are received, and can be sent to it. `inbox`: its address(), as mapped
  // here.
  void Connect(int peer, void* inbox);
  bool Connected(int peer) const { return peers_[peer] != nullptr; }
  // nullptr: messages are dropped.
  void SetHandler(Handler handler) { handler_ = std::move(handler); }

  enum class Outcome { kSent, kRing, kFull };  // kRing: sent, and the receiver must be woken
  Outcome Send(int peer, const void* message, size_t bytes);

  bool Poll() override;
  bool FallAsleep() override;
  void WakeUp() override;

 private:
  struct Lane;
  struct Head;
  static Head* HeadOf(void* inbox) { return static_cast<Head*>(inbox); }
  static Lane* LaneOf(void* inbox, int sender);

  const int me_;
  const std::unique_ptr<Memory> memory_;
  std::vector<void*> peers_;  // by process
  std::vector<int> connected_;
  Handler handler_;
};

}  // namespace oneflow_like
