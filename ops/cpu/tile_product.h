// Products by panels (panel_product.h) of pairs on tiles: 32 rows by 32 columns of the result are four tiles
// of sums, and a step of 32 along k loads two tiles of each operand for four products.
//
// A block of the left operand needs no copy where a row's elements along k are dense; other left operands are
// packed as tiles, and right ones as stripes, [pair][32 columns]. Of blocks along k of 512, 32 rows of the
// left (32 KB) stay in the first-level cache while up to 512 columns of the right operand come by from the
// second, 2 KB for each 64 cycles of products. Where the left one is packed and has fewer rows than the right
// one columns, it is the other way round. The operand in the second-level cache is packed once, the other one
// again for each 512 of its columns or rows. Where sums over several blocks along k are in scratch, the
// result is cut into blocks of 512 by 512, and both operands are packed for each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/device/parallel_for.h"
#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/panel_product.h"
#include "ops/cpu/panel_sizes.h"

namespace oneflow_like::cpu {

inline constexpr int64_t kTileBlock = 32, kStepPairs = 16;  // of rows and columns; along k

// c[16 R rows][16 C columns] (+)= a b over `steps` steps along k. Distances of rows in bytes.
template <int R, int C, typename T>
[[gnu::noinline]] void TileBlock(T& tiles, int64_t steps, const LeftTiles& left, const char* b, int64_t b_row,
                                 char* c, int64_t c_row, bool add) {
  const auto [data, a_row, a_step, a_below] = left;
  const char* a = data;
  if (add) {
    tiles.template Load<0>(c, c_row);
    if constexpr (C == 2) tiles.template Load<1>(c + 64, c_row);
    if constexpr (R == 2) tiles.template Load<2>(c + 16 * c_row, c_row);
    if constexpr (R == 2 && C == 2) tiles.template Load<3>(c + 16 * c_row + 64, c_row);
  } else {
    tiles.template Zero<0>();
    if constexpr (C == 2) tiles.template Zero<1>();
    if constexpr (R == 2) tiles.template Zero<2>();
    if constexpr (R == 2 && C == 2) tiles.template Zero<3>();
  }
  for (; steps > 0; --steps, a += a_step, b += kStepPairs * b_row) {
    tiles.template Load<6>(b, b_row);
    tiles.template Load<4>(a, a_row);
    tiles.template AddProduct<0, 4, 6>();
    if constexpr (R == 2) {
      tiles.template Load<5>(a + a_below, a_row);
      tiles.template AddProduct<2, 5, 6>();
    }
    if constexpr (C == 2) {
      tiles.template Load<7>(b + 64, b_row);
      tiles.template AddProduct<1, 4, 7>();
      if constexpr (R == 2) tiles.template AddProduct<3, 5, 7>();
    }
  }
  tiles.template Store<0>(c, c_row);
  if constexpr (C == 2) tiles.template Store<1>(c + 64, c_row);
  if constexpr (R == 2) tiles.template Store<2>(c + 16 * c_row, c_row);
  if constexpr (R == 2 && C == 2) tiles.template Store<3>(c + 16 * c_row + 64, c_row);
}

// One thread's part of the result.
template <typename T>
class TilePart {
 public:
  TilePart(const PanelProduct& p, const PanelSizes& sizes, float* scratch, T* tiles)
      : p_(p),
        sizes_(sizes),
        left_(scratch),
        right_(left_ + sizes.left()),
        sums_(right_ + sizes.right()),
        tiles_(*tiles) {}

  void Run(PanelRange rows, PanelRange columns) {
    // Whether the left operand is the one that is kept for all of the other, in the room of the right one.
    const bool keeps_left = p_.tiles->packs() && rows.size() < columns.size();
    const bool sums = !p_.in_place && p_.k > sizes_.depth;
    const int64_t kept = UpTo32(sizes_.columns);
    int64_t most_rows = keeps_left ? kept : rows.size(), most_columns = keeps_left ? columns.size() : kept;
    if (sums) {
      most_rows = std::min(most_rows, sizes_.sum_rows);
      most_columns = std::min(most_columns, sizes_.columns);
    }
    for (int64_t n = columns.begin; n < columns.end; n += most_columns)
      for (int64_t m = rows.begin; m < rows.end; m += most_rows)
        SumUp({m, std::min(rows.end, m + most_rows)}, {n, std::min(columns.end, n + most_columns)},
              keeps_left);
  }

