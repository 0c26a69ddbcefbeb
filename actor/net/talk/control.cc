// Texts between processes: sending, pulling, and handing on in order.
#include "actor/net/talk/control.h"

#include <glog/logging.h>

#include <cstring>
#include <utility>

namespace oneflow_like {
namespace {

struct Header {
  ControlKind kind;
  int32_t unused = 0;
  int64_t number;
};

}  // namespace

struct ControlChannel::Sending : Transfer {
  ControlChannel* channel;
  std::shared_ptr<const std::string> text;

  void TransferDone(bool ok) override {
    ControlChannel* owner = channel;
    delete this;
    if (--owner->sends_ == 0) owner->idle_();
  }
};

struct ControlChannel::Arrival : Transfer {
  ControlChannel* channel;
  int from;
  Header header;
  std::unique_ptr<Incoming> data;
  std::string text;
  bool done = false, ok = false;

  void TransferDone(bool whole) override {
    done = true;
    ok = whole;
    channel->Arrived(this);
  }
};

ControlChannel::ControlChannel(Network* network, int processes, Receiver receiver, std::function<void()> idle)
    : network_(network),
      receiver_(std::move(receiver)),
      idle_(std::move(idle)),
      arriving_(processes),
      receiving_(processes, false) {}

ControlChannel::~ControlChannel() = default;

void ControlChannel::Send(int to, ControlKind kind, int64_t number, std::shared_ptr<const std::string> text) {
  Header header{.kind = kind, .number = number};
  auto* sending = new Sending;
  sending->channel = this;
  sending->text = std::move(text);
  ++sends_;
  const std::string& data = *sending->text;
  network_->Send(to, Network::kControl, &header, sizeof(header), data.data(), data.size(), sending);
}

void ControlChannel::Deliver(int from, const void* header, size_t header_bytes,
                             std::unique_ptr<Incoming> data) {
  CHECK_EQ(header_bytes, sizeof(Header));
  auto arrival = std::make_unique<Arrival>();
  arrival->channel = this;
  arrival->from = from;
  std::memcpy(&arrival->header, header, sizeof(Header));
  arrival->text.resize(data->bytes());
  arrival->data = std::move(data);
  Arrival* kept = arrival.get();
  arriving_[from].push_back(std::move(arrival));
  kept->data->Receive(kept->text.data(), kept);
}

// Hands on what is whole and next of its sender. One that was cut off is forgotten: its sender is lost, and
// whoever waits for it hears that from the network.
void ControlChannel::Arrived(Arrival* arrival) {
  int from = arrival->from;
  if (arrival->ok && arrival->header.kind == ControlKind::kAbort) {
    arrival->ok = false;  // handed on here
    receiver_(from, ControlKind::kAbort, arrival->header.number, arrival->text);
  }
  if (receiving_[from]) return;  // a receiver has led back here; the loop below goes on
  receiving_[from] = true;
  std::deque<std::unique_ptr<Arrival>>& queue = arriving_[from];
  while (!queue.empty() && queue.front()->done) {
    std::unique_ptr<Arrival> next = std::move(queue.front());
    queue.pop_front();
    if (next->ok) receiver_(from, next->header.kind, next->header.number, next->text);
  }
  receiving_[from] = false;
}

}  // namespace oneflow_like
