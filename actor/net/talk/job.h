// The job: this process and its peers, from the rendezvous (actor/net/job/process_job.h) until Finish. Owns
// the network and the shared region, and handles the loss of a peer.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "actor/net/rendezvous/identity.h"
#include "actor/net/shared_memory/shared_region.h"
#include "actor/net/ucx/network.h"
#include "actor/peers.h"
#include "core/system/exit_codes.h"

namespace oneflow_like {

class Job {
 public:
  // Calls Finish(false) if Finish was not called: the others then treat this process as failed. REQUIRES: the
  // links of runtimes are destroyed.
  virtual ~Job() = default;

  virtual const ProcessIdentity& identity() const = 0;
  virtual const std::vector<PeerInfo>& peers() const = 0;  // by process, this one included
  virtual Network* network() = 0;
  virtual SharedRegion* region() = 0;  // nullptr without shared memory
  int process() const { return identity().process; }
  int processes() const { return identity().processes; }
  // "rank 3 (host b, pid 17)", with ranks of the mesh once SetWorld has been told how many a process hosts.
  virtual std::string Describe(int process) const = 0;
  virtual void SetWorld(int ranks) = 0;
  virtual int ranks_per_process() const = 0;  // 1 before SetWorld

  // Collective: every process passes a text and gets all of them, by process. All must pass the same `what`;
  // otherwise an Error names both. Blocks (the user's thread); throws the failure when a peer is lost
  // meanwhile.
  virtual std::vector<std::string> AllGather(const std::string& what, const std::string& mine) = 0;

  // The connection of runtimes to their peers (actor/peers.h).
  virtual Peers* peers_of_runtimes() = 0;

  // Any thread. The first call counts: it tells all peers, fails pending work, and lets the program end by
  // its errors. A program that has not ended `peer_timeout` * 0.2 later is terminated, with the line on
  // standard error and exit code exit_code().
  virtual void Fail(const std::string& message) = 0;
  // The failure's message; empty if there is none. Any thread.
  virtual std::string failure() const = 0;
  // The program's exit code for that failure, wherever it occurred: kLostPeer when a process was lost, else
  // the code of the process that failed (core/system/exit_codes.h). Any thread.
  virtual int exit_code() const { return kRunError; }
  // Network thread: `awaited` is called on failure, before pending collectives are failed. It returns what is
  // awaited, for the message: "all_reduce 'h0/up.grad' of step 7 (train) with rank 3 (host b, pid 17)", or
  // empty. It is also called when a process has ended its program: if the result names that process, as
  // Describe does, for a second, the job fails.
  virtual void AddAwaited(const void* who, std::function<std::string()> awaited) = 0;
  virtual void RemoveAwaited(
      const void* who) = 0;  // any thread but the network's; returns when no call is running
  // Any thread but the network's: what is awaited from other processes at present, in the words of a
  // failure's message; empty when nothing is. Waits at most `patience` seconds for the network's thread.
  virtual std::string AwaitedNow(double patience) { return ""; }
  // Network thread: `listener` is called once, after AddAwaited's callbacks and after the runtimes have been
  // told, with the failure's message.
  virtual void AddFailureListener(const void* who, std::function<void(const std::string&)> listener) = 0;
  virtual void RemoveFailureListener(const void* who) = 0;  // any thread but the network's; as RemoveAwaited

  // For the end of the program: waits until all processes have called it, so that no process leaves while
  // others still need it; the others are told the name of one that leaves early. `ok` false: does not wait.
  // With `ok` it throws the failure if there is one, before or during the wait. From here on the job prints
  // nothing for a program that does not end: the caller prints its error.
  virtual void Finish(bool ok) = 0;
  // Fail(error) and Finish(false), for a program that ends by an error, with exit code `code` if it is the
  // first. Returns whether to print it: false if this is not process 0 and process 0 ends by the same error
  // of its own, for which this call waits a little. All processes print the loss of a process.
  virtual bool FinishWith(const std::string& error, int /*code*/) {
    Fail(error);
    Finish(false);
    return true;
  }
  // `write` is called with one line (without newline), on any thread, for the real standard error; then the
  // process ends.
  virtual void SetDirectOutput(std::function<void(const std::string&)> write) = 0;
};

// Of each process the first of those that reach its memory by address: of its host where hosts have shared
// memory, else itself.
inline std::vector<int> NodeOfProcess(Job* job) {
  const std::vector<PeerInfo>& peers = job->peers();
  std::vector<int> nodes(peers.size());
  for (size_t p = 0; p < peers.size(); ++p) {
    size_t first = job->region() == nullptr ? p : 0;
    while (first < p && peers[first].host_key != peers[p].host_key) ++first;
    nodes[p] = static_cast<int>(first);
  }
  return nodes;
}

}  // namespace oneflow_like
