// The fast CPU kernels: one call enters them all.
#pragma once

#include "core/device/kernel.h"

namespace oneflow_like {

// Adds the kernels of device kind "cpu". A kernel is fast on f32 (and where its file says so on other types);
// for other types its factory gives the operator's reference kernel, so every built-in operator runs on every
// type. Kernels are of the highest level of instructions that the processor supports (levels.h).
void AddCpuKernels(KernelRegistry* registry);

}  // namespace oneflow_like
