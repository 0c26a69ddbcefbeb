// Joins the processes of a job: rendezvous, network, shared memory, collectives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "actor/net/talk/job.h"

namespace oneflow_like {

struct JobOptions {
  std::string build;          // what the program is: processes of different builds refuse each other
  double start_timeout = 60;  // seconds for all processes to come
  double peer_timeout = 10;   // seconds after which everybody has ended when a peer is lost
  std::string devices;        // of the network; empty: UCX chooses
  bool shared_memory = true;  // between processes of one host; false: everything over the network
};

// Blocks until all processes have joined. Throws Error as Rendezvous does.
std::unique_ptr<Job> JoinJob(const ProcessIdentity& identity, const JobOptions& options);

// What collectives between processes take of each process beside its ranks' plans, for chunks on their way:
// once, and for each session with any.
struct StagingBytes {
  int64_t process = 0, session = 0;
};
StagingBytes StagingOfJob();

}  // namespace oneflow_like
