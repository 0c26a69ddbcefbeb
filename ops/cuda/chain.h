// What chain.cc and elementwise.cu share.
#pragma once

#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

// One elementwise operator whose operands are not all floating or bool: integers, and casts between any
// types.
KernelPtr MakeTypedElementwise(const KernelSpec& spec);

}  // namespace oneflow_like::cuda
