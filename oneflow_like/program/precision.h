// The flag --dtype of the examples: what matrix products and activations are computed in.
#pragma once

#include <string>

#include "core/dtype.h"
#include "core/error.h"

namespace oneflow_like {

// "fp32", "bf16" or "fp16"; throws Error for anything else.
inline DType PrecisionOf(const std::string& flag) {
  if (flag == "fp32") return DType::kFloat32;
  if (flag == "bf16") return DType::kBFloat16;
  if (flag == "fp16") return DType::kFloat16;
  Fail("--dtype=", flag, ": must be fp32, bf16 or fp16");
}

}  // namespace oneflow_like
