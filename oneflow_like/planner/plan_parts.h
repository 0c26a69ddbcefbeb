// Time and memory of the parts of a model on a described machine, measured on plans of a few blocks. The
// search for a plan (plan_search.h) estimates whole plans from them.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "oneflow_like/plan_search.h"

namespace oneflow_like {

// A tensor that the ranks of a group exchange, as the group holds it.
struct PartMessage {
  Dims shape;
  int element_bytes = 4;
  Sbp from, to;
  bool operator<(const PartMessage& other) const;
};
// Returns the seconds that a message takes in a group of `members` ranks, each `stride` devices from the
// next, while all other groups of that kind exchange theirs. `node`: devices per host. Messages between hosts
// use the cheapest algorithm, as compilation would choose; 0 means a single host.
double SecondsOfMessage(const Machine& machine, const PartMessage& message, int members, int stride,
                        int node);

// The seconds and bytes that a part of a model needs on one rank. Updates are counted for a step, other times
// and the bytes that are kept for gradients for one micro-batch.
struct PartAmounts {
  double forward = 0, backward = 0, update = 0;  // seconds in which kernels run
  double weights = 0, state = 0, narrow = 0;     // bytes: variables, optimizer state, casts of weights
  double gradients = 0;                          // bytes of the weights that are trained
  double stash = 0;
  // Additional bytes that a micro-batch keeps between its backward pass and its gradients of weights, if the
  // schedule computes these later (zero bubble).
  double late = 0;

  // Adds another part `count` times.
  void Add(const PartAmounts& other, double count);
};

// One rank's share of a part of a model: a block, or what comes before or after all blocks.
struct PartOfModel : PartAmounts {
  std::map<PartMessage, double> messages[2];  // over tp, and their number: of forward, of backward
};

struct ModelParts {
  PartOfModel before, after;
  std::vector<PartOfModel> block;   // of each stack of blocks (nn::layers)
  std::vector<int64_t> blocks;      // in each stack
  double boundary = 0;              // bytes that a stage sends to the next one per micro-batch
  double working = 0, besides = 0;  // other bytes at the peak; bytes of libraries
  double gaps = 1;                  // ratio of an arena's bytes to those of the buffers in it at the peak
  int64_t samples = 1;              // of the micro-batch
  int tp = 1;                       // ranks of tensor parallelism
  int node = 0;                     // of SecondsOfMessage
  uint64_t plan_hash = 0;           // of the measured plan: flags that do not change it change nothing
};

// Measures the parts of candidates with this tp, sequence_parallel and recompute, for micro-batches of
// `samples` of the space's batch. Throws what `build` throws.
ModelParts MeasureParts(const PlanSpace& space, const Machine& machine, const BuildPlan& build,
                        PlanCandidate like, int64_t samples);
// Interpolates or extrapolates two measurements linearly to micro-batches of `samples`.
ModelParts PartsAt(const ModelParts& few, const ModelParts& many, int64_t samples);

}  // namespace oneflow_like
