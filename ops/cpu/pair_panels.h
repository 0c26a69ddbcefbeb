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

// For tiles (tile_product.h): always dense rows of pairs, as many as a multiple of 16 and with zeros up to
// one, both ways.
class TileLeft : public LeftPanels {
 public:
  TileLeft(const ProductLayout& l, const void* a)
      : a_(static_cast<const BFloat16*>(a)), row_(l.a_row), depth_{l.k, l.a_column} {}

  // Whether no block is read where it lies.
  bool packs() const { return depth_.step != 1 || row_ % 2 != 0; }

  PanelBlock Read(int64_t m, int64_t rows, int64_t k, int64_t depth, float* room) const override {
    const BFloat16* from = a_ + m * row_ + 2 * k * depth_.step;
    const int64_t elements = depth_.Elements(k, depth), pitch = (depth + 15) / 16 * 16;
    if (!packs() && rows % 16 == 0 && elements == 2 * pitch)
      return {reinterpret_cast<const float*>(from), row_ / 2, 1};
    uint32_t* to = reinterpret_cast<uint32_t*>(room);
    if (row_ == 1 && depth_.step != 1) {
      TurnColumns(from, rows, elements, pitch, to);
      return {room, pitch, 1};
    }
    for (int64_t i = 0; i < rows; ++i, from += row_, to += pitch) {
      std::memset(to + elements / 2, 0, (pitch - elements / 2) * sizeof *to);
      if (depth_.step == 1) {
        std::memcpy(to, from, elements * sizeof(BFloat16));
      } else {
        for (int64_t j = 0; 2 * j < elements; ++j)
          to[j] = PairOf(from[2 * j * depth_.step],
                         2 * j + 1 < elements ? from[(2 * j + 1) * depth_.step] : BFloat16{});
      }
    }
    std::memset(to, 0, (16 - rows % 16) % 16 * pitch * sizeof *to);
    return {room, pitch, 1};
  }

 private:
  // to[row][pair] of a block whose columns are dense.
  void TurnColumns(const BFloat16* from, int64_t rows, int64_t elements, int64_t pitch, uint32_t* to) const {
    for (int64_t pair = 0; pair < pitch; pair += 16) {
      for (int64_t i = 0; i < rows; i += 32) {
        const int64_t left = rows - i;
        const __mmask32 mask = left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
        __m512i low[16], high[16];
        for (int64_t j = 0; j < 16; ++j) {
          const int64_t k = 2 * (pair + j);
          const BFloat16* x = from + k * depth_.step + i;
          const __m512i first = _mm512_maskz_loadu_epi16(k < elements ? mask : 0, x),
                        second = _mm512_maskz_loadu_epi16(k + 1 < elements ? mask : 0, x + depth_.step);
          low[j] = InterleaveLow(first, second);
          high[j] = InterleaveHigh(first, second);
        }
        Transpose(low);
        for (int64_t j = 0; j < 16; ++j) _mm512_storeu_si512(to + (i + j) * pitch + pair, low[j]);
        if (left <= 16) continue;
        Transpose(high);
        for (int64_t j = 0; j < 16; ++j) _mm512_storeu_si512(to + (i + 16 + j) * pitch + pair, high[j]);
      }
    }
  }

  const BFloat16* a_;
  int64_t row_;
  PairedDepth depth_;
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
