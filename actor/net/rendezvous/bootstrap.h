// How the processes of a job find one another: process 0 listens on one TCP socket, the others come, show the
// job's token and who they are, and get the table of all. Used once; afterwards all traffic is UCX's.
#pragma once

#include <string>
#include <vector>

#include "actor/net/rendezvous/identity.h"

namespace oneflow_like {

// What every process knows of every other.
struct PeerInfo {
  int process = 0;
  std::string host;      // its name, for people
  std::string host_key;  // equal when two processes can share memory: boot id and network namespace
  int64_t pid = 0;
  std::string address;  // of its UCX worker
  std::string region;   // where its shared region can be asked for (actor/net/shared_memory/shared_region.h)
  std::string version;  // of the build: the same on all
};

struct RendezvousOptions {
  double timeout = 60;  // seconds until all must have come
  // Seconds a connection may take to say who it is; others are served meanwhile.
  double connection_timeout = 5;
  // Seconds that process 0 may be away once this process has been there: it may be started again.
  double lost_timeout = 10;
};

// The name of this host, and its key.
std::string HostName();
std::string HostKey();
// 128 random bits, in hexadecimal.
std::string RandomToken();

// Blocks until all processes have come; gives the table, by process. Throws Error, on every process that can
// be told, when: time is up (naming who is missing), process 0 was there and is lost, two processes claim one
// number, sizes or versions differ (naming both), the token is wrong, the address cannot be bound or reached.
// A process of another job (ProcessIdentity::job), which was given the same port and token, is told so alone.
// Strangers (garbage, half-open connections, wrong tokens) are dropped and logged, and delay nobody. The
// token is compared in constant time. Process 0's clock decides for those that it knows. Closes
// identity.listen_fd.
std::vector<PeerInfo> Rendezvous(const ProcessIdentity& identity, const PeerInfo& mine,
                                 const RendezvousOptions& options = {});

}  // namespace oneflow_like
