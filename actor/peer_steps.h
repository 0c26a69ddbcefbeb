// The ends of steps in a job of several processes. Beside the acts here, a step waits for the other
// processes' pieces of its outputs, and for the reason of a failure elsewhere.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "actor/actor.h"
#include "actor/peers.h"

namespace oneflow_like {

// Created before the runtime connects to its peers, destroyed after its link.
class PeerSteps final : public PeerListener {
 public:
  explicit PeerSteps(RunState* run) : run_(run) {}

  // While loading: `elements` of all outputs of a step come from other processes, each once.
  void SetLink(PeerLink* link) { link_ = link; }
  void Expect(int64_t elements) { elements_ = elements; }
  // Cancelled at the first failure, wherever it is: the other processes cancel theirs, and a member here that
  // a device has begun would wait for theirs.
  void SetCollectives(Collectives* collectives);

  // The user's thread: the slot's step is about to be launched on the shards. Pieces that arrived early are
  // stored in its results.
  void Launched(StepSlot* slot);
  // The last shard's worker: all acts of the step here have ended. Ends the step now or when the rest has
  // arrived.
  void ActsEnded(StepSlot* slot);
  // A worker: a piece was fetched here, packed at `data`; a failure began here.
  void Send(int64_t launch, int output, const Box& box, const void* data, size_t bytes);
  void FailedHere(const std::string& message);

  // The user's thread: returns once no step is under way, or something has failed.
  void Drain();
  // Stops ending steps and forgets those in flight.
  void Close();

  void OutputArrived(int64_t launch, int output, const Box& box, const void* data, size_t bytes) override;
  void PeersFailed(const std::string& message) override;
  Awaited AwaitedOutputs() override;

 private:
  struct Step {
    StepSlot* slot = nullptr;
    int64_t left = 0;  // elements of other processes that have not arrived
    bool acts_ended = false;
  };
  struct Held {
    int output = 0;
    Box box;
    std::vector<char> data;
  };

  void Put(Step* step, int output, const Box& box, const void* data, size_t bytes);
  void EndWhereComplete();

  RunState* const run_;
  PeerLink* link_ = nullptr;
  int64_t elements_ = 0;
  Collectives* collectives_ = nullptr;  // under the lock
  // A lock, because pieces and failures arrive on the network's thread, which must not wait for the user's
  // thread or a worker, and the results that they go to change owners on the user's thread. Steps end under
  // it, so that they end in order, whichever thread is the last.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Step> steps_;              // under way, by launch
  std::map<int64_t, std::vector<Held>> held_;  // of launches to come
  int64_t launched_ = -1;                      // the last one so far
  bool closed_ = false;
};

}  // namespace oneflow_like
