// Failures of the CUDA runtime as messages: its name for the failure, its sentence, and the failed operation.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "core/error.h"

namespace oneflow_like::cuda {

// "cudaErrorIllegalAddress (an illegal memory access was encountered)"
inline std::string Say(cudaError_t error) {
  return Cat(cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
}

// Throws Error "<what>: <the failure>" unless the call succeeded. Clears the runtime's last error.
template <typename... What>
void Require(cudaError_t error, const What&... what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  Fail(what..., ": ", Say(error));
}

}  // namespace oneflow_like::cuda
