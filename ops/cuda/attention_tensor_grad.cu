// attention_grad of 16-bit operands on tensor cores. As in attention.cu a block for each tile of queries goes
// through the keys for dq, one for each tile of keys through the queries of all heads that share them for dk
// and dv, and one for each tile of the bias through the scores that it was added to: nothing is added across
// blocks, so the same bits come out of every run. With S = q k^T and dP = do v^T,
//
//   P = exp(S scale + bias - lse), dS = P (kept dP / (1 - p) - do . o),
//   dv = (kept P)^T do / (1 - p),  dq = dS k scale,  dk = dS^T q scale,  dbias = dS.
//
// P and dS are rounded to 16 bits as operands of the second products. 3 products for dq, 4 for dk and dv, 2
// for the bias: the scores are computed again in each.
#include <algorithm>

#include "ops/cuda/attention_scores.h"

namespace oneflow_like::cuda {
namespace {

// delta[pair][s] = do . o, by the products that give dP: where a query sees one key only, dP is the same sum,
// and its slope is 0 to the last bit.
template <typename T>
OFL_KERNEL void __launch_bounds__(kTensorThreads)
    TensorDeltaKernel(AttentionShape shape, const T* dout, const T* o, float* delta) {
  const int64_t tiles = (shape.queries + kTensorRows - 1) / kTensorRows;
  const int64_t pair = blockIdx.x / tiles, first = blockIdx.x % tiles * kTensorRows;
  const HeadView results = QueryView(shape, pair / shape.heads, pair % shape.heads, shape.value_width);
  const HeadRows<T> douts = results.Rows(dout, first, kTensorRows), os = results.Rows(o, first, kTensorRows);
  SumFragment sums[1][2] = {};
  for (int from = 0; from < shape.value_width; from += 16) {
    LeftFragment left[1], right[1];
    LoadRows<T, 16>(douts, from, left);
    LoadRows<T, 16>(os, from, right);
    // Rows 0 to 7 and 8 to 15 as columns.
    const RightFragment columns[2] = {{{right[0].at[0], right[0].at[2]}}, {{right[0].at[1], right[0].at[3]}}};
    MultiplyAdd<T>(left, columns, sums);
  }
  const int group = RowOfSum(0);
  if (ColumnOfSum(0) != group / 2 * 2) return;  // not on the diagonal
  OFL_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int64_t s = first + RowOfLane() + 8 * half;
    const float even = sums[0][half].at[2 * half], odd = sums[0][half].at[2 * half + 1];
    if (s < shape.queries) delta[pair * shape.queries + s] = group % 2 == 0 ? even : odd;
  }
}

// Of one score and what came to its probability. Of hidden ones the others may be anything.
struct TensorSlope {
  float p, ds;
};
OFL_DEVICE TensorSlope SlopeOfScore(float score, float lse, float dp, float delta) {
  if (score == -INFINITY) return {0, 0};
  const float p = PowerOfTwo(score - lse);
  return {p, p * (dp - delta)};
}

// --- Rows are queries: what a block knows of its own
template <typename T, int W, bool kWide>
struct QueryTile {
  int64_t b, h, first;
  HeadRows<T> q, dout;
  LeftFragment q_rows[W / 16], dout_rows[W / 16];
  float lse[2], delta[2];

  OFL_DEVICE QueryTile(const AttentionShape& shape, int64_t pair, int64_t from, const T* q_data,
                       const T* dout_data, const float* all_lse, const float* all_delta)
      : b(pair / shape.heads), h(pair % shape.heads), first(from) {
    q = QueryView(shape, b, h, shape.width).Rows(q_data, first, kTensorRows);
    dout = QueryView(shape, b, h, shape.value_width).Rows(dout_data, first, kTensorRows);
    if (!kWide) {
      LoadRows<T, W>(q, 0, q_rows);
      LoadRows<T, W>(dout, 0, dout_rows);
    }
    OFL_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t s = first + RowOfLane() + 8 * half;
      const bool here = s < shape.queries;
      lse[half] = here ? all_lse[pair * shape.queries + s] * kLog2E : 0.0f;
      delta[half] = here ? all_delta[pair * shape.queries + s] : 0.0f;
    }
  }

