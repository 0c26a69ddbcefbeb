// Matrices in bf16 as operands of a product by panels whose elements are pairs of neighbours along k
// (narrow_tile.h). After an odd last element comes a zero.
#pragma once

#include "ops/cpu/narrow_tile.h"

#if defined(OFL_NARROW_TILES)

#include <algorithm>
#include <cstring>

#include "ops/cpu/matrix_product.h"
#include "ops/cpu/panel_product.h"

namespace oneflow_like::cpu {

// Whether products are large enough to be worth the pairing, as NarrowProduct's are.
inline bool WorthPairs(const MatrixProduct& p) {
  const ProductLayout& l = p.layout;
  return p.summed.empty() && l.k > 1 && l.m * l.n * l.k >= 32768;
}

// And along k for tiles, whose products take 32 elements of it.
inline bool WorthTiles(const MatrixProduct& p) { return WorthPairs(p) && p.layout.k >= 32; }

inline uint32_t PairOf(BFloat16 first, BFloat16 second) {
  uint16_t low, high;
  std::memcpy(&low, &first, sizeof low);
  std::memcpy(&high, &second, sizeof high);
  return low | static_cast<uint32_t>(high) << 16;
}

// A vector of k at a time: element j of it, or the zero behind the last.
struct PairedDepth {
  int64_t k, step;
  uint32_t At(const BFloat16* from, int64_t pair) const {
    const BFloat16* first = from + 2 * pair * step;
    return PairOf(*first, 2 * pair + 1 < k ? first[step] : BFloat16{});
  }
  // Elements of `depth` pairs from `pair` on.
  int64_t Elements(int64_t pair, int64_t depth) const { return std::min(2 * depth, k - 2 * pair); }
};

class PairLeft : public LeftPanels {
 public:
  PairLeft(const ProductLayout& l, const void* a)
      : a_(static_cast<const BFloat16*>(a)), row_(l.a_row), depth_{l.k, l.a_column} {}

  PanelBlock Read(int64_t m, int64_t rows, int64_t k, int64_t depth, float* room) const override {
    const BFloat16* from = a_ + m * row_;
    const int64_t elements = depth_.Elements(k, depth);
    uint32_t* to = reinterpret_cast<uint32_t*>(room);
    if (depth_.step == 1) {
      const BFloat16* first = from + 2 * k;
      if (row_ % 2 == 0 && elements == 2 * depth) return {reinterpret_cast<const float*>(first), row_ / 2, 1};
      for (int64_t i = 0; i < rows; ++i, first += row_) {
        to[(i + 1) * depth - 1] = 0;
        std::memcpy(to + i * depth, first, elements * sizeof(BFloat16));
      }
      return {room, depth, 1};
    }
    if (row_ == 1) {
      const int64_t pitch = (rows + 31) / 32 * 32;
      PairRows(from + 2 * k * depth_.step, depth_.step, elements, rows, pitch, to);
      return {room, 1, pitch};
    }
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < depth; ++j) to[i * depth + j] = depth_.At(from + i * row_, k + j);
    return {room, depth, 1};
  }

 private:
  const BFloat16* a_;
  int64_t row_;
  PairedDepth depth_;
};

// Rows of dense pairs where they lie, or packed as tiles, one behind the other along k.
class TileLeft : public TiledLeft {
 public:
  TileLeft(const ProductLayout& l, const void* a)
      : a_(static_cast<const BFloat16*>(a)), row_(l.a_row), depth_{l.k, l.a_column}, packs_(Packs(l)) {}

  bool packs() const override { return packs_; }

  LeftTiles Read(int64_t m, int64_t rows, int64_t k, int64_t depth, float* room) const override {
    const BFloat16* from = a_ + m * row_;
    const int64_t elements = depth_.Elements(k, depth), pairs = (depth + 15) / 16 * 16;
    const int64_t row_bytes = row_ * static_cast<int64_t>(sizeof(BFloat16));
    if (!packs_ && rows % 16 == 0 && elements == 2 * pairs)
      return {reinterpret_cast<const char*>(from + 2 * k), row_bytes, 64, 16 * row_bytes};
    uint32_t* to = reinterpret_cast<uint32_t*>(room);
    for (int64_t j = 0; j < pairs; j += 16) {  // the same lines of a matrix by columns for all rows
      for (int64_t i = 0; i < rows; i += 16) {
        const int64_t height = std::min<int64_t>(16, rows - i),
                      width = std::min<int64_t>(32, elements - 2 * j);
        PackTile(from + i * row_, k + j, height, width, to + i * pairs + 16 * j);
      }
    }
    return {reinterpret_cast<const char*>(room), 64, 1024, 64 * pairs};
  }

