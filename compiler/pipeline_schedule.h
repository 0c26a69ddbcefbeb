// How a pipeline orders micro-batches: which of the schedules in compiler/schedule.h.
#pragma once

namespace oneflow_like {

// GPipe runs all forward micro-batches before the first backward; 1F1B alternates once a stage is filled, and
// keeps no more micro-batches under way than there are stages left.
enum class PipelineSchedule { kGPipe, k1F1B };

}  // namespace oneflow_like