 private:
  // All of k, for some rows and columns of the result.
  void SumUp(PanelRange rows, PanelRange columns, bool keeps_left) {
    const int64_t slice = UpTo32(sizes_.rows);
    for (int64_t k = 0; k < p_.k; k += sizes_.depth) {
      const int64_t depth = std::min(sizes_.depth, p_.k - k);
      const auto read_left = [&](PanelRange part, float* room) {
        return p_.tiles->Read(part.begin, part.size(), k, depth, room);
      };
      const auto cut = [&](PanelRange all, auto&& run) {
        for (int64_t i = all.begin; i < all.end; i += slice) run(PanelRange{i, std::min(all.end, i + slice)});
      };
      if (keeps_left) {
        const LeftTiles a = read_left(rows, right_);
        cut(columns, [&](PanelRange part) {
          ReadRight(k, depth, part, left_);
          for (int64_t n = part.begin; n < part.end; n += kTileBlock)
            for (int64_t m = rows.begin; m < rows.end; m += kTileBlock)
              Multiply(rows, columns, m, n, k, depth, a, m - rows.begin, left_, n - part.begin);
        });
      } else {
        ReadRight(k, depth, columns, right_);
        cut(rows, [&](PanelRange part) {
          const LeftTiles a = read_left(part, left_);
          for (int64_t m = part.begin; m < part.end; m += kTileBlock)
            for (int64_t n = columns.begin; n < columns.end; n += kTileBlock)
              Multiply(rows, columns, m, n, k, depth, a, m - part.begin, right_, n - columns.begin);
        });
      }
    }
  }

  // In stripes of 32 columns, with zeros up to a whole step.
  void ReadRight(int64_t k, int64_t depth, PanelRange columns, float* room) const {
    const int64_t rows = UpTo16(depth);
    for (int64_t n = columns.begin; n < columns.end; n += kTileBlock, room += kTileBlock * rows) {
      p_.right->Read(k, depth, n, std::min(kTileBlock, columns.end - n), room);
      std::memset(room + kTileBlock * depth, 0, kTileBlock * (rows - depth) * sizeof(float));
    }
  }

  // The block at row m and column n, of those that are summed up together.
  void Multiply(PanelRange rows, PanelRange columns, int64_t m, int64_t n, int64_t k, int64_t depth,
                const LeftTiles& a, int64_t a_at, const float* b, int64_t b_at) {
    const int64_t height = std::min(kTileBlock, rows.end - m), width = std::min(kTileBlock, columns.end - n);
    const bool two_rows = height > 16, two_columns = width > 16, last = k + depth == p_.k;
    const bool stores = !p_.in_place && last;  // the sums are then complete
    const bool add = k > 0 || (p_.in_place && p_.add);
    const int64_t sum_row = p_.in_place ? p_.result->row() : UpTo16(columns.size());
    const bool kept = p_.in_place || k > 0 || !last;  // sums are in memory before or after
    float* const sums = !kept         ? nullptr
                        : p_.in_place ? p_.result->Row(m) + n
                                      : sums_ + (m - rows.begin) * sum_row + n - columns.begin;
    // Tiles go straight to memory where it has all of their elements.
    const bool whole = height == (two_rows ? 32 : 16) && width == (two_columns ? 32 : 16);
    alignas(64) float block[kTileBlock * kTileBlock];
    float* c = block;
    int64_t c_row = kTileBlock;
    if (whole && !stores) {
      c = sums;
      c_row = sum_row;
    } else if (add) {
      for (int64_t i = 0; i < height; ++i)
        std::memcpy(block + i * kTileBlock, sums + i * sum_row, width * sizeof(float));
    }
    const auto run = two_rows ? (two_columns ? TileBlock<2, 2, T> : TileBlock<2, 1, T>)
                              : (two_columns ? TileBlock<1, 2, T> : TileBlock<1, 1, T>);
    const LeftTiles left = {a.data + a_at / 16 * a.below, a.row, a.step, a.below};
    const int64_t pitch = UpTo16(depth);
    run(tiles_, pitch / kStepPairs, left, reinterpret_cast<const char*>(b + b_at * pitch), 4 * kTileBlock,
        reinterpret_cast<char*>(c), 4 * c_row, add);
    if (stores) return p_.result->Store(m, height, n, width, block, kTileBlock);
    if (c != block) return;
    for (int64_t i = 0; i < height; ++i)
      std::memcpy(sums + i * sum_row, block + i * kTileBlock, width * sizeof(float));
  }

  const PanelProduct& p_;
  const PanelSizes sizes_;
  float* const left_;
  float* const right_;
  float* const sums_;
  T& tiles_;
};

// RunPanels on tiles. REQUIRES: p.tiles, at least 16 pairs along k.
template <typename T>
void RunTiles(const PanelProduct& p, int threads, void* scratch, int64_t bytes) {
  PanelSizes sizes = FitSizes(p.m, p.n, UpTo16(p.k), p.in_place, bytes);
  sizes.depth = sizes.depth / kStepPairs * kStepPairs;
  const auto [rows, columns] = GridOf(p.m, p.n, 2 * p.k, kTileBlock, kTileBlock, threads);
  ParallelForParts(int64_t{rows} * columns, 1, threads,
                   [&, rows = rows, columns = columns](int64_t begin, int64_t end, int part) {
                     float* own = reinterpret_cast<float*>(static_cast<char*>(scratch) + part * bytes);
                     T tiles(TileShapes::Full());
                     for (int64_t i = begin; i < end; ++i)
                       TilePart<T>(p, sizes, own, &tiles)
                           .Run(PartOf(p.m, kTileBlock, rows, i / columns),
                                PartOf(p.n, kTileBlock, columns, i % columns));
                   });
}

}  // namespace oneflow_like::cpu