  // dS of the tile of keys that begins at `column`, from their tiles in shared memory, or through `room`.
  template <int C>
  OFL_DEVICE void Slopes(const AttentionShape& shape, int64_t step, int64_t column, const HeadRows<T>& keys,
                         const HeadRows<T>& values, const SharedTile<T, C, W>& key_tile,
                         const SharedTile<T, C, W>& value_tile, const RowPlaces& places,
                         const ColumnData<C>& data, Sums<C>* ds) const {
    const int64_t row = first + WarpOfThread() * 16;
    Sums<C> scores = {}, dp = {};
    if constexpr (kWide) {
      AddWideDots(q, keys, key_tile, &scores);
      AddWideDots(dout, values, value_tile, &dp);
    } else {
      AddDots([&](int k) { return q_rows[k]; }, key_tile, &scores);
      AddDots([&](int k) { return dout_rows[k]; }, value_tile, &dp);
    }
    FinishScores<true>(shape, b, h, row, column, places, data, &scores);
    const LaneBits kept = KeptOf<true, C>(shape, step, b, h, row, column);
    OFL_UNROLL
    for (int n = 0; n < C / 8; ++n) {
      OFL_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float came = kept.At(n, i) ? dp.Of(n).at[i] * shape.keep : 0.0f;
        ds->Of(n).at[i] = SlopeOfScore(scores.Of(n).at[i], lse[i / 2], came, delta[i / 2]).ds;
      }
    }
  }
};

template <typename T, int W, int C, bool kWide>
OFL_KERNEL void __launch_bounds__(kTensorThreads, kTensorBlocks<W>)
    TensorQueryGradKernel(AttentionShape shape, TileKnowledge known, const T* dout, const T* q, const T* k,
                          const T* v, const float* lse, const float* delta, T* dq, const ActState* act) {
  using Tile = SharedTile<T, C, W>;
  OFL_SHARED ColumnData<C> columns[2];
  OFL_SHARED RowPlaces places;
  T* const room = DynamicShared<T>();
  const int64_t tiles = (shape.queries + kTensorRows - 1) / kTensorRows, step = act->step;
  const int64_t first = (tiles - 1 - blockIdx.x % tiles) * kTensorRows;  // causal: the longest first
  const int part = static_cast<int>(blockIdx.y) * W;
  const QueryTile<T, W, kWide> rows(shape, blockIdx.x / tiles, first, q, dout, lse, delta);
  const HeadView keys = KeyView(shape, rows.b, rows.h, shape.width),
                 values = KeyView(shape, rows.b, rows.h, shape.value_width);
  const TileWalk<true, C> walk(shape, known, rows.b, first);
  StagePlaces<true>(shape, rows.b, first, kTensorRows, places.place, places.document);
  const auto keys_at = [&](int turn) { return Tile{room + turn * 2 * Tile::kElements}; };
  const auto values_at = [&](int turn) { return Tile{room + (turn * 2 + 1) * Tile::kElements}; };
  const auto stage = [&](int64_t tile, int turn) {
    StagePlaces<false>(shape, rows.b, tile * C, C, columns[turn].place, columns[turn].document);
    if (kWide) return;
    Stage(keys.Rows(k, tile * C, C), 0, keys_at(turn));
    Stage(values.Rows(v, tile * C, C), 0, values_at(turn));
  };
  Sums<W> out = {};
  int64_t tile = walk.From(walk.begin, rows.h);
  if (tile < walk.end) stage(tile, 0);
  EndCopies();
  for (int turn = 0; tile < walk.end; turn ^= 1) {
    const int64_t next = walk.From(tile + 1, rows.h), column = tile * C;
    if (next < walk.end) stage(next, turn ^ 1);
    EndCopies();
    WaitForCopies<1>();
    __syncthreads();
    Sums<C> ds;
    const int at = kWide ? 0 : turn;
    rows.Slopes(shape, step, column, keys.Rows(k, column, C), values.Rows(v, column, C), keys_at(at),
                values_at(at), places, columns[turn], &ds);
    if (kWide) StageNow(keys.Rows(k, column, C), part, keys_at(at));
    AddWeighted(ds, keys_at(at), &out);
    __syncthreads();
    tile = next;
  }
  const float factor[2] = {shape.scale, shape.scale};
  StoreRows(out, factor, QueryView(shape, rows.b, rows.h, shape.width), first, part, dq);
}

// --- Rows are keys and values, columns the queries of all heads that share them
// A tile of queries of one of these heads.
struct QueriesOfGroup {
  int64_t head, tile;
};

