// The products of attention in bf16 on a tile of keys by 64 queries (attention_tile.h), by instructions for
// pairs or on AMX's tiles. attention_narrow.cc is a template of either class:
//
//   Across(rows of keys or values) -> the left operand of Lanes
//   Scores: c[key][lane]  = rows of a head [key][d]   times [d / 2][lane][2]
//   Lanes:  c[d][lane]   += of Across [d][key]        times [key / 2][lane][2]
//   Keys:   c[key][d]    += a tile [key][lane]        times [lane / 2][d][2]
//
// Where `first` is below the number of keys, lane i has only keys before first + i, as on the diagonal of a
// causal mask, and most of what it masks is left out.
//
// Operands are padded: rows of a head's width to a multiple of 32 columns, tiles and blocks of queries to 64
// rows. All that lies past the last key, lane or column is zero in both operands of a sum over it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/attention_tile.h"
#include "ops/cpu/narrow_tile.h"

namespace oneflow_like::cpu {

inline constexpr int64_t RoundedUp(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Columns of rows of a head.
inline constexpr int64_t PitchOf(int64_t width) { return RoundedUp(width, 32); }

// How many of the first keys lanes before `lanes` have.
inline int64_t KeysBefore(int64_t keys, int64_t first, int64_t lanes) {
  return first >= keys ? keys : std::clamp<int64_t>(first + lanes - 1, 0, keys);
}

// Rows of one head in bf16.
struct HeadRows {
  const BFloat16* at;
  int64_t row;  // elements from one to the next
};

#if defined(OFL_NARROW_TILES)

// By instructions that multiply pairs (AVX-512 BF16). Left operands are read pair by pair.
class PairProducts {
 public:
  // Scores come with their factor.
  static constexpr bool kScales = true;
  // Whether sums stay with a reference that is near the greatest score.
  static constexpr bool kKeepsReference = false;

  static __m512 Power(__m512 x) { return PowerOfTwo(x); }

  // to[key / 2][d][2]
  static void Across(HeadRows from, int64_t keys, int64_t width, uint32_t* to) {
    PairRows(from.at, from.row, keys, width, PitchOf(width), to);
  }

  void Scores(int64_t keys, int64_t first, int64_t width, HeadRows a, BFloat16* /*room*/, const uint32_t* b,
              float factor, float* c) {
    if (first >= keys)
      return PairProduct(keys, kLanes, width / 2, Pairs(a.at), a.row / 2, 1, b, kLanes, c, kLanes, factor,
                         false);
    for (int64_t n = 0; n < kLanes; n += 16)
      PairColumns<1>(KeysBefore(keys, first, n + 16), width / 2, Pairs(a.at), a.row / 2, 1, b + n, kLanes,
                     c + n, kLanes, factor, false);
  }

  void Lanes(int64_t width, int64_t keys, int64_t first, const uint32_t* a, const uint32_t* b, float* c) {
    const int64_t pitch = PitchOf(width);
    if (first >= keys)
      return PairProduct(width, kLanes, (keys + 1) / 2, Pairs(a), 1, pitch, b, kLanes, c, kLanes, 1, true);
    for (int64_t n = 0; n < kLanes; n += 16)
      PairColumns<1>(width, (KeysBefore(keys, first, n + 16) + 1) / 2, Pairs(a), 1, pitch, b + n, kLanes,
                     c + n, kLanes, 1, true);
  }

  void Keys(int64_t keys, int64_t width, int64_t first, int64_t count, const BFloat16* a, const uint32_t* b,
            float* c) {
    const int64_t pitch = PitchOf(width), pairs = (count + 1) / 2, step = first >= keys ? keys : 12;
    for (int64_t j = 0; j < keys; j += step) {
      const int64_t begin = std::clamp<int64_t>((j - first + 1) / 2, 0, pairs);
      PairProduct(std::min(step, keys - j), width, pairs - begin, Pairs(a + j * kLanes) + begin, kLanes / 2,
                  1, b + begin * pitch, pitch, c + j * pitch, pitch, 1, true);
    }
  }

 private:
  static const Pair* Pairs(const void* x) { return static_cast<const Pair*>(x); }
};

// On AMX's tiles, all of 16 rows of 64 bytes. Blocks of 32 by 32 sums take a load of 8 cycles for each
// product of 16.
template <typename Tiles>
class TileProducts {
 public:
  static constexpr bool kScales = false;
  static constexpr bool kKeepsReference = true;

  TileProducts() : tiles_(TileShapes::Full()) {}

  // To 1e-7; 0 of minus infinity. In nine operations where PowerOfTwo has twelve: beside products on tiles
  // most of the time goes here.
  static __m512 Power(__m512 x) {
    const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x - floor(x)
    const float series[] = {9.01703032e-3f, 5.57999131e-2f, 2.40164450e-1f, 6.93151312e-1f, 1.0f};
    __m512 p = _mm512_set1_ps(1.86713007e-3f);
    for (float c : series) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    return _mm512_scalef_ps(p, x);
  }

  // to[d][key], rows of 64 keys.
  static void Across(HeadRows from, int64_t keys, int64_t width, uint32_t* to) {
    __m512i block[16];
    for (int64_t d = 0; d < width; d += 16) {
      const __mmask16 columns = FirstOf(width - d);
      const auto half = [&](int64_t key) {
        return _mm512_cvtepu16_epi32(
            _mm256_maskz_loadu_epi16(key < keys ? columns : 0, from.at + key * from.row + d));
      };
      for (int64_t j = 0; j < RoundedUp(keys, 32); j += 32) {
        for (int64_t i = 0; i < 16; ++i)
          block[i] = _mm512_or_si512(half(j + 2 * i), _mm512_slli_epi32(half(j + 2 * i + 1), 16));
        Transpose(block);
        for (int64_t i = 0; i < 16; ++i)
          _mm512_storeu_si512(to + (d + i) * (kTileKeys / 2) + j / 2, block[i]);
      }
    }
  }

  void Scores(int64_t keys, int64_t first, int64_t width, HeadRows a, BFloat16* room, const uint32_t* b,
              float /*factor*/, float* c) {
    const int64_t pitch = PitchOf(width);
    if (width != pitch || keys % 16 != 0) a = Padded(a, keys, width, room);
    if (first >= keys)
      return Product(RoundedUp(keys, 16), kLanes, pitch, a.at, a.row, b, kLanes, c, kLanes, false);
    for (int64_t n = 0; n < kLanes; n += 16)
      Columns<1>(RoundedUp(KeysBefore(keys, first, n + 16), 16), pitch, a.at, a.row, b + n, kLanes, c + n,
                 kLanes, false);
  }

  void Lanes(int64_t width, int64_t keys, int64_t first, const uint32_t* a, const uint32_t* b, float* c) {
    const auto* left = reinterpret_cast<const BFloat16*>(a);
    for (int64_t n = 0; n < kLanes; n += 32)
      Columns<2>(RoundedUp(width, 16), RoundedUp(KeysBefore(keys, first, n + 32), 32), left, kTileKeys, b + n,
                 kLanes, c + n, kLanes, true);
  }

  void Keys(int64_t keys, int64_t width, int64_t first, int64_t count, const BFloat16* a, const uint32_t* b,
            float* c) {
    const int64_t pitch = PitchOf(width), lanes = RoundedUp(count, 32), rows = RoundedUp(keys, 16),
                  step = first >= keys ? rows : 32;
    for (int64_t j = 0; j < rows; j += step) {
      const int64_t begin = std::clamp<int64_t>(j - first + 1, 0, lanes) / 32 * 32;
      Product(std::min(step, rows - j), RoundedUp(width, 16), lanes - begin, a + j * kLanes + begin, kLanes,
              b + begin / 2 * pitch, pitch, c + j * pitch, pitch, true);
    }
  }

 private:
  static HeadRows Padded(HeadRows from, int64_t keys, int64_t width, BFloat16* to) {
    const int64_t pitch = PitchOf(width);
    for (int64_t i = 0; i < RoundedUp(keys, 16); ++i)
      for (int64_t d = 0; d < pitch; d += 32) {
        const __mmask32 mask =
            i < keys ? _cvtu32_mask32(FirstOf(width - d) | FirstOf(width - d - 16) << 16) : 0;
        _mm512_storeu_si512(to + i * pitch + d, _mm512_maskz_loadu_epi16(mask, from.at + i * from.row + d));
      }
    return {to, pitch};
  }

  // c[16 R x 16 W] (+)= a[16 R x depth] b[depth x 16 W], the depth a multiple of 32; b in rows of pairs.
  // Tiles 0 to 3 are sums, 4 and 5 of a, 6 and 7 of b.
  template <int R, int W>
  void Block(int64_t depth, const BFloat16* a, int64_t a_row, const uint32_t* b, int64_t b_row, float* c,
             int64_t c_row, bool add) {
    const int64_t a_bytes = a_row * 2, b_bytes = b_row * 4, c_bytes = c_row * 4;
    Unrolled<R * W>([&](auto i) __attribute__((always_inline)) {
      if (add) {
        tiles_.template Load<i>(c + i / W * 16 * c_row + 16 * (i % W), c_bytes);
      } else {
        tiles_.template Zero<i>();
      }
    });
    for (int64_t k = 0; k < depth; k += 32, a += 32, b += 16 * b_row) {
      Unrolled<W>([&](auto w)
                      __attribute__((always_inline)) { tiles_.template Load<6 + w>(b + 16 * w, b_bytes); });
      Unrolled<R>([&](auto r) __attribute__((always_inline)) {
        tiles_.template Load<4 + r>(a + 16 * r * a_row, a_bytes);
        Unrolled<W>([&](auto w) __attribute__((always_inline)) {
          tiles_.template AddProduct<r * W + w, 4 + r, 6 + w>();
        });
      });
    }
    Unrolled<R * W>([&](auto i) __attribute__((always_inline)) {
      tiles_.template Store<i>(c + i / W * 16 * c_row + 16 * (i % W), c_bytes);
    });
  }

  // Rows: a multiple of 16.
  template <int W>
  void Columns(int64_t rows, int64_t depth, const BFloat16* a, int64_t a_row, const uint32_t* b,
               int64_t b_row, float* c, int64_t c_row, bool add) {
    int64_t r = 0;
    for (; r + 32 <= rows; r += 32)
      Block<2, W>(depth, a + r * a_row, a_row, b, b_row, c + r * c_row, c_row, add);
    if (r < rows) Block<1, W>(depth, a + r * a_row, a_row, b, b_row, c + r * c_row, c_row, add);
  }

  // Columns, too.
  void Product(int64_t rows, int64_t columns, int64_t depth, const BFloat16* a, int64_t a_row,
               const uint32_t* b, int64_t b_row, float* c, int64_t c_row, bool add) {
    int64_t n = 0;
    for (; n + 32 <= columns; n += 32) Columns<2>(rows, depth, a, a_row, b + n, b_row, c + n, c_row, add);
    if (n < columns) Columns<1>(rows, depth, a, a_row, b + n, b_row, c + n, c_row, add);
  }

  Tiles tiles_;
};

#endif

}  // namespace oneflow_like::cpu
