// Two kernels of one thread that a stream runs for itself: they keep what changes from act to act, and what
// went wrong, in the stream's order.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

// *act = {step, time}.
void LaunchWriteAct(cudaStream_t stream, ActState* act, int64_t step, int64_t time);
// *to = *fault, and *fault is none again: what later kernels write is not mixed up with it. `to` is host
// memory as the device sees it.
void LaunchTakeFault(cudaStream_t stream, Fault* fault, Fault* to);

}  // namespace oneflow_like::cuda
