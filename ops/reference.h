// Helpers for reference kernels: typed access to the pieces of tensors, loops over index boxes, broadcast.
// They are not fast: a reference kernel is the definition against which fast ones are tested. Nothing
// allocates.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/device/kernel.h"
#include "core/float16.h"

namespace oneflow_like {

// --- Element types -------------------------------------------------------------------------------

template <typename T>
constexpr bool kIsFloating =
    std::is_same_v<T, float> || std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

// The type in which a reference kernel computes: double for floating types, else int64_t.
template <typename T>
using Wide = std::conditional_t<kIsFloating<T>, double, int64_t>;

template <typename T>
Wide<T> Load(const T* at) {
  if constexpr (kIsFloating<T>) {
    if constexpr (std::is_same_v<T, float>) {
      return *at;
    } else {
      return ToFloat(*at);
    }
  } else {
    return static_cast<int64_t>(*at);
  }
}

template <typename T, typename V>
void Store(T* at, V value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    *at = ToBFloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, Float16>) {
    *at = ToFloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    *at = value != 0;
  } else {
    *at = static_cast<T>(value);
  }
}

// Calls f(T{}) with the C++ type of `dtype`, and returns what f returns.
template <typename F>
auto DispatchType(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBFloat16:
      return f(BFloat16{});
    case DType::kFloat16:
      return f(Float16{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kInt64:
      return f(int64_t{});
    case DType::kUInt8:
      return f(uint8_t{});
    case DType::kBool:
      return f(bool{});
    case DType::kFloat32:
      break;
  }
  return f(float{});
}

template <typename F>
auto DispatchFloating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBFloat16:
      return f(BFloat16{});
    case DType::kFloat16:
      return f(Float16{});
    default:
      return f(float{});
  }
}

// Element `offset` of a piece of any type, as a double (class and row numbers: LoadInt).
inline double LoadFloat(const TensorArg& arg, int64_t offset) {
  return DispatchType(arg.dtype,
                      [&](auto t) { return static_cast<double>(Load(arg.as<decltype(t)>() + offset)); });
}
inline int64_t LoadInt(const TensorArg& arg, int64_t offset) {
  return DispatchType(arg.dtype,
                      [&](auto t) { return static_cast<int64_t>(Load(arg.as<decltype(t)>() + offset)); });
}
inline void StoreFloat(const TensorArg& arg, int64_t offset, double value) {
  DispatchType(arg.dtype, [&](auto t) { Store(arg.as<decltype(t)>() + offset, value); });
}

// --- Index boxes ---------------------------------------------------------------------------------

// Calls body(const Dims& index) for every index of [0, extent), the last axis running fastest; once for a
// scalar.
template <typename F>
void ForEachIndex(const Dims& extent, F&& body) {
  Dims index(extent.rank(), int64_t{0});
  for (int64_t n = extent.elements(); n > 0; --n) {
    body(std::as_const(index));
    for (int axis = extent.rank() - 1; axis >= 0; --axis) {
      if (++index[axis] < extent[axis]) break;
      index[axis] = 0;
    }
  }
}

// Row-major offset of `index` in a box of these extents.
inline int64_t OffsetOf(const Dims& extent, const Dims& index) {
  int64_t offset = 0;
  for (int axis = 0; axis < extent.rank(); ++axis) offset = offset * extent[axis] + index[axis];
  return offset;
}

// The same for an operand that broadcasts to the box `index` walks over: aligned at the last axis, extent 1
// repeats.
inline int64_t BroadcastOffset(const Dims& extent, const Dims& index) {
  int64_t offset = 0;
  int skip = index.rank() - extent.rank();
  for (int axis = 0; axis < extent.rank(); ++axis) {
    offset = offset * extent[axis] + (extent[axis] == 1 ? 0 : index[skip + axis]);
  }
  return offset;
}

// Row-major number in the whole tensor of the element at local `index` of a piece; keys random draws.
inline int64_t GlobalIndex(const TensorArg& arg, const Dims& index) {
  int64_t offset = 0;
  for (int axis = 0; axis < arg.global.rank(); ++axis) {
    offset = offset * arg.global[axis] + arg.begin[axis] + index[axis];
  }
  return offset;
}

// Extents before and after one axis, multiplied: [outer, extent[axis], inner]. `axis` may be the rank (inner
// 1).
inline int64_t OuterOf(const Dims& extent, int axis) {
  int64_t n = 1;
  for (int i = 0; i < axis; ++i) n *= extent[i];
  return n;
}
inline int64_t InnerOf(const Dims& extent, int axis) {
  int64_t n = 1;
  for (int i = axis + 1; i < extent.rank(); ++i) n *= extent[i];
  return n;
}

// --- Random numbers ------------------------------------------------------------------------------

// The number whose standard normal distribution function is u, 0 < u < 1. Relative error below 1.2e-9: a
// quotient of polynomials in u - 1/2 in the middle, in sqrt(-2 log u) in the tails (the form and coefficients
// of P. Acklam).
double InverseNormal(double u);

// gelu in its form with tanh (Hendrycks and Gimpel 2016), and its slope.
inline constexpr double kGeluTanhScale = 0.7978845608028654;  // sqrt(2 / pi)
inline constexpr double kGeluTanhCubic = 0.044715;
inline double GeluOf(double x) {
  return 0.5 * x * (1 + std::tanh(kGeluTanhScale * (x + kGeluTanhCubic * x * x * x)));
}
inline double GeluSlopeOf(double x) {
  const double t = std::tanh(kGeluTanhScale * (x + kGeluTanhCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGeluTanhScale * (1 + 3 * kGeluTanhCubic * x * x);
}

}  // namespace oneflow_like
