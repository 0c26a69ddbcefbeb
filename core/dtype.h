// Element types of tensors and their sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace oneflow_like {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16, kInt32, kInt64, kUInt8, kBool };

size_t SizeOf(DType dtype);     // bytes of one element
const char* Name(DType dtype);  // "f32", "bf16", "f16", "i32", "i64", "u8", "bool"
bool ParseDType(const std::string& text, DType* dtype);
bool IsFloating(DType dtype);

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kInt64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kUInt8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};

}  // namespace oneflow_like
