// The gradient of a bias of attention in 16 bits on tensor cores: dS of attention_tensor_grad.cu, added up
// over all scores that an element was added to.
#include <algorithm>

#include "ops/cuda/attention_slopes.h"

namespace oneflow_like::cuda {
namespace {

// A block for each tile of the bias, of extent 1 where it is broadcast: the warp's sums go through all tiles
// of scores that the bias was added to, and are added up over lanes and warps at the end.
struct TensorBiasTiles {
  int heads, rows, columns;  // of the bias
};

// sums[row][0] and sums[0][column] of what was added to one element of the bias.
template <int C>
OFL_DEVICE void FoldColumns(Sums<C>* sums) {
  OFL_UNROLL
  for (int half = 0; half < 2; ++half) {
    float sum = 0;
    OFL_UNROLL
    for (int n = 0; n < C / 8; ++n) sum += sums->Of(n).at[2 * half] + sums->Of(n).at[2 * half + 1];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sums->Of(0).at[2 * half] = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
  }
}
template <int C>
OFL_DEVICE void FoldRows(float (&room)[kTensorWarps][C], Sums<C>* sums) {
  OFL_UNROLL
  for (int n = 0; n < C / 8; ++n) {
    OFL_UNROLL
    for (int i = 0; i < 2; ++i) {
      float sum = sums->Of(n).at[i] + sums->Of(n).at[2 + i];
      OFL_UNROLL
      for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lanes);
      if (RowOfSum(0) == 0) room[WarpOfThread()][8 * n + ColumnOfSum(i)] = sum;
    }
  }
  __syncthreads();
  OFL_UNROLL
  for (int n = 0; n < C / 8; ++n) {
    OFL_UNROLL
    for (int i = 0; i < 2; ++i) {
      float sum = 0;
      for (int warp = 0; warp < kTensorWarps; ++warp) sum += room[warp][8 * n + ColumnOfSum(i)];
      sums->Of(n).at[i] = sum;
    }
  }
}

// Scores that one element of the bias was added to, tile by tile.
struct BiasedTile {
  int b, h, row, tile;
};

template <typename T, int W, int C, bool kWide>
OFL_KERNEL void __launch_bounds__(kTensorThreads, kTensorBlocks<W>)
    TensorBiasGradKernel(AttentionShape shape, TensorBiasTiles tiles, TileKnowledge known, const T* dout,
                         const T* q, const T* k, const T* v, const float* lse, const float* delta,
                         float* dbias) {
  using Tile = SharedTile<T, C, W>;
  using RowTile = SharedTile<T, kTensorRows, W>;
  constexpr int kTurns = W <= 64 ? 2 : 1;  // tiles at once: wide rows of two fit no shared memory
  OFL_SHARED ColumnData<C> columns[kTurns];
  OFL_SHARED RowPlaces places[kTurns];
  OFL_SHARED QueryStatistics row_stats[kTurns][kTensorRows];
  OFL_SHARED float of_warps[kTensorWarps][C];
  T* const room = DynamicShared<T>();
  constexpr int kTurn = 2 * Tile::kElements + 2 * RowTile::kElements;
  const auto keys_at = [&](int turn) { return Tile{room + turn * kTurn}; };
  const auto values_at = [&](int turn) { return Tile{room + turn * kTurn + Tile::kElements}; };
  const auto queries_at = [&](int turn) { return RowTile{room + turn * kTurn + 2 * Tile::kElements}; };
  const auto douts_at = [&](int turn) { return RowTile{queries_at(turn).data + RowTile::kElements}; };
  const int64_t* const stride = shape.bias_strides.at;
  const auto i = static_cast<int>(blockIdx.x);
  const int own[4] = {i / tiles.columns / tiles.rows / tiles.heads,
                      i / tiles.columns / tiles.rows % tiles.heads, i / tiles.columns % tiles.rows,
                      i % tiles.columns};
  const int all[3] = {static_cast<int>(shape.batch), static_cast<int>(shape.heads),
                      static_cast<int>((shape.queries + kTensorRows - 1) / kTensorRows)};
  int end[3];
  for (int axis = 0; axis < 3; ++axis) end[axis] = stride[axis] != 0 ? own[axis] + 1 : all[axis];
  // The next tile with scores of this launch's pairs, from this one on; b is end[0] if there is none.
  // `whole`: of it.
  bool whole = false;
  const auto from = [&](BiasedTile at) {
    while (at.b < end[0]) {
      const int64_t pair = int64_t{at.b} * shape.heads + at.h - shape.first_pair;
      if (pair >= 0 && pair < shape.pairs) {
        TileWalk<true, C> walk(shape, known, at.b, at.row * kTensorRows);
        const int begin = stride[3] != 0 && own[3] > walk.begin ? own[3] : walk.begin,
                  behind = stride[3] != 0 && own[3] < walk.end ? own[3] + 1 : walk.end;
        at.tile = walk.From(at.tile > begin ? at.tile : begin, at.h);
        whole = walk.Whole(at.tile);
        if (at.tile < behind) break;
      }
      at.tile = 0;
      if (++at.row < end[2]) continue;
      at.row = own[2];
      if (++at.h < end[1]) continue;
      at.h = own[1];
      ++at.b;
    }
    return at;
  };
  const auto rows_of = [&](const BiasedTile& at) {
    return QueryTile<T, W>(shape, int64_t{at.b} * shape.heads + at.h, at.row * kTensorRows, q, dout);
  };
  const auto keys_of = [&](const BiasedTile& at) {
    return KeyView(shape, at.b, at.h, shape.width).Rows(k, at.tile * C, C);
  };
  const auto values_of = [&](const BiasedTile& at) {
    return KeyView(shape, at.b, at.h, shape.value_width).Rows(v, at.tile * C, C);
  };
  QueryStatistics stats = {};
  const auto stage = [&](const BiasedTile& at, int turn) {
    const QueryTile<T, W> rows = rows_of(at);
    const int64_t s = rows.first + threadIdx.x;
    StagePlaces<true>(shape, at.b, rows.first, kTensorRows, places[turn].place, places[turn].document);
    StagePlaces<false>(shape, at.b, at.tile * C, C, columns[turn].place, columns[turn].document);
    const int64_t i = rows.pair * shape.queries + s;
    stats = {-INFINITY, 0};
    if (threadIdx.x < kTensorRows && s < shape.queries) stats = {lse[i], delta[i]};
    if (kWide) return;
    Stage(rows.q, 0, queries_at(turn));
    Stage(rows.dout, 0, douts_at(turn));
    Stage(keys_of(at), 0, keys_at(turn));
    Stage(values_of(at), 0, values_at(turn));
  };
  const auto put = [&](int turn) {
    if (threadIdx.x < kTensorRows) row_stats[turn][threadIdx.x] = stats.InUnits();
  };
  Sums<C> sums = {};
  BiasedTile next = from({own[0], own[1], own[2], 0});
  if (next.b < end[0]) stage(next, 0);
  put(0);
  EndCopies();
  WaitForCopies<0>();
  __syncthreads();
  for (int turn = 0; next.b < end[0]; turn ^= kTurns - 1) {
    const BiasedTile at = next;
    const bool all_seen = whole;
    next = from({at.b, at.h, at.row, at.tile + 1});
    if (kTurns == 2 && next.b < end[0]) stage(next, turn ^ 1);
    EndCopies();
    QueryTile<T, W> rows = rows_of(at);
    OFL_UNROLL
    for (int half = 0; half < 2; ++half) rows.stats[half] = row_stats[turn][RowOfLane() + 8 * half];
    const auto dots = [&](Sums<C>* scores, Sums<C>* dp) {
      if constexpr (kWide) {
        AddWideDots(rows.q, keys_of(at), keys_at(turn), scores);
        AddWideDots(rows.dout, values_of(at), values_at(turn), dp);
      } else {
        const int first = WarpOfThread() * 16;
        AddDots([&](int d) { return LoadLeft(queries_at(turn), first, 16 * d); }, keys_at(turn), scores);
        AddDots([&](int d) { return LoadLeft(douts_at(turn), first, 16 * d); }, values_at(turn), dp);
      }
    };
    Sums<C> ds;
    rows.Slopes(shape, known, at.tile * C, places[turn], columns[turn], all_seen, dots, &ds);
    OFL_UNROLL
    for (int n = 0; n < C / 8; ++n) {
      OFL_UNROLL
      for (int e = 0; e < 4; ++e) sums.Of(n).at[e] += ds.Of(n).at[e];
    }
    if (kTurns == 1) {
      __syncthreads();
      if (next.b < end[0]) stage(next, 0);
      EndCopies();
    }
    put(turn ^ (kTurns - 1));
    WaitForCopies<0>();
    __syncthreads();
  }
  if (stride[3] == 0) FoldColumns(&sums);
  if (stride[2] == 0) FoldRows(of_warps, &sums);
  OFL_UNROLL
  for (int n = 0; n < C / 8; ++n) {
    OFL_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int r = RowOfLane() + e / 2 * 8, c = 8 * n + ColumnOfSum(e);
      const int64_t s = int64_t{own[2]} * kTensorRows + r, t = int64_t{own[3]} * C + c;
      const bool writes =
          (stride[2] != 0 ? s < shape.queries : r == 0) && (stride[3] != 0 ? t < shape.keys : c == 0);
      if (!writes) continue;
      float* const to = dbias + shape.bias_strides.Offset(own[0], own[1], s, t);
      *to = shape.first_pair > 0 ? *to + sums.Of(n).at[e] : sums.Of(n).at[e];  // launches follow each other
    }
  }
}

