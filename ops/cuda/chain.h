// Shared by chain.cc, elementwise.cu and cast.cu.
#pragma once

#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

// One elementwise operator whose operands are not all floating or bool: integers, and casts between any
// types.
KernelPtr MakeTypedElementwise(const KernelSpec& spec);
// A cast between fp32 and a 16-bit type; null for any other.
KernelPtr MakeFloatCast(DType from, DType to);

}  // namespace oneflow_like::cuda
