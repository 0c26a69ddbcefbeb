// The order of micro-batches in a pipeline: one of the schedules in compiler/plan/schedule.h.
#pragma once

namespace oneflow_like {

// GPipe runs all forward micro-batches before the first backward. 1F1B alternates once a stage is filled, and
// keeps no more micro-batches in flight than there are stages left. With virtual stages (the model returns to
// a stage) it is interleaved: micro-batches run in groups, as even as possible, of at least as many as there
// are stages. Zero bubble also separates gradients of weights, and computes them in time that would be idle.
enum class PipelineSchedule { kGPipe, k1F1B, kInterleaved, kZeroBubble };
const char* Name(PipelineSchedule schedule);  // "gpipe", "1f1b", "interleaved", "zero_bubble"

}  // namespace oneflow_like
