// For tests of Recompute::kAuto: trainings with a budget, and what a session takes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "oneflow_like/model/variables.h"
#include "tests/oneflow_like/fullest_rank.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {

inline double SecondsOf(const Session& session) { return session.impl()->compiled.logical.makespan; }

inline SmallGpt Automatic(SmallGpt given, int64_t budget) {
  given.recompute = Recompute::kAuto;
  given.model_options.memory_budget = budget;
  return given;
}

constexpr PipelineSchedule kInterleaved = PipelineSchedule::kInterleaved,
                           kZeroBubble = PipelineSchedule::kZeroBubble, kGPipe = PipelineSchedule::kGPipe;

}  // namespace oneflow_like
