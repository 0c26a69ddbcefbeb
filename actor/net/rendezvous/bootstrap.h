// The rendezvous of a job's processes: process 0 listens on one TCP socket, the others connect, present the
// job's token and their identity, and receive the table of all. Used once; afterwards all traffic is UCX's.
#pragma once

#include <string>
#include <vector>

#include "actor/net/rendezvous/identity.h"
#include "core/error.h"

namespace oneflow_like {

// The facts that every process knows of every other.
struct PeerInfo {
  int process = 0;
  std::string host;      // its name, for people
  std::string host_key;  // equal when two processes can share memory: boot id and network namespace
  int64_t pid = 0;
  std::string address;  // of its UCX worker
  std::string region;   // address for requesting its shared region
                        // (actor/net/shared_memory/shared_region.h)
  std::string version;  // of the build: the same on all
  std::string cores;    // its limits, as text (core/system/cores.h)
};

struct RendezvousOptions {
  double timeout = 60;  // seconds until all must have connected
  // Seconds that a connection may take to identify itself; others are served meanwhile.
  double connection_timeout = 5;
  // Seconds that process 0 may be absent after this process has connected to it: it may be restarted.
  double lost_timeout = 10;
};

// The name of this host, and its key.
std::string HostName();
std::string HostKey();
// 128 random bits, in hexadecimal.
std::string RandomToken();

// Blocks until all processes have connected; returns the table, by process. Throws Error, on every process
// that can be told, when the timeout expires (naming the missing processes), process 0 was there and is lost,
// two processes claim one number, sizes or versions differ (naming both), the token is wrong, or the address
// cannot be bound or reached. A process of another job (ProcessIdentity::job) with the same port and token
// gets an Error; this job continues. Strangers (garbage, half-open connections, wrong tokens) are dropped and
// logged, and delay nobody. The token is compared in constant time. For processes that have connected,
// process 0's clock decides. Closes identity.listen_fd.
std::vector<PeerInfo> Rendezvous(const ProcessIdentity& identity, const PeerInfo& mine,
                                 const RendezvousOptions& options = {});

// What Rendezvous throws where another process has ended instead of joining (EndBeforeStart).
struct EndedBeforeStart : Error {
  using Error::Error;
};
// Instead of Rendezvous, by a process that ends because of `why` (its flags are wrong): the others'
// Rendezvous throw EndedBeforeStart, with this process and `why`. Returns when they have heard, after
// `patience` seconds at the latest: those that come later wait for this process until their own timeout.
// `mine` need not have addresses. Throws nothing.
void EndBeforeStart(const ProcessIdentity& identity, const PeerInfo& mine, const std::string& why,
                    double patience);

}  // namespace oneflow_like
