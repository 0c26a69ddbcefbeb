// Attribute of products and convolutions: 1 lets a GPU round their operands in fp32 to TF32 (10 bits of
// mantissa), which its tensor cores take. Only nodes whose kernels look at it have it
// (compiler/passes/mixed_precision.cc), so costs and OpDef::cuda_unit go by it, too.
#pragma once

#include "core/attrs.h"

namespace oneflow_like {

constexpr char kTf32[] = "tf32";
inline bool MayRoundToTf32(const Attrs& attrs) { return attrs.Int(kTf32, 0) != 0; }

}  // namespace oneflow_like
