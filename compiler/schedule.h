// Pipeline schedules, as data: what a stage does in which order, and how many micro-batches it keeps.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/logical_plan.h"

namespace oneflow_like {

// The forward or the backward of one micro-batch on one stage.
struct Unit {
  Phase part = Phase::kForward;
  int micro_batch = 0;
};

struct StageSchedule {
  std::vector<Unit> units;  // in the order wanted; where one is not ready, a later one goes first
  int stashes = 0;          // micro-batches between the start of their forward and the end of their backward
};

// Of stage `stage` of `stages`, for a step of so many micro-batches.
StageSchedule ScheduleOf(PipelineSchedule kind, int stage, int stages, int micro_batches);

// Acts of `from` that have begun are ahead of acts of `to` that have ended by at most so many.
struct StageLimit {
  int from = -1, to = -1;  // segments
  int micro_batches = 1;
  std::string why;
};
// What its schedule demands of a plan, within each epoch of a stage.
std::vector<StageLimit> LimitsOf(const LogicalPlan& plan, int micro_batches);

// The stages of a plan: slices that work on each micro-batch, in mesh order, with their numbers.
std::map<Slice, int> StagesOf(const LogicalPlan& plan);

}  // namespace oneflow_like
