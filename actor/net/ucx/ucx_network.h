// The network over UCX: its state, for network.cc (life, thread, heartbeats, losses) and ucx_messages.cc
// (sending and receiving). One thread at a time makes all progress: it polls UCX and the mailbox in turns,
// and sleeps on both when there is nothing to do. Each peer has two endpoints: heartbeats have one of their
// own, so that they do not wait behind megabytes on a slow line and a busy peer is not mistaken for a dead
// one.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actor/net/ucx/duty.h"
#include "actor/net/ucx/in_order.h"
#include "actor/net/ucx/network.h"
#include "actor/net/ucx/peer_clock.h"
#include "actor/net/ucx/transfers.h"
#include "actor/net/ucx/ucx_worker.h"

namespace oneflow_like {

// By UCX's number.
enum ActiveMessage : unsigned { kMessage = 0, kPing = 1, kPong = 2, kGreeting = 3 };

// UCX's status of a broken connection in words.
std::string LossReason(ucs_status_t status);

// A ping or pong.
struct Beat {
  uint32_t process = 0;
  uint32_t reserved = 0;
  int64_t asked = 0;   // time of the question, by the sender's clock
  int64_t answer = 0;  // in a pong: time by the answering process's clock
};

// A message that arrived before its turn.
struct Held {
  std::string header;
  std::unique_ptr<Incoming> data;
};

struct Peer {
  enum State {
    kUp,
    kFailing,  // detected, the listener has not been told
    kGone      // the listener has been told, or the peer has ended as expected
  };
  // The progress of the connection for data. UCX 1.13.1 aborts the process if a peer is lost while an
  // internal message of UCX about the endpoint waits to be sent. UCX sends one before the first message that
  // cannot be sent at once, and one to answer it. So each end offers the other a greeting until it can be
  // sent at once, which is when the connection is made. When both ends have one, each sends a second
  // greeting, whose data is pulled, and with it the internal message; nothing else is sent until both of
  // these have been sent and received. (Heartbeats are only ever sent at once.)
  enum Opening { kGreeting, kAcquainting, kOpen };
  class UcxNetwork* network = nullptr;
  int process = 0;
  State state = kUp;
  Opening opening = kGreeting;
  int greetings_went = 0, greetings_came = 0;
  bool pinged = false;  // the connection for heartbeats is made
  bool pings = false;   // the peer's is, too
  bool end_expected = false;
  std::string reason;
  ucp_ep_h data = nullptr, beats = nullptr;
  int64_t beats_broke = 0;                          // when; 0: all is well
  std::array<uint32_t, Network::kChannels> sent{};  // messages
  std::array<InOrder<Held>, Network::kChannels> arriving;
  Ring<Operation> waiting;      // for the connection to open, in order
  Ring<Operation> pending;      // handed to UCX
  Ring<Operation> failed;       // wait until the listener has been told
  int64_t heard = 0, gone = 0;  // when
  PeerClock clock;
};

class UcxNetwork : public Network, private IncomingHome, public Duty::Work {
 public:
  explicit UcxNetwork(const NetworkOptions& options);
  ~UcxNetwork() override;

  std::string address() const override { return worker_->address(); }
  void SetChannel(int id, Channel* channel) override { channels_.at(id) = channel; }
  void ShutDoors(bool shut) override { worker_->ShutDoors(shut); }
  void SetFailureListener(std::function<void(const Failure&)> listener) override {
    listener_ = std::move(listener);
  }
  void Connect(int me, const std::vector<PeerInfo>& peers) override;
  void Post(Message* message) override { duty_->Post(message); }
  std::shared_ptr<IdleWork> idle_work() override { return duty_; }
  void PostSoon(Message* message) override { duty_->PostSoon(message); }
  void AddPoller(std::shared_ptr<Poller> poller) override { pollers_.push_back(std::move(poller)); }
  bool polls() const override { return true; }
  void Send(int to, int channel, const void* header, size_t header_bytes, const void* data, size_t bytes,
            Transfer* done) override;
  void ExpectEnd(int peer) override { peers_.at(peer).end_expected = true; }
  void StopHeartbeats() override { silence_counts_ = false; }
  ClockOffset OffsetTo(int peer) const override;
  Counts sent() const override {
    return {sent_messages_.load(std::memory_order_relaxed), sent_bytes_.load(std::memory_order_relaxed)};
  }

