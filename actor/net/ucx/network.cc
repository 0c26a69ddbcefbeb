// Life, thread, heartbeats and losses of the network (see ucx_network.h).
#include "actor/net/ucx/network.h"

#include <glog/logging.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "actor/net/ucx/ucx_network.h"
#include "core/device/parallel_for.h"
#include "core/error.h"
#include "core/formatted.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace oneflow_like {
namespace {

constexpr int kMessagesInTurn = 32;
constexpr size_t kFirstPings = 10;       // right after Connect, for the clock
constexpr int64_t kFlushTime = kSecond;  // for what is under way when the network ends
constexpr int64_t kForever = INT64_MAX;
constexpr int64_t kDriverSpin = 50'000;  // of a worker, before it sleeps

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

int64_t ClockNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

std::string LossReason(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:  // what UCX makes of a reset TCP connection
    case UCS_ERR_NOT_CONNECTED:
      return "its connection was closed";
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
      return "it cannot be reached";
    case UCS_ERR_TIMED_OUT:
      return "its connection timed out";
    default:
      return Cat("its connection broke (", ucs_status_string(status), ")");
  }
}

// Life and death.

UcxNetwork::UcxNetwork(const NetworkOptions& options)
    : options_(options),
      interval_(static_cast<int64_t>(options.peer_timeout * kSecond / 20)),
      worker_(std::make_unique<UcxWorker>(options)),
      duty_(std::make_shared<Duty>(this, options.spin_us == 0)) {
  CHECK_GE(worker_->max_header(), sizeof(Envelope) + kMaxHeader);
  CHECK_GT(interval_, 0);
  SetHandler(kMessage, OnMessage);
  SetHandler(kPing, OnPing);
  SetHandler(kPong, OnPong);
  SetHandler(kGreeting, OnGreeting);
}

UcxNetwork::~UcxNetwork() {
  if (thread_.joinable()) {
    duty_->End();
    thread_.join();
  }
  // UCX may have made endpoints of its own to answer who was given up, and 1.13.1 aborts when words wait on
  // them. That job has failed, and the process ends.
  static auto* abandoned = new std::vector<std::unique_ptr<UcxWorker>>;
  if (gave_up_) abandoned->push_back(std::move(worker_));
  worker_.reset();
  // Should UCX have kept anything to the last, it has forgotten it now.
  ForPeers([&](Peer* peer) {
    while (!peer->pending.empty()) Tell(peer->pending.front(), false);
  });
}

void UcxNetwork::SetHandler(unsigned id, ucp_am_recv_callback_t handler) {
  ucp_am_handler_param_t param = {};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                     UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = id;
  param.flags = UCP_AM_FLAG_WHOLE_MSG | (id == kMessage ? UCP_AM_FLAG_PERSISTENT_DATA : 0);
  param.cb = handler;
  param.arg = this;
  CHECK_EQ(ucp_worker_set_am_recv_handler(worker_->get(), &param), UCS_OK);
}

void UcxNetwork::Connect(int me, const std::vector<PeerInfo>& peers) {
  me_ = me;
  last_pass_ = now_ = ClockNow();  // what passes until the thread runs is no silence of others either
  offsets_.resize(peers.size());
  for (size_t process = 0; process < peers.size(); ++process) {
    Peer& peer = peers_.emplace_back();
    peer.network = this;
    peer.process = static_cast<int>(process);
    peer.heard = now_;
  }
  // UCX pairs the endpoints of two processes in the order they were made, which is the same on both sides.
  ForPeers([&](Peer* peer) {
    peer->data = MakeEndpoint(peer, peers[peer->process]);
    peer->beats = MakeEndpoint(peer, peers[peer->process]);
  });
  greeting_ = true;
  thread_ = std::thread([this] { Run(); });
}

