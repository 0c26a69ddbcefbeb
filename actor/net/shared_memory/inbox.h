// Short messages between the processes of one host, through memory that they share: each process has an inbox
// in its region, with a lane for each sender. The network's thread looks into it in every turn; while it
// sleeps a sender rings it by a message through the network.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "actor/net/ucx/network.h"
#include "core/device.h"

namespace oneflow_like {

class Inbox final : public Poller {
 public:
  static constexpr size_t kMaxBytes = 1020;  // of a message
  using Handler = std::function<void(int from, const void* message, size_t bytes)>;

  // Memory for a job of so many processes, zeroed.
  static size_t BytesFor(int processes);
  // `memory` is in this process's shared region. Then all on the network's thread.
  Inbox(int me, int processes, std::unique_ptr<Memory> memory);
  const void* address() const { return memory_->data(); }

  // From here on messages of `peer` are looked for, and can be sent to it. `inbox`: its address() as it is
  // here.
  void Connect(int peer, void* inbox);
  bool Connected(int peer) const { return peers_[peer] != nullptr; }
  // nullptr: what comes is dropped.
  void SetHandler(Handler handler) { handler_ = std::move(handler); }

  enum class Outcome { kSent, kRing, kFull };  // kRing: sent, and the receiver must be rung
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