 private:
  // UCX's callbacks.
  static ucs_status_t OnMessage(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                const ucp_am_recv_param_t* param);
  static ucs_status_t OnPing(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                             const ucp_am_recv_param_t* param);
  static ucs_status_t OnPong(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                             const ucp_am_recv_param_t* param);
  static ucs_status_t OnGreeting(void* self, const void* header, size_t header_bytes, void* data,
                                 size_t bytes, const ucp_am_recv_param_t* param);
  static void OnSent(void* request, ucs_status_t status, void* operation);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* operation);
  static void OnEndpointError(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  void SetHandler(unsigned id, ucp_am_recv_callback_t handler);
  ucp_ep_h MakeEndpoint(Peer* peer, const PeerInfo& info);
  Peer* Sender(const void* header, size_t header_bytes, size_t expected);
  ucs_status_t Arrived(Peer* peer, const char* header, size_t header_bytes, void* data, size_t bytes,
                       bool here);
  void DeliverHeld(Peer* peer, uint32_t channel);

  Operation* Begin(Peer* peer, Transfer* done);
  ucs_status_t SendAtOnce(ucp_ep_h endpoint, unsigned id, const void* header, size_t header_bytes);
  void Greet(Peer* peer);
  void Greeted(Peer* peer, int* greetings);
  void Acquaint(Peer* peer);
  void Open(Peer* peer);
  void SendNow(Operation* operation);
  void Begun(Operation* operation, ucs_status_ptr_t result);
  void Ended(Operation* operation, ucs_status_t status);
  void Tell(Operation* operation, bool ok);

  // IncomingHome
  void ReceiveFrom(Peer* peer, void* descriptor, void* to, size_t bytes, Transfer* done) override;
  void Release(void* descriptor) override { ucp_am_data_release(worker_->get(), descriptor); }
  void GoHome(UcxIncoming* incoming) override {
    incoming->Remove();
    incoming_.Give(incoming);
  }
  UcxIncoming* NewIncoming(Peer* peer, void* data, size_t bytes, bool here) {
    UcxIncoming* incoming = incoming_.Take();
    arrived_.Add(incoming);
    incoming->Arrive(this, peer, data, bytes, here);
    return incoming;
  }

  // The thread.
  void Run();
  bool RunOnDuty();
  bool Pass();
  bool FallAsleep();
  void WakeUp();
  void DriveUntil(Mailbox* mail) override;
  void TakeTurn() override;
  void Greetings();
  bool AllConnected();
  void CloseDoors();
  void Beats();
  bool SendBeat(Peer* peer, unsigned id, const Beat& beat);
  void BeatsBroke(Peer* peer) {
    if (peer->beats_broke == 0) peer->beats_broke = now_;
  }
  void Lose(Peer* peer, std::string reason);
  bool TellLosses();
  void Forget(Peer* peer);
  void CloseEndpoints(Peer* peer);
  void Close(ucp_ep_h* endpoint);
  void ShutDown();
  bool AnythingPending();
  template <typename F>
  void ForPeers(F f) {
    for (Peer& peer : peers_)
      if (peer.process != me_) f(&peer);
  }

  const NetworkOptions options_;
  const int64_t interval_;  // between heartbeats
  std::unique_ptr<UcxWorker> worker_;
  std::array<Channel*, kChannels> channels_{};
  std::function<void(const Failure&)> listener_;
  int me_ = 0;
  std::deque<Peer> peers_;            // by process; addresses are stable
  const std::shared_ptr<Duty> duty_;  // the members below belong to its holder
  std::thread thread_;

  std::vector<std::shared_ptr<Poller>> pollers_;
  FreeList<Operation> operations_;
  FreeList<UcxIncoming> incoming_;
  Ring<UcxIncoming> arrived_;  // neither received nor dropped
  bool losses_ = false;        // some peer is kFailing
  bool greeting_ = false;      // some connection is not made yet
  bool doors_open_ = true;     // others can still connect to our worker
  bool gave_up_ = false;       // on some peer, unexpectedly
  bool closing_ = false;       // nothing is delivered any more
  bool silence_counts_ = true;
  int64_t now_ = 0, next_beat_ = 0, last_pass_ = 0, busy_ = 0;

  std::atomic<int64_t> sent_messages_{0}, sent_bytes_{0};
  mutable std::mutex offsets_mutex_;  // any thread reads offsets; updated twice a second
  std::vector<ClockOffset> offsets_;
};

}  // namespace oneflow_like
