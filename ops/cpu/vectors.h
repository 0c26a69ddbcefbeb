// Rows of channels in vectors of 16 floats: elements of any floating type are widened as they are loaded and
// rounded as they are stored.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/convert.h"
#include "ops/cpu/tile.h"

// Vectors are passed between inlined functions alone: how a build without AVX-512 passes them is no matter.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace oneflow_like::cpu {

typedef uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));
using Words = uint32_t __attribute__((vector_size(64)));
using FullVector = std::integral_constant<int64_t, 16>;

// 16 elements in fp32, of which `lanes` are in memory and the others `rest`. `lanes` is a constant 16 but at
// a row's end.
template <typename T, typename Lanes>
Vector LoadVector(const T* from, Lanes lanes, float rest = 0) {
  if constexpr (std::is_same_v<Lanes, FullVector>) {
    if constexpr (std::is_same_v<T, float>) {
      return *reinterpret_cast<const Vector*>(from);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
#if defined(__AVX512F__)  // in two halves if the compiler is left to choose
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
      return std::bit_cast<Vector>(
          _mm512_maskz_slli_epi32(0xFFFF, _mm512_maskz_cvtepu16_epi32(0xFFFF, bits), 16));
#else
      const Halves bits = *reinterpret_cast<const Halves*>(from);
      return std::bit_cast<Vector>(__builtin_convertvector(bits, Words) << 16);
#endif
    }
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, Float16>) {
      return std::bit_cast<Vector>(
          _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
    }
#endif
  }
  alignas(64) float wide[16];
  std::fill_n(wide, 16, rest);
  Widen(from, lanes, wide);
  return *reinterpret_cast<const Vector*>(wide);
}
template <typename T, typename Lanes>
void StoreVector(Vector value, Lanes lanes, T* to) {
  if constexpr (std::is_same_v<Lanes, FullVector> && std::is_same_v<T, float>) {
    *reinterpret_cast<Vector*>(to) = value;
  } else {
    Narrow(reinterpret_cast<const float*>(&value), lanes, to);
  }
}

// body(first element, lanes) for each vector of a row.
template <typename F>
[[gnu::always_inline]] inline void ForVectors(int64_t width, F&& body) {
  int64_t c = 0;
  for (; c + 16 <= width; c += 16) body(c, FullVector());
  if (c < width) body(c, (width - c) & 15);  // the compiler then knows that it is less than 16
}

// The same with several vectors at a time: body(first element, how many vectors, lanes of each). For loops
// over positions inside: what they read of a position is then a run of 256 bytes.
template <typename F>
[[gnu::always_inline]] inline void ForVectorGroups(int64_t width, F&& body) {
  int64_t c = 0;
  for (; c + 64 <= width; c += 64) body(c, std::integral_constant<int, 4>(), FullVector());
  for (; c + 16 <= width; c += 16) body(c, std::integral_constant<int, 1>(), FullVector());
  if (c < width) body(c, std::integral_constant<int, 1>(), (width - c) & 15);
}

inline float SumOfLanes(Vector v) {
  float sum = 0;
  for (int i = 0; i < 16; ++i) sum += v[i];
  return sum;
}

// The same, halves added to halves: a shorter chain, another order.
inline float SumOfHalves(Vector v) {
  using Eight = float __attribute__((vector_size(32)));
  using Four = float __attribute__((vector_size(16)));
  const Eight eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const Four four =
      __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

}  // namespace oneflow_like::cpu
