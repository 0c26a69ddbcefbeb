// Flags of programs that name a type: --dtype, which matrix products and activations are computed in, and
// --reduce_dtype, of gradients that are summed over devices.
#pragma once

#include <string>

#include "core/dtype.h"
#include "core/error.h"

namespace oneflow_like {

// "fp32", "bf16" or "fp16"; throws Error for anything else.
inline DType PrecisionOf(const std::string& value, const std::string& flag = "dtype") {
  if (value == "fp32") return DType::kFloat32;
  if (value == "bf16") return DType::kBFloat16;
  if (value == "fp16") return DType::kFloat16;
  Fail("--", flag, "=", value, ": must be fp32, bf16 or fp16");
}

// The value of such a flag that names the type. REQUIRES: one does.
inline std::string PrecisionName(DType type) {
  return type == DType::kFloat32 ? "fp32" : type == DType::kBFloat16 ? "bf16" : "fp16";
}

}  // namespace oneflow_like
