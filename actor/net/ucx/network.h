// The network of one process: UCX active messages to and from the other processes of the job, on one thread
// at a time: the network's thread, or an idle worker that stands in for it (duty.h). "The network's thread"
// below means either of them. Everything here happens on it, unless stated otherwise: handlers and
// completions are called on it, and Send is called from it. Other threads post it a Message
// (actor/mailbox.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actor/executor.h"
#include "actor/mailbox.h"
#include "actor/net/rendezvous/bootstrap.h"

namespace oneflow_like {

constexpr int64_t kSecond = 1000000000;  // of the clock of this folder's sources, in nanoseconds

// Called once, when a send or receive has ended. `ok` is false when the peer is lost.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void TransferDone(bool ok) = 0;
};

// The data of a message: small data has arrived already, large data is still at its sender and is pulled. The
// holder must Receive or drop (destroy) it; dropping it ends the sender's transfer as well.
class Incoming {
 public:
  virtual ~Incoming() = default;
  virtual size_t bytes() const = 0;
  virtual const void* data() const = 0;  // nullptr while it is at the sender
  // Copies it to `to` (bytes() of room) and calls `done`, inside this call if the data has arrived already.
  // Call it once. `to` and `done` must live until then. The Incoming may be destroyed from `done` on.
  virtual void Receive(void* to, Transfer* done) = 0;
};

class Channel {
 public:
  virtual ~Channel() = default;
  // A message from process `from`: its header (valid during the call) and its data (bytes() may be 0).
  // Messages of one sender on one channel arrive in the order they were sent.
  virtual void Deliver(int from, const void* header, size_t header_bytes, std::unique_ptr<Incoming> data) = 0;
};

// Another source of messages. All on the network's thread.
class Poller {
 public:
  virtual ~Poller() = default;
  virtual bool Poll() = 0;  // one turn; true when something had arrived
  virtual bool
  FallAsleep() = 0;           // false: something has arrived; else senders also wake the network by a message
  virtual void WakeUp() = 0;  // may be called without FallAsleep
};

struct NetworkOptions {
  bool loopback_only = true;  // all peers are on this machine: only its loopback is used
  std::string devices;        // UCX network devices ("eth0"); empty: UCX chooses
  double peer_timeout = 10;   // seconds by which all have ended after a peer fell silent; it counts as lost
                              // after 0.6 of it
  double start_timeout = 60;  // seconds for a peer that has not sent anything yet: it may be connecting to
                              // many
  int spin_us = 20;           // busy polling before the thread sleeps; 0 when threads outnumber cores, which
                              // also leaves more to idle and busy workers (duty.h)
};

class Network {
 public:
  // Channels by number, known before Connect. kFree ones are for tests.
  enum ChannelId { kControl = 0, kCollective = 1, kOutput = 2, kMonitor = 3, kFree = 4, kChannels = 8 };
  static constexpr size_t kEagerBytes = 120 << 10;  // up to this size data travels with its message
  struct Failure {
    int peer = 0;
    std::string reason;  // "its connection was closed", "nothing heard of it for 6.0 s", ...
  };

  // Throws Error when UCX finds no usable transport or device (naming what was asked for).
  static std::unique_ptr<Network> Make(const NetworkOptions& options);
  // Ends the thread. Transfers in flight are ended first (ok = false if necessary): afterwards UCX refers to
  // no memory of its users, and no port is open (after a loss: when the program ends).
  virtual ~Network() = default;

  virtual std::string address() const = 0;  // for peers to connect to

  // Before Connect. While the doors are shut, peers cannot connect either; they retry after a second. Doors
  // are open at first, and shut for good when all connections are made.
  virtual void ShutDoors(bool) {}
  virtual void SetChannel(int id, Channel* channel) = 0;
  // The network's thread polls it from here on, and keeps it until the network ends. REQUIRES: polls().
  virtual void AddPoller(std::shared_ptr<Poller>) {}
  virtual bool polls() const { return false; }
  // Called once for each peer that is lost: connection closed or reset, or silent for too long. Afterwards
  // every transfer with that peer ends with ok = false, and sends to it do so at once.
  virtual void SetFailureListener(std::function<void(const Failure&)> listener) = 0;
  // Creates endpoints to all others and starts the thread and the heartbeats. `peers` by process.
  virtual void Connect(int me, const std::vector<PeerInfo>& peers) = 0;

  // Any thread: message->Receive() runs on the network's thread, in the order of posting.
  virtual void Post(Message* message) = 0;

  // Work for idle workers (actor/executor.h): driving the network in place of its thread. It may outlive the
  // network. nullptr: workers cannot.
  virtual std::shared_ptr<IdleWork> idle_work() { return nullptr; }
  // Post by a worker that has idle_work() as its idle work: wakes no thread, because the worker will handle
  // the message itself as soon as it is idle, or otherwise wake the network's thread.
  virtual void PostSoon(Message* message) { Post(message); }

  // The network's thread. `header` is copied (at most 1 KB). `data` must stay unchanged until `done`, which
  // may be called inside this call; the receiver pulls large data from there. `done` may be nullptr when
  // bytes is 0. Sending to this process itself is a bug.
  virtual void Send(int to, int channel, const void* header, size_t header_bytes, const void* data,
                    size_t bytes, Transfer* done) = 0;
  // The peer ends as expected: it is not lost when its connection closes from here on.
  virtual void ExpectEnd(int peer) = 0;
  // From here on no peer is declared lost for silence (at the end of the program).
  virtual void StopHeartbeats() = 0;

  // Any thread. The difference of `peer`'s ClockNow() to that of this process, in nanoseconds, from the
  // exchange with the shortest round trip so far, and that round trip. 0, 0 for this process.
  struct ClockOffset {
    int64_t offset_ns = 0, round_trip_ns = 0;
    int64_t round_trip_lately_ns = 0;  // the shortest of the last four
  };
  virtual ClockOffset OffsetTo(int peer) const = 0;
  // Bytes and messages sent so far. Any thread.
  struct Counts {
    int64_t messages = 0, bytes = 0;
  };
  virtual Counts sent() const = 0;
};

// CLOCK_MONOTONIC in nanoseconds: the clock of offsets and time stamps in messages.
int64_t ClockNow();

}  // namespace oneflow_like
