// What the parts of a model take on a described machine, measured on plans of a few blocks: the search for a
// plan (plan_search.h) estimates whole plans from these.
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
// Seconds that a message takes in a group of so many members, each `stride` devices from the next, while all
// other groups of that kind exchange theirs.
// Between sets of so many neighbours (`node`) it goes by the cheapest algorithm, as compilation would choose;
// 0: none is named.
double SecondsOfMessage(const Machine& machine, const PartMessage& message, int members, int stride,
                        int node);

// One rank's share of a part of a model: a block, or what comes before or after all blocks. Times are of one
// micro-batch, and of a step for updates; bytes that are kept for gradients are of one micro-batch.
struct PartOfModel {
  double forward = 0, backward = 0, update = 0;  // seconds in which kernels run
  double weights = 0, state = 0, narrow = 0;     // bytes: variables, optimizer state, casts of weights
  double gradients = 0;                          // bytes of the weights that are trained
  double stash = 0;
  // More that a micro-batch keeps between its backward pass and its gradients of weights, where these come
  // later (zero bubble).
  double late = 0;
  std::map<PartMessage, double> messages[2];  // over tp, and how many: of forward, of backward
};

struct ModelParts {
  PartOfModel before, after;
  std::vector<PartOfModel> block;   // of each stack of blocks (nn::layers)
  std::vector<int64_t> blocks;      // in each stack
  double boundary = 0;              // bytes that one stage gives to the next, of one micro-batch
  double working = 0, besides = 0;  // bytes at the peak that are none of the above; of libraries
  double gaps = 1;                  // bytes of arenas over what lies in them at the peak
  int64_t samples = 1;              // of the micro-batch
  int tp = 1;                       // ranks that share it
  int node = 0;                     // of SecondsOfMessage
  uint64_t plan_hash = 0;           // of what was measured: flags that do not change it change nothing
};

// The parts of a candidate of this tp, sequence_parallel and recompute for micro-batches of `samples` of the
// space's batch. Throws what `build` throws.
ModelParts MeasureParts(const PlanSpace& space, const Machine& machine, const BuildPlan& build,
                        PlanCandidate like, int64_t samples);
// Between two measurements, and beyond them, everything is a straight line of the samples.
ModelParts PartsAt(const ModelParts& few, const ModelParts& many, int64_t samples);

}  // namespace oneflow_like
