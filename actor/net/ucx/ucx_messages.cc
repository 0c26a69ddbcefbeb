// Messages of the network (see ucx_network.h): how they are sent, arrive, and are received or dropped.
#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "actor/net/ucx/ucx_network.h"

namespace oneflow_like {

// Sending and receiving.

Operation* UcxNetwork::Begin(Peer* peer, Transfer* done) {
  Operation* operation = operations_.Take();
  operation->peer = peer;
  operation->done = done;
  operation->request = nullptr;
  operation->greeting = false;
  peer->pending.Add(operation);
  return operation;
}

void UcxNetwork::Begun(Operation* operation, ucs_status_ptr_t result) {
  if (UCS_PTR_IS_PTR(result)) {
    operation->request = result;
  } else {
    Ended(operation, UCS_PTR_STATUS(result));
  }
}

void UcxNetwork::OnSent(void* request, ucs_status_t status, void* operation) {
  auto* ended = static_cast<Operation*>(operation);
  ucp_request_free(request);
  ended->peer->network->Ended(ended, status);
}

void UcxNetwork::OnReceived(void* request, ucs_status_t status, size_t bytes, void* operation) {
  OnSent(request, status, operation);
}

void UcxNetwork::Ended(Operation* operation, ucs_status_t status) {
  Peer* peer = operation->peer;
  if (status != UCS_OK) Lose(peer, LossReason(status));
  if (operation->greeting && status == UCS_OK) Greeted(peer, &peer->greetings_went);
  if (status == UCS_OK || peer->state == Peer::kGone) return Tell(operation, status == UCS_OK);
  // The listener hears of the loss first, and neither is told from inside a call of theirs.
  operation->Remove();
  peer->failed.Add(operation);
}

void UcxNetwork::Tell(Operation* operation, bool ok) {
  Transfer* done = operation->done;
  operation->Remove();
  operations_.Give(operation);
  if (done != nullptr) done->TransferDone(ok);
}

void UcxNetwork::Send(int to, int channel, const void* header, size_t header_bytes, const void* data,
                      size_t bytes, Transfer* done) {
  CHECK_NE(to, me_);
  CHECK_LE(header_bytes, kMaxHeader);
  CHECK(bytes == 0 || done != nullptr);
  Peer* peer = &peers_.at(to);
  if (peer->state == Peer::kGone || closing_) {
    if (done != nullptr) done->TransferDone(false);
    return;
  }
  Operation* operation = Begin(peer, done);
  if (peer->state == Peer::kFailing) return Ended(operation, UCS_ERR_NOT_CONNECTED);
  Envelope envelope;
  envelope.process = me_;
  envelope.sequence = peer->sent.at(channel)++;
  envelope.channel = channel;
  std::memcpy(operation->header, &envelope, sizeof envelope);
  if (header_bytes != 0) std::memcpy(operation->header + sizeof envelope, header, header_bytes);
  operation->header_bytes = sizeof envelope + header_bytes;
  operation->data = data;
  operation->bytes = bytes;
  sent_messages_.fetch_add(1, std::memory_order_relaxed);
  sent_bytes_.fetch_add(static_cast<int64_t>(header_bytes + bytes), std::memory_order_relaxed);
  if (peer->opening == Peer::kOpen) return SendNow(operation);
  operation->Remove();
  peer->waiting.Add(operation);
}

void UcxNetwork::SendNow(Operation* operation) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  // What fits one segment of UCX's (ucx_worker.cc) needs no answer before it goes: 1 MiB to three others
  // takes 0.15 ms in pieces of kEagerBytes, 0.25 in pieces that are pulled.
  param.flags = operation->bytes <= kEagerBytes ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
  param.cb.send = OnSent;
  param.user_data = operation;
  Begun(operation, ucp_am_send_nbx(operation->peer->data, kMessage, operation->header,
                                   operation->header_bytes, operation->data, operation->bytes, &param));
}

// Opening of connections (Peer::Opening).

// UCS_ERR_NO_RESOURCE: it cannot go now.
ucs_status_t UcxNetwork::SendAtOnce(ucp_ep_h endpoint, unsigned id, const void* header, size_t header_bytes) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
  const ucs_status_ptr_t result = ucp_am_send_nbx(endpoint, id, header, header_bytes, nullptr, 0, &param);
  return UCS_PTR_STATUS(result);  // a macro: it names its argument twice
}

void UcxNetwork::Greet(Peer* peer) {
  const uint32_t process = me_;
  ucs_status_t status = SendAtOnce(peer->data, kGreeting, &process, sizeof process);
  if (status == UCS_ERR_NO_RESOURCE) return;
  if (status != UCS_OK) return Lose(peer, LossReason(status));
  Greeted(peer, &peer->greetings_went);
}

ucs_status_t UcxNetwork::OnGreeting(void* self, const void* header, size_t header_bytes, void* data,
                                    size_t bytes, const ucp_am_recv_param_t* param) {
  auto* network = static_cast<UcxNetwork*>(self);
  Peer* peer = network->Sender(header, header_bytes, sizeof(uint32_t));
  if (peer != nullptr) network->Greeted(peer, &peer->greetings_came);
  return UCS_OK;
}

