// Small matrix products in bf16 on tiles, as ops/cpu/tile.h has them in fp32. The instruction multiplies
// pairs of neighbours along the depth, so one operand is read as pairs and the other lies as rows of pairs,
// [depth / 2][columns][2]. Sums are fp32.
#pragma once

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define OFL_NARROW_TILES 1

// GCC 12 warns about a value that its own header leaves undefined on purpose.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstdint>

#include "core/float16.h"
#include "ops/cpu/loops.h"

namespace oneflow_like::cpu {

typedef uint32_t Pair __attribute__((may_alias, aligned(2)));  // two bf16; the first one is low

// c[R x 16 W] = factor a b, or c += a b. a is read pair by pair: row r, pair k at a[r * a_row + k * a_step].
template <int R, int W>
void PairKernel(int64_t pairs, const Pair* a, int64_t a_row, int64_t a_step, const uint32_t* b, int64_t ldb,
                float* c, int64_t ldc, float factor, bool add) {
  __m512 sum[R * W];
  Unrolled<R * W>([&](auto i) __attribute__((always_inline)) {
    sum[i] = add ? _mm512_loadu_ps(c + i / W * ldc + 16 * (i % W)) : _mm512_setzero_ps();
  });
  for (int64_t k = 0; k < pairs; ++k) {
    __m512bh right[W];
    Unrolled<W>([&](auto w) __attribute__((always_inline)) {
      right[w] = (__m512bh)_mm512_loadu_si512(b + k * ldb + 16 * w);
    });
    Unrolled<R>([&](auto r) __attribute__((always_inline)) {
      __m512bh left = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[r * a_row + k * a_step]));
      Unrolled<W>([&](auto w) __attribute__((always_inline)) {
        sum[r * W + w] = _mm512_dpbf16_ps(sum[r * W + w], left, right[w]);
      });
    });
  }
  const __m512 by = _mm512_set1_ps(factor);
  Unrolled<R * W>([&](auto i) __attribute__((always_inline)) {
    _mm512_storeu_ps(c + i / W * ldc + 16 * (i % W), add ? sum[i] : _mm512_mul_ps(sum[i], by));
  });
}

template <int W>
void PairColumns(int64_t rows, int64_t pairs, const Pair* a, int64_t a_row, int64_t a_step, const uint32_t* b,
                 int64_t ldb, float* c, int64_t ldc, float factor, bool add) {
  int64_t r = 0;
  for (; W == 1 && r + 12 <= rows; r += 12)  // enough sums to hide how long one takes
    PairKernel<12, W>(pairs, a + r * a_row, a_row, a_step, b, ldb, c + r * ldc, ldc, factor, add);
  for (; r + 6 <= rows; r += 6)
    PairKernel<6, W>(pairs, a + r * a_row, a_row, a_step, b, ldb, c + r * ldc, ldc, factor, add);
  for (; r + 2 <= rows; r += 2)
    PairKernel<2, W>(pairs, a + r * a_row, a_row, a_step, b, ldb, c + r * ldc, ldc, factor, add);
  if (r < rows) PairKernel<1, W>(pairs, a + r * a_row, a_row, a_step, b, ldb, c + r * ldc, ldc, factor, add);
}

// Any number of columns up to the next multiple of 16, all of which b and c have.
inline void PairProduct(int64_t rows, int64_t columns, int64_t pairs, const Pair* a, int64_t a_row,
                        int64_t a_step, const uint32_t* b, int64_t ldb, float* c, int64_t ldc, float factor,
                        bool add) {
  int64_t n = 0;
  for (; n + 48 < columns; n += 64)
    PairColumns<4>(rows, pairs, a, a_row, a_step, b + n, ldb, c + n, ldc, factor, add);
  for (; n + 16 < columns; n += 32)
    PairColumns<2>(rows, pairs, a, a_row, a_step, b + n, ldb, c + n, ldc, factor, add);
  if (n < columns) PairColumns<1>(rows, pairs, a, a_row, a_step, b + n, ldb, c + n, ldc, factor, add);
}

// Elements of two vectors in turn: the first 16 of each, and the last 16.
inline __m512i InterleaveLow(__m512i x, __m512i y) {
  const __m512i order = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                         38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  return _mm512_permutex2var_epi16(x, order, y);
}
inline __m512i InterleaveHigh(__m512i x, __m512i y) {
  const __m512i order = _mm512_set_epi16(63, 31, 62, 30, 61, 29, 60, 28, 59, 27, 58, 26, 57, 25, 56, 24, 55,
                                         23, 54, 22, 53, 21, 52, 20, 51, 19, 50, 18, 49, 17, 48, 16);
  return _mm512_permutex2var_epi16(x, order, y);
}

