// Control messages between the processes of a job: texts with a kind and a number, of any size, delivered
// whole and in the order their sender sent them. An abort does not wait for earlier texts. All on the
// network's thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actor/net/ucx/network.h"

namespace oneflow_like {

enum class ControlKind : int32_t {
  kGatherPart,      // to process 0: `what` and a text (actor/net/talk/gather.h)
  kGatherResult,    // from process 0: all texts
  kGatherMismatch,  // from process 0: the error
  kAbort,           // the job has failed, and why; number: the exit code
  kRuntimeFailure,  // runtime `number` has failed there, and why
  kGoodbye,         // its program has ended; number 1: successfully
};

class ControlChannel final : public Channel {
 public:
  using Receiver = std::function<void(int from, ControlKind kind, int64_t number, const std::string& text)>;

  // `idle` is called whenever the last send in flight has ended. Must be destroyed after the network.
  ControlChannel(Network* network, int processes, Receiver receiver, std::function<void()> idle);
  ~ControlChannel() override;

  void Send(int to, ControlKind kind, int64_t number, std::shared_ptr<const std::string> text);
  bool idle() const { return sends_ == 0; }

  void Deliver(int from, const void* header, size_t header_bytes, std::unique_ptr<Incoming> data) override;

 private:
  struct Sending;
  struct Arrival;
  void Arrived(Arrival* arrival);

  Network* const network_;
  const Receiver receiver_;
  const std::function<void()> idle_;
  int64_t sends_ = 0;
  std::vector<std::deque<std::unique_ptr<Arrival>>> arriving_;  // by sender, in its order
  std::vector<bool> receiving_;                                 // by sender: Arrived is running
};

}  // namespace oneflow_like
