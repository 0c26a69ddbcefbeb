// A network for tests of one part: clocks are the test's, what is posted runs at once, and what is sent is
// kept.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "actor/net/ucx/network.h"

namespace oneflow_like {

class StubNetwork : public Network {
 public:
  int64_t offset = 0;                               // of process 0's clock
  std::map<int, int64_t> offsets;                   // of others' clocks that are not like that one
  std::map<int, std::vector<std::string>> sent_to;  // headers, by receiver

  std::string address() const override { return ""; }
  void SetChannel(int, Channel*) override {}
  void SetFailureListener(std::function<void(const Failure&)>) override {}
  void Connect(int, const std::vector<PeerInfo>&) override {}
  void Post(Message* message) override { message->Receive(); }
  void ExpectEnd(int) override {}
  void StopHeartbeats() override {}
  ClockOffset OffsetTo(int peer) const override {
    const auto own = offsets.find(peer);
    return {own == offsets.end() ? offset : own->second, 100000, 100000};
  }
  Counts sent() const override { return {}; }
  void Send(int to, int, const void* header, size_t header_bytes, const void*, size_t,
            Transfer* done) override {
    sent_to[to].emplace_back(static_cast<const char*>(header), header_bytes);
    if (done != nullptr) done->TransferDone(true);
  }
};

}  // namespace oneflow_like
