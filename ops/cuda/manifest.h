// The readable manifest of CUDA kernels (manifest.cc): every operator, local boxing and initialiser.
#pragma once

#include "core/device/kernel.h"

namespace oneflow_like {

void AddCudaKernels(KernelRegistry* registry);

}  // namespace oneflow_like