template <typename T, int W, int C, bool kWide>
OFL_KERNEL void __launch_bounds__(kTensorThreads, kTensorBlocks<W>)
    TensorKeyGradKernel(AttentionShape shape, TileKnowledge known, const T* dout, const T* q, const T* k,
                        const T* v, const float* lse, const float* delta, T* dk, T* dv, const ActState* act) {
  using Tile = SharedTile<T, C, W>;
  using RowTile = SharedTile<T, kTensorRows, W>;
  constexpr bool kHeld = W <= 64;  // rows of keys and values in registers, else in shared memory
  OFL_SHARED ColumnData<C> columns[2];
  OFL_SHARED RowPlaces places;
  T* const room = DynamicShared<T>();
  const int64_t tiles = (shape.keys + kTensorRows - 1) / kTensorRows, step = act->step;
  const int64_t b = blockIdx.x / tiles / shape.key_heads,
                first_head = blockIdx.x / tiles % shape.key_heads * shape.group,
                first = blockIdx.x % tiles * kTensorRows, row = first + WarpOfThread() * 16;
  const int part = static_cast<int>(blockIdx.y) * W;
  const HeadView of_keys = KeyView(shape, b, first_head, shape.width),
                 of_values = KeyView(shape, b, first_head, shape.value_width);
  const HeadRows<T> keys = of_keys.Rows(k, first, kTensorRows),
                    values = of_values.Rows(v, first, kTensorRows);
  StagePlaces<false>(shape, b, first, kTensorRows, places.place, places.document);
  const TileWalk<false, C> walk(shape, known, b, first);
  const auto queries_at = [&](int turn) { return Tile{room + turn * 2 * Tile::kElements}; };
  const auto douts_at = [&](int turn) { return Tile{room + (turn * 2 + 1) * Tile::kElements}; };
  const RowTile key_rows{room + 4 * Tile::kElements}, value_rows{key_rows.data + RowTile::kElements};
  LeftFragment k_rows[kHeld ? W / 16 : 1], v_rows[kHeld ? W / 16 : 1];
  if constexpr (kHeld) {
    LoadRows<T, W>(keys, 0, k_rows);
    LoadRows<T, W>(values, 0, v_rows);
  } else if constexpr (!kWide) {
    Stage(keys, 0, key_rows);
    Stage(values, 0, value_rows);
  }
  const auto queries_of = [&](const QueriesOfGroup& at) {
    return QueryView(shape, b, first_head + at.head, shape.width).Rows(q, at.tile * C, C);
  };
  const auto douts_of = [&](const QueriesOfGroup& at) {
    return QueryView(shape, b, first_head + at.head, shape.value_width).Rows(dout, at.tile * C, C);
  };
  const auto stage = [&](const QueriesOfGroup& at, int turn) {
    StagePlaces<true>(shape, b, at.tile * C, C, columns[turn].place, columns[turn].document);
    const int64_t s = at.tile * C + threadIdx.x;
    if (threadIdx.x < C && s < shape.queries) {
      const int64_t i = (b * shape.heads + first_head + at.head) * shape.queries + s;
      columns[turn].lse[threadIdx.x] = lse[i] * kLog2E;
      columns[turn].delta[threadIdx.x] = delta[i];
    }
    if (kWide) return;
    Stage(queries_of(at), 0, queries_at(turn));
    Stage(douts_of(at), 0, douts_at(turn));
  };
  Sums<W> dk_out = {}, dv_out = {};
  // The next tile that is not empty, from this one on, of this head or a later one.
  const auto from = [&](QueriesOfGroup tile) {
    while (tile.head < shape.group) {
      tile.tile = walk.From(tile.tile, first_head + tile.head);
      if (tile.tile < walk.end) break;
      tile = {tile.head + 1, walk.begin};
    }
    return tile;
  };
  QueriesOfGroup at = from({0, walk.begin});
  if (at.head < shape.group) stage(at, 0);
  EndCopies();
  for (int turn = 0; at.head < shape.group; turn ^= 1) {
    const QueriesOfGroup next = from({at.head, at.tile + 1});
    if (next.head < shape.group) stage(next, turn ^ 1);
    EndCopies();
    WaitForCopies<1>();
    __syncthreads();
    const int64_t column = at.tile * C, h = first_head + at.head;
    const int ready = kWide ? 0 : turn;
    Sums<C> scores = {}, ds = {};  // ds: first dP
    if constexpr (kWide) {
      AddWideDots(keys, queries_of(at), queries_at(0), &scores);
      AddWideDots(values, douts_of(at), douts_at(0), &ds);
    } else if constexpr (kHeld) {
      AddDots([&](int i) { return k_rows[i]; }, queries_at(turn), &scores);
      AddDots([&](int i) { return v_rows[i]; }, douts_at(turn), &ds);
    } else {
      const int own = WarpOfThread() * 16;
      AddDots([&](int i) { return LoadLeft(key_rows, own, 16 * i); }, queries_at(turn), &scores);
      AddDots([&](int i) { return LoadLeft(value_rows, own, 16 * i); }, douts_at(turn), &ds);
    }
    FinishScores<false>(shape, b, h, row, column, places, columns[turn], &scores);
    const LaneBits kept = KeptOf<false, C>(shape, step, b, h, row, column);
    OFL_UNROLL
    for (int n = 0; n < C / 8; ++n) {
      OFL_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int c = 8 * n + ColumnOfSum(i);
        const bool keeps = kept.At(n, i);
        float &score = scores.Of(n).at[i], &slope = ds.Of(n).at[i];
        const TensorSlope of = SlopeOfScore(score, columns[turn].lse[c], keeps ? slope * shape.keep : 0.0f,
                                            columns[turn].delta[c]);
        score = keeps ? of.p : 0.0f;
        slope = of.ds;
      }
    }
    if (kWide) StageNow(douts_of(at), part, douts_at(0));
    AddWeighted(scores, douts_at(ready), &dv_out);
    if (kWide) StageNow(queries_of(at), part, queries_at(0));
    AddWeighted(ds, queries_at(ready), &dk_out);
    __syncthreads();
    at = next;
  }
  WaitForCopies<0>();  // of rows that no query sees
  const float of_keep[2] = {shape.keep, shape.keep}, of_scale[2] = {shape.scale, shape.scale};
  StoreRows(dv_out, of_keep, of_values, first, part, dv);
  StoreRows(dk_out, of_scale, of_keys, first, part, dk);
}

