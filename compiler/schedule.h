// Pipeline schedules, as data: what a stage does in which order, and how many micro-batches it keeps.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/logical_plan.h"

namespace oneflow_like {

// One part of the work on one micro-batch in one chunk of a stage. A chunk is what a stage works on until
// the micro-batch goes to another one.
struct Unit {
  Phase part = Phase::kForward;
  int chunk = 0;
  int micro_batch = 0;
};

struct StageSchedule {
  std::vector<Unit> units;  // in the order wanted; where one is not ready, a later one goes first
  // The part at whose end a unit's stash is let go of: kBackward or kWeightGradient.
  Phase last = Phase::kBackward;

  // Micro-batches between the start of their forward and the end of their last part: of a chunk, of all.
  int Stashes(int chunk) const;
  int Stashes() const { return Stashes(-1); }
};

struct PipelineShape {
  int stages = 1, chunks = 1, micro_batches = 1;
};
// Of stage `stage`. `exact`: interleaved groups of exactly as many micro-batches as stages where these divide
// them, which keeps less and idles more.
StageSchedule ScheduleOf(PipelineSchedule kind, const PipelineShape& shape, int stage, bool exact = false);

// Acts of `from` that have begun are ahead of acts of `to` that have ended by at most so many.
struct StageLimit {
  int from = -1, to = -1;  // segments
  int micro_batches = 1;
  std::string why;
};
// What its schedule demands of a plan, within each epoch of a chunk.
std::vector<StageLimit> LimitsOf(const LogicalPlan& plan, int micro_batches);

// What limits do not say: a forward, or gradients of weights, does not begin before the backward that stands
// ahead of it in the list has ended, nor a forward before such gradients. A stage then keeps no more in all
// of its chunks together than its list does, and does not hold up the backward of the stages before it. Empty
// where a stage has one chunk and no such gradients: there limits are enough. A model that does not go round
// its stages may not be able to follow.
std::vector<ActWait> WaitsOf(const LogicalPlan& plan, int micro_batches);

// The stages of a plan: slices that work on each micro-batch, in mesh order, with their numbers.
std::map<Slice, int> StagesOf(const LogicalPlan& plan);
PipelineShape ShapeOf(const LogicalPlan& plan, int micro_batches);

}  // namespace oneflow_like
