// The network of one process: UCX active messages to and from the other processes of the job, on one thread
// at a time: the network's thread, or an idle worker that stands in for it (duty.h). "The network's thread"
// below means whichever it is. Everything here happens on it, unless said otherwise: handlers and completions
// are called on it, and Send is called from it. Other threads post it a Message (actor/mailbox.h).
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

// Told once, when a send or receive has ended. `ok` is false when the peer is lost.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void TransferDone(bool ok) = 0;
};

// The data of a message: small data is here already, large data still lies at its sender and is pulled.
// Whoever holds it must Receive or drop (destroy) it; a dropped one ends the sender's transfer as well.
class Incoming {
 public:
  virtual ~Incoming() = default;
  virtual size_t bytes() const = 0;
  virtual const void* data() const = 0;  // nullptr while it lies at the sender
  // Brings it to `to` (bytes() of room) and tells `done`, from inside this call when the data is here. Once.
  // `to` and `done` stay until then. The Incoming may be destroyed from `done` on.
  virtual void Receive(void* to, Transfer* done) = 0;
};

class Channel {
 public:
  virtual ~Channel() = default;
  // A message from process `from`: its header (valid during the call) and its data (bytes() may be 0).
  // Messages of one sender on one channel come in the order they were sent.
  virtual void Deliver(int from, const void* header, size_t header_bytes, std::unique_ptr<Incoming> data) = 0;
};

// Another way for messages to come. All on the network's thread.
class Poller {
 public:
  virtual ~Poller() = default;
  virtual bool Poll() = 0;  // one turn; true when something had come
  virtual bool
  FallAsleep() = 0;  // false: something has come; else whoever sends also wakes the network by a message
  virtual void WakeUp() = 0;  // maybe without FallAsleep
};

struct NetworkOptions {
  bool loopback_only = true;  // all peers are on this machine: only its loopback is used
  std::string devices;        // UCX network devices ("eth0"); empty: UCX chooses
  double peer_timeout = 10;   // seconds: by then everybody has ended after a peer fell silent; it counts as
                              // lost after 0.6 of it
  double start_timeout = 60;  // seconds: who has said nothing yet may be connecting to many
  int spin_us = 20;           // busy polling before the thread sleeps; 0 when threads outnumber cores
};

class Network {
 public:
  // Channels by number, known before Connect. kFree ones are for tests.
  enum ChannelId { kControl = 0, kCollective = 1, kOutput = 2, kMonitor = 3, kFree = 4, kChannels = 8 };
  static constexpr size_t kEagerBytes = 120 << 10;  // up to here data travels with its message
  struct Failure {
    int peer = 0;
    std::string reason;  // "its connection was closed", "nothing heard of it for 6.0 s", ...
  };

  // Throws Error when UCX finds no usable transport or device (naming what was asked for).
  static std::unique_ptr<Network> Make(const NetworkOptions& options);
  // Ends the thread. Transfers that are under way are ended first (ok = false if need be): afterwards UCX
  // refers to no memory of anybody, and no port is open (after a loss: when the program ends).
  virtual ~Network() = default;

  virtual std::string address() const = 0;  // what peers connect to

  // Before Connect. While the doors are shut no peer can connect either; it tries again after a second. They
  // are open at first, and shut for good when all connections are made.
  virtual void ShutDoors(bool) {}
  virtual void SetChannel(int id, Channel* channel) = 0;
  // The network's thread: looks at it from here on, and keeps it until the network ends. REQUIRES: polls().
  virtual void AddPoller(std::shared_ptr<Poller>) {}
  virtual bool polls() const { return false; }
  // Called once for each peer that is lost: connection closed or reset, or silent for too long. After it
  // every transfer with that peer ends with ok = false, and sends to it end so at once.
  virtual void SetFailureListener(std::function<void(const Failure&)> listener) = 0;
  // Makes endpoints to all others and starts the thread and the heartbeats. `peers` by process.
  virtual void Connect(int me, const std::vector<PeerInfo>& peers) = 0;

  // Any thread: message->Receive() runs on the network's thread, in the order of posting.
  virtual void Post(Message* message) = 0;

  // What workers do while they wait (actor/executor.h): they drive the network, in place of its thread. It
  // may outlive the network. nullptr: nobody can.
  virtual std::shared_ptr<IdleWork> idle_work() { return nullptr; }
  // Post by a worker that has idle_work() for such work: nobody is woken, as the worker itself will see to it
  // as soon as it has nothing else to do, or else wake the network's thread.
  virtual void PostSoon(Message* message) { Post(message); }

  // The network's thread. `header` is copied (at most 1 KB). `data` stays as it is until `done`, which may be
  // told inside the call; large data is pulled by the receiver from where it lies. `done` may be nullptr when
  // bytes is 0. Sending to this process itself is our own bug.
  virtual void Send(int to, int channel, const void* header, size_t header_bytes, const void* data,
                    size_t bytes, Transfer* done) = 0;
  // The peer ends in good order: it is not lost when its connection closes from here on.
  virtual void ExpectEnd(int peer) = 0;
  // No peer is declared lost for silence any more (at the end of the program).
  virtual void StopHeartbeats() = 0;

  // Any thread. What to add to this process's ClockNow() to get that of `peer`, in nanoseconds, from the
  // exchange with the shortest round trip so far, and that round trip. 0, 0 for oneself.
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

// CLOCK_MONOTONIC in nanoseconds: what offsets and time stamps in messages are in.
int64_t ClockNow();

}  // namespace oneflow_like