// --- The bias
// A block for each tile of the bias, of extent 1 where it is broadcast: the warp's sums go through all tiles
// of scores that the bias was added to, and are added up over lanes and warps at the end.
struct TensorBiasTiles {
  int64_t heads, rows, columns;  // of the bias
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

template <typename T, int W, int C, bool kWide>
OFL_KERNEL void __launch_bounds__(kTensorThreads, 2)  // sums of the bias' tile take registers, too
    TensorBiasGradKernel(AttentionShape shape, TensorBiasTiles tiles, TileKnowledge known, const T* dout,
                         const T* q, const T* k, const T* v, const float* lse, const float* delta,
                         float* dbias, const ActState* act) {
  using Tile = SharedTile<T, C, W>;
  OFL_SHARED ColumnData<C> columns;
  OFL_SHARED RowPlaces places;
  OFL_SHARED float of_warps[kTensorWarps][C];
  T* const room = DynamicShared<T>();
  const Tile key_tile{room}, value_tile{room + Tile::kElements};
  const int64_t* const stride = shape.bias_strides.at;
  const int64_t step = act->step, i = blockIdx.x;
  const int64_t own[4] = {i / tiles.columns / tiles.rows / tiles.heads,
                          i / tiles.columns / tiles.rows % tiles.heads, i / tiles.columns % tiles.rows,
                          i % tiles.columns};
  const int64_t all[3] = {shape.batch, shape.heads, (shape.queries + kTensorRows - 1) / kTensorRows};
  int64_t end[3];
  for (int axis = 0; axis < 3; ++axis) end[axis] = stride[axis] != 0 ? own[axis] + 1 : all[axis];
  Sums<C> sums = {};
  for (int64_t b = own[0]; b < end[0]; ++b)
    for (int64_t h = own[1]; h < end[1]; ++h)
      for (int64_t row = own[2]; row < end[2]; ++row) {
        const TileWalk<true, C> walk(shape, known, b, row * kTensorRows);
        int64_t tile = walk.From(stride[3] != 0 && own[3] > walk.begin ? own[3] : walk.begin, h);
        const int64_t behind = stride[3] != 0 && own[3] < walk.end ? own[3] + 1 : walk.end;
        if (tile >= behind) continue;
        const QueryTile<T, W, kWide> rows(shape, b * shape.heads + h, row * kTensorRows, q, dout, lse, delta);
        const HeadView keys = KeyView(shape, b, h, shape.width),
                       values = KeyView(shape, b, h, shape.value_width);
        StagePlaces<true>(shape, b, row * kTensorRows, kTensorRows, places.place, places.document);
        for (; tile < behind; tile = walk.From(tile + 1, h)) {
          const HeadRows<T> of_keys = keys.Rows(k, tile * C, C), of_values = values.Rows(v, tile * C, C);
          StagePlaces<false>(shape, b, tile * C, C, columns.place, columns.document);
          if (!kWide) {
            Stage(of_keys, 0, key_tile);
            Stage(of_values, 0, value_tile);
          }
          EndCopies();
          WaitForCopies<0>();
          __syncthreads();
          Sums<C> ds;
          rows.Slopes(shape, step, tile * C, of_keys, of_values, key_tile, value_tile, places, columns, &ds);
          OFL_UNROLL
          for (int n = 0; n < C / 8; ++n) {
            OFL_UNROLL
            for (int e = 0; e < 4; ++e) sums.Of(n).at[e] += ds.Of(n).at[e];
          }
          __syncthreads();
        }
      }
  if (stride[3] == 0) FoldColumns(&sums);
  if (stride[2] == 0) FoldRows(of_warps, &sums);
  OFL_UNROLL
  for (int n = 0; n < C / 8; ++n) {
    OFL_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int r = RowOfLane() + e / 2 * 8, c = 8 * n + ColumnOfSum(e);
      const int64_t s = own[2] * kTensorRows + r, t = own[3] * C + c;
      const bool writes =
          (stride[2] != 0 ? s < shape.queries : r == 0) && (stride[3] != 0 ? t < shape.keys : c == 0);
      if (writes) dbias[shape.bias_strides.Offset(own[0], own[1], s, t)] = sums.Of(n).at[e];
    }
  }
}