ucp_ep_h UcxNetwork::MakeEndpoint(Peer* peer, const PeerInfo& info) {
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(info.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = OnEndpointError;
  params.err_handler.arg = peer;
  ucp_ep_h endpoint = nullptr;
  ucs_status_t status = ucp_ep_create(worker_->get(), &params, &endpoint);
  if (status != UCS_OK)
    Fail("process ", peer->process, " on host ", info.host, " cannot be reached from process ", me_, ": ",
         ucs_status_string(status));
  return endpoint;
}

// Heartbeats.

// False: it cannot go now. Later the line is full, and more would not help.
bool UcxNetwork::SendBeat(Peer* peer, unsigned id, const Beat& beat) {
  if (peer->state != Peer::kUp || peer->beats_broke != 0) return true;
  ucs_status_t status = SendAtOnce(peer->beats, id, &beat, sizeof beat);
  if (status != UCS_OK && status != UCS_ERR_NO_RESOURCE) BeatsBroke(peer);
  return status != UCS_ERR_NO_RESOURCE;
}

ucs_status_t UcxNetwork::OnPing(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                const ucp_am_recv_param_t* param) {
  auto* network = static_cast<UcxNetwork*>(self);
  Beat beat;
  Peer* peer = network->Sender(header, header_bytes, sizeof beat);
  if (peer == nullptr) return UCS_OK;
  peer->pings = true;
  std::memcpy(&beat, header, sizeof beat);
  beat.process = network->me_;
  beat.answer = ClockNow();
  network->SendBeat(peer, kPong, beat);
  return UCS_OK;
}

ucs_status_t UcxNetwork::OnPong(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                const ucp_am_recv_param_t* param) {
  auto* network = static_cast<UcxNetwork*>(self);
  Beat beat;
  Peer* peer = network->Sender(header, header_bytes, sizeof beat);
  if (peer == nullptr) return UCS_OK;
  std::memcpy(&beat, header, sizeof beat);
  int64_t heard = ClockNow();
  peer->clock.Add(beat.asked, beat.answer, heard);
  PeerClock::Sample best = peer->clock.Best(heard);
  {
    std::lock_guard<std::mutex> lock(network->offsets_mutex_);
    network->offsets_[peer->process] = {best.offset_ns, best.round_trip_ns, peer->clock.RoundTripLately()};
  }
  if (peer->clock.count() < kFirstPings) {
    beat = {static_cast<uint32_t>(network->me_), 0, ClockNow(), 0};
    network->SendBeat(peer, kPing, beat);
  }
  return UCS_OK;
}

Network::ClockOffset UcxNetwork::OffsetTo(int peer) const {
  std::lock_guard<std::mutex> lock(offsets_mutex_);
  return offsets_.at(peer);
}

// Until all connections are made.
void UcxNetwork::Greetings() {
  if (!greeting_) return;
  greeting_ = false;
  ForPeers([&](Peer* peer) {
    if (peer->state != Peer::kUp) return;
    if (peer->greetings_went == 0) Greet(peer);
    if (!peer->pinged) peer->pinged = SendBeat(peer, kPing, {static_cast<uint32_t>(me_), 0, ClockNow(), 0});
    greeting_ |= peer->greetings_went == 0 || !peer->pinged;
  });
}

// Both connections to and from every peer have carried something.
bool UcxNetwork::AllConnected() {
  bool connected = true;
  ForPeers([&](Peer* peer) {
    const bool made = peer->opening == Peer::kOpen && peer->pings && peer->clock.count() > 0;
    connected = connected && (made || peer->state != Peer::kUp);
  });
  return connected;
}

// When all are connected nobody of ours will make another connection.
void UcxNetwork::CloseDoors() {
  if (!doors_open_ || !AllConnected()) return;
  doors_open_ = false;
  worker_->ShutDoors(true);
}

void UcxNetwork::Beats() {
  // A process that did not listen cannot say that others were silent: of the time between two turns at most
  // three intervals count. They do count, or a process whose every turn is long would notice no silence.
  const int64_t absent = now_ - last_pass_ - 3 * interval_;
  if (absent > 0) ForPeers([&](Peer* peer) { peer->heard += absent; });
  last_pass_ = now_;
  if (now_ < next_beat_) return;
  next_beat_ = now_ + interval_;
  CloseDoors();
  ForPeers([&](Peer* peer) {
    if (peer->state == Peer::kGone && now_ - peer->gone > kFlushTime) Forget(peer);
    if (peer->state != Peer::kUp) return;
    if (peer->beats_broke != 0 && now_ - peer->beats_broke > 2 * interval_)
      return Lose(peer, LossReason(UCS_ERR_CONNECTION_RESET));
    const double limit = peer->greetings_came != 0 ? 0.6 * options_.peer_timeout : options_.start_timeout;
    const double silence = static_cast<double>(now_ - peer->heard) / kSecond;
    if (silence_counts_ && silence > limit)
      return Lose(peer, Formatted("nothing heard of it for %.1f s", silence));
    SendBeat(peer, kPing, {static_cast<uint32_t>(me_), 0, ClockNow(), 0});
  });
}

// Losses.

void UcxNetwork::OnEndpointError(void* peer, ucp_ep_h endpoint, ucs_status_t status) {
  auto* lost = static_cast<Peer*>(peer);
  // What the peer said last, perhaps that it ends, comes on the other endpoint; so that one has the word.
  if (endpoint != lost->data) return lost->network->BeatsBroke(lost);
  lost->network->Lose(lost, LossReason(status));
}

// Only notes it: UCX is in the middle of something.
void UcxNetwork::Lose(Peer* peer, std::string reason) {
  if (peer->state != Peer::kUp) return;
  peer->state = Peer::kFailing;
  peer->reason = std::move(reason);
  losses_ = true;
}

// True when there were any: UCX has much to do then.
bool UcxNetwork::TellLosses() {
  if (!losses_) return false;
  losses_ = false;
  ForPeers([&](Peer* peer) {
    if (peer->state != Peer::kFailing) return;
    peer->state = Peer::kGone;
    peer->gone = now_;
    if (!peer->end_expected && !closing_) {
      gave_up_ = true;
      if (listener_) listener_({peer->process, peer->reason});
    }
    CloseEndpoints(peer);
    for (InOrder<Held>& order : peer->arriving) order.Clear();
    while (!peer->failed.empty()) Tell(peer->failed.front(), false);
    while (!peer->waiting.empty()) Tell(peer->waiting.front(), false);
  });
  return true;
}

// Ends what UCX was given for a peer and still keeps. UCX 1.13.1 now and then says nothing more of a transfer
// that is pulled when its endpoint is closed; without a connection it moves nothing any more either. Should
// it have a word later, the operation is still there.
void UcxNetwork::Forget(Peer* peer) {
  std::vector<Transfer*> forgotten;
  peer->pending.ForEach([&](Operation* operation) {
    if (operation->done != nullptr) forgotten.push_back(operation->done);
    operation->done = nullptr;
  });
  if (!forgotten.empty())
    VLOG(1) << forgotten.size() << " transfers with process " << peer->process << " were left to UCX";
  for (Transfer* done : forgotten) done->TransferDone(false);
}

// By force, which ends what is under way.
void UcxNetwork::CloseEndpoints(Peer* peer) {
  Close(&peer->data);
  Close(&peer->beats);
}

void UcxNetwork::Close(ucp_ep_h* endpoint) {
  if (*endpoint == nullptr) return;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t request = ucp_ep_close_nbx(*endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  *endpoint = nullptr;
}

// The thread.

// One turn; false when there was nothing to do.
bool UcxNetwork::Pass() {
  bool busy = ucp_worker_progress(worker_->get()) != 0;
  for (const auto& poller : pollers_) busy |= poller->Poll();
  // A message may post the next one: UCX must have its turn all the same.
  for (int k = 0; k < kMessagesInTurn; ++k) {
    Message* message = duty_->mailbox()->Take();
    if (message == nullptr) break;
    message->Receive();
    busy = true;
  }
  now_ = ClockNow();
  Greetings();
  Beats();
  return TellLosses() || busy;
}

void UcxNetwork::Run() {
  pthread_setname_np(pthread_self(), "network");
  // A team here would be one too many for those of kernels to spin (core/system/spinning.h).
  SetParallelThreads(1);
  FlushDenormals();  // as workers do: a sum must not depend on who makes it
  duty_->Release();
  for (;;) {
    if (!duty_->TakeAwakened()) {
      duty_->AwaitTurn(-1, kForever);
      continue;
    }
    WakeUp();
    if (duty_->ended()) break;  // keeps the duty for good
    if (RunOnDuty()) {
      const int64_t next_beat = next_beat_;
      duty_->Release();
      duty_->AwaitTurn(worker_->event_fd(), next_beat);
    } else {
      duty_->Leave();
      duty_->AwaitTurn(-1, kForever);
    }
  }
  ShutDown();
}

// Until there is nothing to do: true, and UCX and the mailbox sleep. Or until a worker wants the duty, or the
// end.
bool UcxNetwork::RunOnDuty() {
  busy_ = now_ = ClockNow();
  const int64_t spin = int64_t{1000} * options_.spin_us;
  while (!duty_->ended()) {
    if (Pass()) {
      busy_ = now_;
      continue;
    }
    if (duty_->Wanted()) return false;
    if (now_ - busy_ < spin) {
      Pause();
    } else if (FallAsleep()) {
      return true;
    }
  }
  return false;
}

void UcxNetwork::DriveUntil(Mailbox* mail) {
  WakeUp();
  busy_ = now_ = ClockNow();
  while (!mail->posted() && !duty_->ended()) {
    if (Pass()) {
      busy_ = now_;
    } else if (now_ - busy_ < kDriverSpin) {
      sched_yield();  // somebody else may need the core to bring what is awaited
    } else if (FallAsleep()) {
      if (mail->FallAsleep()) {
        if (!duty_->ended()) duty_->Sleep(worker_->event_fd(), next_beat_);
        mail->WakeUp();
      }
      WakeUp();
      busy_ = ClockNow();
    }
  }
}

void UcxNetwork::TakeTurn() {
  WakeUp();
  Pass();
}

// False: there is something to do.
bool UcxNetwork::FallAsleep() {
  if (ucp_worker_arm(worker_->get()) != UCS_OK || !duty_->mailbox()->FallAsleep()) return false;
  for (const auto& poller : pollers_) {
    if (poller->FallAsleep()) continue;
    WakeUp();
    return false;
  }
  return true;
}

// Also what another thread has put to sleep before it released the duty.
void UcxNetwork::WakeUp() {
  duty_->mailbox()->WakeUp();
  for (const auto& poller : pollers_) poller->WakeUp();
}

bool UcxNetwork::AnythingPending() {
  bool pending = false;
  ForPeers([&](Peer* peer) { pending |= !peer->pending.empty() || !peer->waiting.empty(); });
  return pending;
}

// Whatever was posted or sent still goes out while peers are well; what then remains is ended by force.
void UcxNetwork::ShutDown() {
  while (Pass()) {
    // until the mailbox is empty
  }
  closing_ = true;
  ForPeers([&](Peer* peer) {
    for (InOrder<Held>& order : peer->arriving) order.Clear();
  });
  arrived_.ForEach([](UcxIncoming* incoming) {
    incoming->Remove();
    incoming->Leave();
  });
  auto pass_until = [&](int64_t deadline, auto done) {
    while (!done() && ClockNow() < deadline) Pass();
  };
  // UCX aborts the process if its worker goes while it answers a peer that has just made contact.
  pass_until(now_ + kFlushTime, [&] { return !AnythingPending() && AllConnected(); });
  ucp_request_param_t param = {};
  void* flush = ucp_worker_flush_nbx(worker_->get(), &param);
  if (UCS_PTR_IS_PTR(flush)) {
    pass_until(now_ + kFlushTime, [&] { return ucp_request_check_status(flush) != UCS_INPROGRESS; });
  }
  ForPeers([&](Peer* peer) { Lose(peer, "the network ends"); });
  TellLosses();
  pass_until(now_ + kFlushTime, [&] { return !AnythingPending(); });
  if (UCS_PTR_IS_PTR(flush)) ucp_request_free(flush);
}

std::unique_ptr<Network> Network::Make(const NetworkOptions& options) {
  return std::make_unique<UcxNetwork>(options);
}

}  // namespace oneflow_like