template <typename T, int W, bool kWide>
void LaunchBiasGradOf(const AttentionShape& s, const TileKnowledge& known, const KernelContext& context,
                      const LaunchContext& launch, const float* delta) {
  constexpr int kColumns = 32;  // so that sums of all products fit the registers
  constexpr size_t kBiasShared = (W <= 64 ? 2 : 1) * (2 * SharedTile<T, kColumns, W>::kBytes +
                                                      2 * SharedTile<T, kTensorRows, W>::kBytes);
  static_assert(kBiasShared <= kMostShared);
  const auto in = [&](int i) { return context.in[i].as<T>(); };
  const float* const lse = context.in[5].as<float>();
  const int64_t* const stride = s.bias_strides.at;
  const TensorBiasTiles tiles = {static_cast<int>(stride[1] != 0 ? s.heads : 1),
                                 static_cast<int>(stride[2] != 0 ? TensorTiles(s.queries) : 1),
                                 static_cast<int>(stride[3] != 0 ? (s.keys + kColumns - 1) / kColumns : 1)};
  const int64_t blocks = (stride[0] != 0 ? s.batch : 1) * tiles.heads * tiles.rows * tiles.columns;
  cuda::Launch(TensorBiasGradKernel<T, W, kColumns, kWide>,
               {static_cast<unsigned>(blocks), 1, kTensorThreads, kBiasShared}, launch.stream, s, tiles,
               known, in(0), in(1), in(2), in(3), lse, delta, context.out[3].as<float>());
}

}  // namespace

void LaunchTensorBiasGrad(const AttentionShape& part, const TileKnowledge& known,
                          const KernelContext& context, const LaunchContext& launch, const float* delta) {
  ForTensorInstance(context.in[1].dtype, std::max(part.width, part.value_width),
                    [&](auto t, auto width, auto wide) {
                      LaunchBiasGradOf<decltype(t), width, wide>(part, known, context, launch, delta);
                    });
}

}  // namespace oneflow_like::cuda
