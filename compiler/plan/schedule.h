// Pipeline schedules, as data: the order of a stage's work, and the number of micro-batches that it keeps.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/plan/logical_plan.h"

namespace oneflow_like {

// One part of the work on one micro-batch in one chunk of a stage. A chunk is the work of a stage on a
// micro-batch until it goes to another stage.
struct Unit {
  Phase part = Phase::kForward;
  int chunk = 0;
  int micro_batch = 0;
};

struct StageSchedule {
  std::vector<Unit> units;  // in the preferred order; if one is not ready, a later one runs first
  // The phase at whose end a unit's stash is freed: kBackward or kWeightGradient.
  Phase last = Phase::kBackward;

  // The most micro-batches between the start of their forward and the end of their last part: in a chunk, in
  // all chunks.
  int Stashes(int chunk) const;
  int Stashes() const { return Stashes(-1); }
};

struct PipelineShape {
  int stages = 1, chunks = 1, micro_batches = 1;
};
// The schedule of stage `stage`. `exact`: interleaved groups of exactly as many micro-batches as stages if
// these divide their number, which keeps less and idles more.
StageSchedule ScheduleOf(PipelineSchedule kind, const PipelineShape& shape, int stage, bool exact = false);

// The number of begun acts of `from` exceeds that of ended acts of `to` by at most `micro_batches`.
struct StageLimit {
  int from = -1, to = -1;  // segments
  int micro_batches = 1;
  std::string why;
};
// The limits that its schedule, and LogicalPlan::beside, set a plan, within each epoch of a chunk.
std::vector<StageLimit> LimitsOf(const LogicalPlan& plan, int micro_batches);

// Waits in addition to limits: a forward, or gradients of weights, must not begin before the backward that
// precedes it in the list has ended, nor a forward before such gradients. A stage then keeps no more in all
// of its chunks together than its list does, and does not delay the backward of the stages before it. Empty
// if a stage has one chunk and no such gradients: limits are then enough. A model that does not go round its
// stages may not be able to follow these waits.
// `whole_units`: nor must a unit begin before the forward that precedes it in the list has ended, unless it
// is one of gradients of weights. Messages in the midst of a forward then have no other micro-batch beside
// them, and the stages after it get its result sooner.
std::vector<ActWait> WaitsOf(const LogicalPlan& plan, int micro_batches, bool whole_units);

// The stages of a plan: slices that work on each micro-batch, in mesh order, with their numbers.
std::map<Slice, int> StagesOf(const LogicalPlan& plan);
PipelineShape ShapeOf(const LogicalPlan& plan, int micro_batches);

}  // namespace oneflow_like
