// How a pipeline orders micro-batches: which of the schedules in compiler/schedule.h.
#pragma once

namespace oneflow_like {

// GPipe runs all forward micro-batches before the first backward. 1F1B alternates once a stage is filled, and
// keeps no more micro-batches under way than there are stages left; where the model comes back to a stage
// (virtual stages) it is interleaved: micro-batches go in groups, as even as they come, of at least as many
// as there are stages. Zero bubble is the same with gradients of weights apart, in time that would be lost.
enum class PipelineSchedule { kGPipe, k1F1B, kInterleaved, kZeroBubble };
const char* Name(PipelineSchedule schedule);  // "gpipe", "1f1b", "interleaved", "zero_bubble"

}  // namespace oneflow_like
