// Two kernels of one thread that a stream runs for itself: they write the values that change from act to act,
// and read faults, in the stream's order.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

// *act = {step, time}.
void LaunchWriteAct(cudaStream_t stream, ActState* act, int64_t step, int64_t time);
// *to = *fault, and clears *fault, so that it is not mixed up with faults of later kernels. `to` is host
// memory as the device sees it.
void LaunchTakeFault(cudaStream_t stream, Fault* fault, Fault* to);

}  // namespace oneflow_like::cuda
