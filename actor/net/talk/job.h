// The job: this process and its peers, from the moment they have found one another (actor/net/job/join.h)
// until they part. Owns the network and the shared region, and decides what happens when a peer is lost.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actor/net/rendezvous/identity.h"
#include "actor/net/shared_memory/shared_region.h"
#include "actor/net/ucx/network.h"
#include "actor/peers.h"
#include "core/exit_codes.h"

namespace oneflow_like {

class Job {
 public:
  // Finish(false) if it was not called: the others then take this process for one that has failed. Links of
  // runtimes are gone by then.
  virtual ~Job() = default;

  virtual const ProcessIdentity& identity() const = 0;
  virtual const std::vector<PeerInfo>& peers() const = 0;  // by process, this one included
  virtual Network* network() = 0;
  virtual SharedRegion* region() = 0;  // nullptr without shared memory
  int process() const { return identity().process; }
  int processes() const { return identity().processes; }
  // "rank 3 (host b, pid 17)", with `ranks` of the mesh once SetWorld has told how many a process hosts.
  virtual std::string Describe(int process) const = 0;
  virtual void SetWorld(int ranks) = 0;
  virtual int ranks_per_process() const = 0;  // 1 before SetWorld

  // Every process gives a text and gets all of them, by process. All must call it in the same order with the
  // same `what`: a process that asks for something else is an Error that names both. Blocks (the user's
  // thread); throws the failure when a peer is lost meanwhile.
  virtual std::vector<std::string> AllGather(const std::string& what, const std::string& mine) = 0;

  // What the runtime tells and hears (actor/peers.h).
  virtual Peers* peers_of_runtimes() = 0;

  // Any thread. The first one counts: tells all peers, fails what is pending, and lets the program end by its
  // errors; what has not ended `peer_timeout` * 0.2 later is ended, with the line on standard error and exit
  // code exit_code().
  virtual void Fail(const std::string& message) = 0;
  // Empty while all is well. Any thread.
  virtual std::string failure() const = 0;
  // What the program is to end with for that failure, wherever it was: kLostPeer when a process was lost, else
  // what the process that failed ends with (core/exit_codes.h). Any thread.
  virtual int exit_code() const { return kRunError; }
  // Network thread: called on failure, before pending collectives are failed. Returns what is awaited, for
  // the message: "all_reduce 'h0/up.grad' of step 7 (train) with rank 3 (host b, pid 17)", or empty. Also
  // asked when a process has ended its program: should that be named, as Describe names it, for a second, it
  // is awaited in vain.
  virtual void AddAwaited(const void* who, std::function<std::string()> awaited) = 0;
  virtual void RemoveAwaited(
      const void* who) = 0;  // any thread but the network's; returns when no call is under way
  // Any thread but the network's: what is awaited of other processes just now, in the words of a failure's
  // message; empty when nothing is. Waits for the network's thread, but for no more than `patience` seconds.
  virtual std::string AwaitedNow(double patience) { return ""; }
  // Network thread, once, after AddAwaited's callbacks have been asked and the runtimes been told: `message`
  // is the failure.
  virtual void AddFailureListener(const void* who, std::function<void(const std::string&)> listener) = 0;
  virtual void RemoveFailureListener(const void* who) = 0;  // any thread but the network's; as RemoveAwaited

  // Waits until all processes have called it, so that nobody leaves while others still need it; a process
  // that leaves early is named to the others. For the end of the program; `ok` false: do not wait. With `ok`
  // it throws the failure when there is one, from before or until all have come. From here on nothing is
  // written for a program that does not end: its error is the caller's to print.
  virtual void Finish(bool ok) = 0;
  // Fail(error) and Finish(false), for a program that ends by an error, with exit code `code` if it is the
  // first. Returns whether to print it: false when this is not process 0 and process 0 ends by the same error
  // of its own, for which this waits a little. That a process was lost is everybody's to print.
  virtual bool FinishWith(const std::string& error, int /*code*/) {
    Fail(error);
    Finish(false);
    return true;
  }
  // `write` gets one line without its end, on any thread, for the real standard error: the process ends next.
  virtual void SetDirectOutput(std::function<void(const std::string&)> write) = 0;
};

}  // namespace oneflow_like