 private:
  // Rows a multiple of 2 KB apart share 32 of the 64 sets of a first-level cache or fewer: it would not keep
  // a block of 32 rows over the columns of the right operand.
  static bool Packs(const ProductLayout& l) {
    constexpr int64_t kSharesSets = 1024, kManyColumns = 256;  // elements
    return l.a_column != 1 || l.a_row % 2 != 0 || (l.a_row % kSharesSets == 0 && l.n >= kManyColumns);
  }

  void PackTile(const BFloat16* from, int64_t pair, int64_t rows, int64_t elements, uint32_t* to) const {
    int64_t i = 0;
    if (row_ == 1 && elements == 32)
      for (; i + 8 <= rows; i += 8) TurnEight(from + 2 * pair * depth_.step + i, to + 16 * i);
    for (; i < 16; ++i) {
      const BFloat16* row = from + i * row_;
      uint32_t* pairs = to + 16 * i;
      const int64_t count = i < rows ? std::max<int64_t>(0, elements) : 0;
      std::memset(pairs, 0, 64);
      if (depth_.step == 1) {
        std::memcpy(pairs, row + 2 * pair, count * sizeof(BFloat16));
      } else {
        for (int64_t j = 0; 2 * j < count; ++j) pairs[j] = depth_.At(row, pair + j);
      }
    }
  }

  // to[row][16 pairs] of eight rows whose elements are next to each other in memory. The four quarters of a
  // vector are filled from rows eight apart: half of a transpose is then left to loads.
  void TurnEight(const BFloat16* from, uint32_t* to) const {
    __m512i column[2][4];  // of pairs of neighbouring rows; of k, the first or the second four of each eight
    for (int half = 0; half < 2; ++half) {
      __m512i r[4];
      for (int i = 0; i < 4; ++i) {
        const BFloat16* at = from + (4 * half + i) * depth_.step;
        const auto eight = [&](int quarter) {
          return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 8 * quarter * depth_.step));
        };
        r[i] = _mm512_inserti32x4(_mm512_castsi128_si512(eight(0)), eight(1), 1);
        r[i] = _mm512_inserti32x4(_mm512_inserti32x4(r[i], eight(2), 2), eight(3), 3);
      }
      const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]),
                    c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
      column[half][0] = _mm512_unpacklo_epi64(a, c);
      column[half][1] = _mm512_unpackhi_epi64(a, c);
      column[half][2] = _mm512_unpacklo_epi64(b, d);
      column[half][3] = _mm512_unpackhi_epi64(b, d);
    }
    const __m512i low = _mm512_set1_epi32(0xFFFF);
    for (int i = 0; i < 4; ++i) {
      const __m512i x = column[0][i], y = column[1][i];
      _mm512_storeu_si512(to + 32 * i,
                          _mm512_packus_epi32(_mm512_and_si512(x, low), _mm512_and_si512(y, low)));
      _mm512_storeu_si512(to + 32 * i + 16,
                          _mm512_packus_epi32(_mm512_srli_epi32(x, 16), _mm512_srli_epi32(y, 16)));
    }
  }

  const BFloat16* a_;
  int64_t row_;
  PairedDepth depth_;
  bool packs_;
};

class PairRight : public RightPanels {
 public:
  PairRight(const ProductLayout& l, const void* b)
      : b_(static_cast<const BFloat16*>(b)), column_(l.b_column), depth_{l.k, l.b_row} {}

  PanelBlock Read(int64_t k, int64_t depth, int64_t n, int64_t columns, float* room) const override {
    const BFloat16* from = b_ + n * column_;
    const int64_t width = (columns + 31) / 32 * 32, elements = depth_.Elements(k, depth);
    uint32_t* to = reinterpret_cast<uint32_t*>(room);
    if (column_ == 1) {
      PairRows(from + 2 * k * depth_.step, depth_.step, elements, columns, width, to);
      return {room, width, 1};
    }
    int64_t j = 0;
    if (depth_.step == 1) {
      for (; j + 16 <= elements / 2; j += 16) TurnSixteen(from + 2 * (k + j), columns, width, to + j * width);
    }
    for (; j < depth; ++j)
      for (int64_t c = 0; c < width; ++c)
        to[j * width + c] = c < columns ? depth_.At(from + c * column_, k + j) : 0;
    return {room, width, 1};
  }

 private:
  // Sixteen pairs of each column become rows.
  void TurnSixteen(const BFloat16* from, int64_t columns, int64_t width, uint32_t* to) const {
    __m512i block[16];
    for (int64_t c = 0; c < width; c += 16) {
      for (int64_t i = 0; i < 16; ++i)
        block[i] = c + i < columns ? _mm512_loadu_si512(from + (c + i) * column_) : _mm512_setzero_si512();
      Transpose(block);
      for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * width + c, block[i]);
    }
  }

  const BFloat16* b_;
  int64_t column_;
  PairedDepth depth_;
};

}  // namespace oneflow_like::cpu

#endif