// One more has gone or come.
void UcxNetwork::Greeted(Peer* peer, int* greetings) {
  ++*greetings;
  if (peer->state != Peer::kUp) return;
  if (peer->opening == Peer::kGreeting && peer->greetings_went == 1 && peer->greetings_came >= 1) {
    peer->opening = Peer::kAcquainting;
    Acquaint(peer);
  }
  if (peer->opening == Peer::kAcquainting && peer->greetings_went == 2 && peer->greetings_came == 2)
    Open(peer);
}

void UcxNetwork::Acquaint(Peer* peer) {
  Operation* operation = Begin(peer, nullptr);
  operation->greeting = true;
  const uint32_t process = me_;
  std::memcpy(operation->header, &process, sizeof process);
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_RNDV;
  param.cb.send = OnSent;
  param.user_data = operation;
  Begun(operation, ucp_am_send_nbx(peer->data, kGreeting, operation->header, sizeof process,
                                   operation->header, sizeof process, &param));
}

void UcxNetwork::Open(Peer* peer) {
  peer->opening = Peer::kOpen;
  while (peer->state == Peer::kUp && !peer->waiting.empty()) {
    Operation* operation = peer->waiting.front();
    operation->Remove();
    peer->pending.Add(operation);
    SendNow(operation);
  }
}

void UcxNetwork::ReceiveFrom(Peer* peer, void* descriptor, void* to, size_t bytes, Transfer* done) {
  Operation* operation = Begin(peer, done);
  if (peer->state != Peer::kUp) {
    Release(descriptor);
    return Ended(operation, UCS_ERR_NOT_CONNECTED);
  }
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = OnReceived;
  param.user_data = operation;
  Begun(operation, ucp_am_recv_data_nbx(worker_->get(), descriptor, to, bytes, &param));
}

// Arrivals.

// Who sent this; nullptr when it is nobody we know, or nobody any more.
Peer* UcxNetwork::Sender(const void* header, size_t header_bytes, size_t expected) {
  uint32_t process = 0;
  if (header_bytes >= expected) std::memcpy(&process, header, sizeof process);
  if (header_bytes < expected || process >= peers_.size() || static_cast<int>(process) == me_) {
    LOG(WARNING) << "dropped a message of " << header_bytes << " bytes of header from no process of this job";
    return nullptr;
  }
  Peer* peer = &peers_[process];
  if (peer->state != Peer::kUp) return nullptr;
  peer->heard = now_;
  return peer;
}

ucs_status_t UcxNetwork::OnMessage(void* self, const void* header, size_t header_bytes, void* data,
                                   size_t bytes, const ucp_am_recv_param_t* param) {
  auto* network = static_cast<UcxNetwork*>(self);
  Peer* peer = network->Sender(header, header_bytes, sizeof(Envelope));
  if (peer == nullptr || network->closing_) return UCS_OK;
  bool here = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  return network->Arrived(peer, static_cast<const char*>(header), header_bytes, data, bytes, here);
}

ucs_status_t UcxNetwork::Arrived(Peer* peer, const char* header, size_t header_bytes, void* data,
                                 size_t bytes, bool here) {
  Envelope envelope;
  std::memcpy(&envelope, header, sizeof envelope);
  header += sizeof envelope;
  header_bytes -= sizeof envelope;
  if (envelope.channel >= kChannels || channels_[envelope.channel] == nullptr) {
    LOG(WARNING) << "dropped a message from process " << peer->process << " on channel " << envelope.channel
                 << ", which is not open here";
    return UCS_OK;
  }
  UcxIncoming* incoming = NewIncoming(peer, bytes == 0 ? nullptr : data, bytes, here);
  InOrder<Held>& order = peer->arriving[envelope.channel];
  if (order.Due(envelope.sequence)) {
    order.Advance();
    // UCX puts the header behind the data, wherever that ends; ours is aligned.
    alignas(16) char aligned[kMaxHeader];
    std::memcpy(aligned, header, std::min(header_bytes, kMaxHeader));
    channels_[envelope.channel]->Deliver(peer->process, aligned, header_bytes,
                                         std::unique_ptr<Incoming>(incoming));
    // It may be gone by now, but then it is only in the free list.
    bool keep = incoming->Keep();
    DeliverHeld(peer, envelope.channel);
    return keep ? UCS_INPROGRESS : UCS_OK;
  }
  order.Hold(envelope.sequence, {std::string(header, header_bytes), std::unique_ptr<Incoming>(incoming)});
  return incoming->Keep() ? UCS_INPROGRESS : UCS_OK;
}

void UcxNetwork::DeliverHeld(Peer* peer, uint32_t channel) {
  Held held;
  while (peer->arriving[channel].Take(&held)) {
    peer->arriving[channel].Advance();
    channels_[channel]->Deliver(peer->process, held.header.data(), held.header.size(), std::move(held.data));
  }
}

}  // namespace oneflow_like