// --- The host's side
template <typename T, int W, bool kWide>
void LaunchGradOf(const AttentionShape& s, const KernelContext& context, const LaunchContext& launch,
                  const TileKnowledge& known, float* delta) {
  constexpr int kColumns = 32;  // so that sums of all products fit the registers
  constexpr size_t kTiles = 4 * SharedTile<T, kColumns, W>::kBytes,
                   kRowTiles = W <= 64 || kWide ? 0 : 2 * SharedTile<T, kTensorRows, W>::kBytes;
  static_assert(kTiles + kRowTiles <= kMostShared);
  const auto in = [&](int i) { return context.in[i].as<T>(); };
  const float* const lse = context.in[5].as<float>();
  const Grid of_queries = {static_cast<unsigned>(TensorTiles(s.queries) * s.pairs), TensorParts(s.width, W),
                           kTensorThreads, kTiles};
  const Grid of_keys = {static_cast<unsigned>(TensorTiles(s.keys) * (s.pairs / s.group)),
                        TensorParts(std::max(s.width, s.value_width), W), kTensorThreads, kTiles + kRowTiles};
  const Grid of_deltas = {of_queries.x, 1, kTensorThreads, 0};
  cuda::Launch(TensorDeltaKernel<T>, of_deltas, launch.stream, s, in(0), in(4), delta);
  cuda::Launch(TensorQueryGradKernel<T, W, kColumns, kWide>, of_queries, launch.stream, s, known, in(0),
               in(1), in(2), in(3), lse, delta, context.out[0].as<T>(), launch.act);
  cuda::Launch(TensorKeyGradKernel<T, W, kColumns, kWide>, of_keys, launch.stream, s, known, in(0), in(1),
               in(2), in(3), lse, delta, context.out[1].as<T>(), context.out[2].as<T>(), launch.act);
  if (context.out.size() <= 3) return;
  const int64_t* const stride = s.bias_strides.at;
  const TensorBiasTiles tiles = {stride[1] != 0 ? s.heads : 1, stride[2] != 0 ? TensorTiles(s.queries) : 1,
                                 stride[3] != 0 ? (s.keys + kColumns - 1) / kColumns : 1};
  const int64_t blocks = (stride[0] != 0 ? s.batch : 1) * tiles.heads * tiles.rows * tiles.columns;
  cuda::Launch(TensorBiasGradKernel<T, W, kColumns, kWide>,
               {static_cast<unsigned>(blocks), 1, kTensorThreads, kTiles / 2}, launch.stream, s, tiles, known,
               in(0), in(1), in(2), in(3), lse, delta, context.out[3].as<float>(), launch.act);
}

}  // namespace

Status LaunchTensorAttentionGrad(const AttentionShape& shape, const KernelContext& context,
                                 const LaunchContext& launch) {
  auto* const delta = static_cast<float*>(launch.workspace);
  // Behind it, at a multiple of 8 bytes.
  const int64_t numbers = (shape.pairs * shape.queries + 1) / 2 * 2;
  const TileKnowledge known = LaunchTileKnowledge(shape, delta + numbers, launch);
  ForTensorInstance(context.in[1].dtype, std::max(shape.width, shape.value_width),
                    [&](auto t, auto width, auto wide) {
                      LaunchGradOf<decltype(t), width, wide>(shape, context, launch, known, delta);
                    });
  return Status();
}

}  // namespace oneflow_like::cuda
