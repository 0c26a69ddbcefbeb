// Single elements of any type, whose type is looked at as the kernel runs: for kernels that need no speed.
#pragma once

#include "core/dtype.h"
#include "ops/cuda/launch.h"

namespace oneflow_like::cuda {

OFL_DEVICE bool IsFloat(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

OFL_DEVICE float LoadReal(const void* from, DType dtype, int64_t at) {
  if (dtype == DType::kBFloat16) return Load(static_cast<const BFloat16*>(from)[at]);
  if (dtype == DType::kFloat16) return Load(static_cast<const Float16*>(from)[at]);
  return static_cast<const float*>(from)[at];
}

OFL_DEVICE int64_t LoadInteger(const void* from, DType dtype, int64_t at) {
  if (dtype == DType::kInt64) return static_cast<const int64_t*>(from)[at];
  if (dtype == DType::kInt32) return static_cast<const int32_t*>(from)[at];
  return static_cast<const uint8_t*>(from)[at];
}

// The number as the element type; V is double or int64_t.
template <typename V>
OFL_DEVICE void StoreNumber(void* to, DType dtype, int64_t at, V value) {
  switch (dtype) {
    case DType::kFloat32:
      static_cast<float*>(to)[at] = static_cast<float>(value);
      return;
    case DType::kBFloat16:
      static_cast<BFloat16*>(to)[at] = Store<BFloat16>(static_cast<float>(value));
      return;
    case DType::kFloat16:
      static_cast<Float16*>(to)[at] = Store<Float16>(static_cast<float>(value));
      return;
    case DType::kInt32:
      static_cast<int32_t*>(to)[at] = static_cast<int32_t>(value);
      return;
    case DType::kInt64:
      static_cast<int64_t*>(to)[at] = static_cast<int64_t>(value);
      return;
    case DType::kUInt8:
      static_cast<uint8_t*>(to)[at] = static_cast<uint8_t>(value);
      return;
    case DType::kBool:
      static_cast<uint8_t*>(to)[at] = value != 0;
      return;
  }
}
OFL_DEVICE void StoreReal(void* to, DType dtype, int64_t at, double value) {
  StoreNumber(to, dtype, at, value);
}
OFL_DEVICE void StoreInteger(void* to, DType dtype, int64_t at, int64_t value) {
  StoreNumber(to, dtype, at, value);
}

OFL_DEVICE void CopyElement(void* to, int64_t to_at, const void* from, int64_t from_at, DType dtype) {
  switch (dtype) {
    case DType::kInt64:
      static_cast<int64_t*>(to)[to_at] = static_cast<const int64_t*>(from)[from_at];
      return;
    case DType::kFloat32:
    case DType::kInt32:
      static_cast<int32_t*>(to)[to_at] = static_cast<const int32_t*>(from)[from_at];
      return;
    case DType::kBFloat16:
    case DType::kFloat16:
      static_cast<uint16_t*>(to)[to_at] = static_cast<const uint16_t*>(from)[from_at];
      return;
    default:
      static_cast<uint8_t*>(to)[to_at] = static_cast<const uint8_t*>(from)[from_at];
  }
}

}  // namespace oneflow_like::cuda
