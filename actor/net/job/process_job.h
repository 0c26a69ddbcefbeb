// Joins the processes of a job: rendezvous, network, shared memory, collectives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "actor/net/talk/job.h"

namespace oneflow_like {

struct JobOptions {
  std::string build;          // identifies the program: processes of different builds refuse each other
  double start_timeout = 60;  // seconds for all processes to join
  double peer_timeout = 10;   // seconds after which all have ended when a peer is lost
  std::string devices;        // of the network; empty: UCX chooses
  bool shared_memory = true;  // between processes of one host; false: everything over the network
};

// Blocks until all processes have joined. Throws Error as Rendezvous does.
std::unique_ptr<Job> JoinJob(const ProcessIdentity& identity, const JobOptions& options);

// Memory for chunks in flight of collectives between processes, in each process, beside its ranks' plans:
// once, and for each session with such collectives.
struct StagingBytes {
  int64_t process = 0, session = 0;
};
StagingBytes StagingOfJob();

}  // namespace oneflow_like