// to[row / 2][column][2] = from[row][column]: rows of pairs, with zeros for a row after an odd last one and
// for columns up to `pitch`, a multiple of 32.
inline void PairRows(const BFloat16* from, int64_t row, int64_t rows, int64_t width, int64_t pitch,
                     uint32_t* to) {
  for (int64_t i = 0; i < rows; i += 2, to += pitch) {
    const BFloat16 *x = from + i * row, *y = x + row;
    for (int64_t d = 0; d < pitch; d += 32) {
      int64_t left = width - d;
      __mmask32 mask = left >= 32 ? ~__mmask32{0} : left <= 0 ? 0 : (__mmask32{1} << left) - 1;
      __m512i low = _mm512_maskz_loadu_epi16(mask, x + d);
      __m512i high = _mm512_maskz_loadu_epi16(i + 1 < rows ? mask : 0, y + d);
      _mm512_storeu_si512(to + d, InterleaveLow(low, high));
      _mm512_storeu_si512(to + d + 16, InterleaveHigh(low, high));
    }
  }
}

// Rows become columns.
inline void Transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16;
       i += 4) {  // r[i + c]: in quarter q the elements of rows i to i + 3 at column 4 q + c
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {
    __m512i even = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88),
            odd = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
    __m512i even2 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88),
            odd2 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
    t[c] = _mm512_shuffle_i32x4(even, even2, 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(odd, odd2, 0x88);
    t[8 + c] = _mm512_shuffle_i32x4(even, even2, 0xdd);
    t[12 + c] = _mm512_shuffle_i32x4(odd, odd2, 0xdd);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// The first `left` of 16.
inline __mmask16 FirstOf(int64_t left) {
  return left >= 16 ? 0xFFFF : left <= 0 ? 0 : static_cast<__mmask16>((1u << left) - 1);
}

// to[d / 2][lane][2] = from[lane][d], with zeros for lanes past `count` and for d up to the next multiple of
// 32. REQUIRES: width even.
template <int kLanes>
void PairLanes(const BFloat16* from, int64_t row, int64_t count, int64_t width, uint32_t* to) {
  __m512i block[16];
  for (int64_t k = 0; k < width / 2; k += 16) {
    for (int64_t i = 0; i < kLanes; i += 16) {
      for (int64_t j = 0; j < 16; ++j) {
        __mmask16 mask = i + j < count ? FirstOf(width / 2 - k) : 0;
        block[j] = _mm512_maskz_loadu_epi32(mask, from + (i + j) * row + 2 * k);
      }
      Transpose(block);
      for (int64_t j = 0; j < 16; ++j) _mm512_storeu_si512(to + (k + j) * kLanes + i, block[j]);
    }
  }
}

// to[lane][d] = from[d][lane] * factor[lane], rounded.
template <int kLanes>
void NarrowLanes(const float* from, const float* factor, int64_t count, int64_t width, BFloat16* to,
                 int64_t row) {
  __m512i block[16];
  for (int64_t i = 0; i < count; i += 16) {
    __m512 by = _mm512_loadu_ps(factor + i);
    for (int64_t d = 0; d < width; d += 16) {
      for (int64_t j = 0; j < 16; ++j) {
        block[j] = d + j < width
                       ? _mm512_castps_si512(_mm512_mul_ps(_mm512_loadu_ps(from + (d + j) * kLanes + i), by))
                       : _mm512_setzero_si512();
      }
      Transpose(block);
      for (int64_t j = 0; j < 16 && i + j < count; ++j) {
        __m256i narrow = (__m256i)_mm512_cvtneps_pbh(_mm512_castsi512_ps(block[j]));
        _mm256_mask_storeu_epi16(to + (i + j) * row + d, FirstOf(width - d), narrow);
      }
    }
  }
}

// 32 floats rounded to nearest even: of `low` in the first half.
inline __m512i NarrowTwo(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
// Those of two rows of 16 as pairs.
inline __m512i NarrowPairs(__m512 x, __m512 y) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, NarrowTwo(x, y));
}

// 2^x to 2e-7: 2^n times the series of 2^r, |r| <= 1/2. 0 below 2^-150.
inline __m512 PowerOfTwo(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);  // a NaN stays
  __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = _mm512_sub_ps(x, n);
  const float series[] = {1.33335581e-3f, 9.61812911e-3f, 5.55041087e-2f,
                          2.40226507e-1f, 6.93147181e-1f, 1.0f};  // (ln 2)^k / k!
  __m512 p = _mm512_set1_ps(1.54035304e-4f);
  for (float c : series) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
  return _mm512_scalef_ps(p, n);
}

}  // namespace oneflow_like::cpu

#endif
