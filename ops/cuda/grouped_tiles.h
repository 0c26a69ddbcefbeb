// grouped_matmul and the gradient of its matrices by tiles on tensor cores, of either kind: ProductTile's on
// every card (grouped_matmul.cu), WarpgroupTile's on those of compute capability 9.0 (grouped_warpgroup.cu).
#pragma once

#include "ops/cuda/grouped_runs.h"
#include "ops/cuda/product_tile.h"

namespace oneflow_like::cuda {

// x[parts rows k] w[sets experts k m] -> y[parts rows m]. transposed: w is [m k].
struct RowsProduct {
  const void *x, *w;
  FloatView y;
  int k, m;
  bool y_packs, transposed;
};

// dw[sets experts k m] = x[parts rows k]^T dy[parts rows m], summed over the parts of a set.
struct MatricesProduct {
  const void *x, *dy;
  FloatView dw;
  int k, m;
  bool dw_packs;
};

template <typename T, typename Tile, bool kTransposed>
OFL_KERNEL void __launch_bounds__(Tile::kThreads, 2)
    MultiplyRows(ExpertRuns runs, RowsProduct p, int64_t most_tiles) {
  RunTile at;
  if (!FindRunTile(runs, most_tiles, p.m, kProductColumns, &at)) return;
  Tile tile;
  const RowWalk walk = at.Walk(runs);
  if (const int64_t matrix = at.Matrix(runs); matrix >= 0) {
    using Left = typename Tile::Left;
    using Right = typename Tile::Right;
    const T* w = static_cast<const T*>(p.w) + matrix * p.k * p.m;
    Left left(static_cast<const T*>(p.x), p.k, p.k);
    Right right(kTransposed ? w : w + at.column, kTransposed ? p.k : p.m,
                kTransposed ? p.k : p.m - at.column);
    int rows[Left::kEach], done = 0;
    RowWalk walk_of_x = walk;
    OFL_UNROLL
    for (int i = 0; i < Left::kEach; ++i) rows[i] = walk_of_x(Left::Number(i));
    tile.Multiply(at.rows, p.m - at.column, [&](const auto& left_tile, const auto& right_tile) {
      if (done >= p.k) return false;
      left.Load(left_tile, [&](int i) { return rows[i]; });
      left.Next();
      right.Load(right_tile, [&](int i) {
        const int row = (kTransposed ? at.column : done) + Right::Number(i);
        return row < (kTransposed ? p.m : p.k) ? row : -1;
      });
      if constexpr (kTransposed) right.Next();
      done += Tile::kDepth;
      return true;
    });
  }
  tile.Put({p.y.From(at.column), p.m, p.m - at.column, p.y_packs}, walk);
}

template <typename T, typename Tile>
OFL_KERNEL void __launch_bounds__(Tile::kThreads, 2) MultiplyColumns(ExpertRuns runs, MatricesProduct p) {
  const MatrixTile at(runs, p.k, p.m, kProductRows, kProductColumns);
  using Left = typename Tile::Left;
  Tile tile;
  const Left left(static_cast<const T*>(p.x) + at.row, p.k, p.k - at.row);
  const typename Tile::Right right(static_cast<const T*>(p.dy) + at.column, p.m, p.m - at.column);
  RowWalk walk = at.Walk(runs);
  int done = 0;
  tile.Multiply(p.k - at.row, p.m - at.column, [&](const auto& left_tile, const auto& right_tile) {
    if (done >= at.depth) return false;
    int rows[Left::kEach];  // of both
    static_assert(Left::kEach == Tile::Right::kEach);
    OFL_UNROLL
    for (int i = 0; i < Left::kEach; ++i) rows[i] = walk(done + Left::Number(i));
    left.Load(left_tile, [&](int i) { return rows[i]; });
    right.Load(right_tile, [&](int i) { return rows[i]; });
    done += Tile::kDepth;
    return true;
  });
  tile.Put({p.dw.From(at.matrix * p.k * p.m + at.column), p.m, p.m - at.column, p.dw_packs},
           [&](int number) { return at.row + number < p.k ? at.row + number : -1; });
}

// --- Launches

inline unsigned RowTiles(const ExpertRuns& runs, const RowsProduct& p, int broad) {
  return static_cast<unsigned>(runs.sets * runs.MostTiles() * ((p.m + broad - 1) / broad));
}
inline unsigned MatrixTiles(const ExpertRuns& runs, const MatricesProduct& p, int tall, int broad) {
  return static_cast<unsigned>(runs.sets * runs.experts * ((p.k + tall - 1) / tall) *
                               ((p.m + broad - 1) / broad));
}

// Tile<T, kLeftAcross, kRightAcross> is the tile.
template <typename T, template <typename, bool, bool> typename Tile>
void LaunchRows(const ExpertRuns& runs, const RowsProduct& p, cudaStream_t stream) {
  const auto launch = [&](auto* kernel, int threads, int shared) {
    Launch(kernel,
           Grid{.x = RowTiles(runs, p, kProductColumns),
                .threads = static_cast<unsigned>(threads),
                .shared = static_cast<size_t>(shared)},
           stream, runs, p, runs.MostTiles());
  };
  using Across = Tile<T, false, true>;
  using Along = Tile<T, false, false>;
  if (p.transposed) {
    launch(MultiplyRows<T, Along, true>, Along::kThreads, Along::kShared);
  } else {
    launch(MultiplyRows<T, Across, false>, Across::kThreads, Across::kShared);
  }
}
template <typename T, template <typename, bool, bool> typename Tile>
void LaunchColumns(const ExpertRuns& runs, const MatricesProduct& p, cudaStream_t stream) {
  using Across = Tile<T, true, true>;
  Launch(MultiplyColumns<T, Across>,
         Grid{.x = MatrixTiles(runs, p, kProductRows, kProductColumns),
              .threads = static_cast<unsigned>(Across::kThreads),
              .shared = static_cast<size_t>(Across::kShared)},
         stream, runs, p);
}

// By warpgroups: 16-bit operands that are whole packs, on a card of compute capability 9.0.
void LaunchRowsByWarpgroups(DType dtype, const ExpertRuns& runs, const RowsProduct& p, cudaStream_t stream);
void LaunchColumnsByWarpgroups(DType dtype, const ExpertRuns& runs, const MatricesProduct& p,
                               cudaStream_t stream);

}  // namespace oneflow_like::cuda
