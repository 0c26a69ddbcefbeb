// attention_grad of 16-bit operands on tensor cores. As in attention.cu a block for each tile of queries goes
// through the keys for dq, one for each tile of keys through the queries of all heads that share them for dk
// and dv, and one for each tile of the bias through the scores that it was added to: nothing is added across
// blocks, so the same bits come out of every run (the last in attention_tensor_bias.cu). With S = q k^T and
// dP = do v^T,
//
//   P = exp(S scale + bias - lse), dS = P (kept dP / (1 - p) - do . o),
//   dv = (kept P)^T do / (1 - p),  dq = dS k scale,  dk = dS^T q scale,  dbias = dS.
//
// P and dS are rounded to 16 bits as operands of the second products. 3 products for dq, 4 for dk and dv, 2
// for the bias: the scores are computed again in each, but draws are made once (attention_knowledge.cu).
#include <algorithm>

#include "ops/cuda/attention_slopes.h"

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

// --- Rows are queries
template <typename T, int W, int C, bool kWide>
OFL_KERNEL void __launch_bounds__(kTensorThreads, kTensorBlocks<W>)
    TensorQueryGradKernel(AttentionShape shape, TileKnowledge known, const T* dout, const T* q, const T* k,
                          const T* v, const float* lse, const float* delta, T* dq) {
  using Tile = SharedTile<T, C, W>;
  using RowTile = SharedTile<T, kTensorRows, W>;
  OFL_SHARED ColumnData<C> columns[2];
  OFL_SHARED RowPlaces places;
  T* const room = DynamicShared<T>();
  const auto tiles = static_cast<unsigned>((shape.queries + kTensorRows - 1) / kTensorRows);
  const int first =
      static_cast<int>(tiles - 1 - blockIdx.x % tiles) * kTensorRows;  // causal: the longest first
  const int part = static_cast<int>(blockIdx.y) * W;
  QueryTile<T, W> rows(shape, shape.first_pair + blockIdx.x / tiles, first, q, dout);
  const HeadView keys = KeyView(shape, rows.b, rows.h, shape.width),
                 values = KeyView(shape, rows.b, rows.h, shape.value_width);
  const auto keys_at = [&](int turn) { return Tile{room + turn * 2 * Tile::kElements}; };
  const auto values_at = [&](int turn) { return Tile{room + (turn * 2 + 1) * Tile::kElements}; };
  const RowTile q_tile{room + 4 * Tile::kElements}, dout_tile{q_tile.data + RowTile::kElements};
  const auto stage = [&](int tile, int turn) {
    StagePlaces<false>(shape, rows.b, tile * C, C, columns[turn].place, columns[turn].document);
    if (kWide) return;
    Stage(keys.Rows(k, tile * C, C), 0, keys_at(turn));
    Stage(values.Rows(v, tile * C, C), 0, values_at(turn));
  };
  if (!kWide) {
    Stage(rows.q, 0, q_tile);
    Stage(rows.dout, 0, dout_tile);
  }
  StagePlaces<true>(shape, rows.b, first, kTensorRows, places.place, places.document);
  TileWalk<true, C> walk(shape, known, rows.b, first);
  int tile = walk.From(walk.begin, rows.h);
  if (tile < walk.end) stage(tile, 0);
  EndCopies();
  OFL_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int64_t s = first + RowOfLane() + 8 * half;
    const int64_t at = rows.pair * shape.queries + s;
    rows.stats[half] = {-INFINITY, 0};
    if (s < shape.queries) rows.stats[half] = {lse[at], delta[at]};
  }
  WaitForCopies<0>();
  __syncthreads();
  for (QueryStatistics& of_row : rows.stats) of_row = of_row.InUnits();
  LeftFragment q_rows[W / 16], dout_rows[W / 16];
  OFL_UNROLL
  for (int i = 0; i < W / 16 && !kWide; ++i) {
    q_rows[i] = LoadLeft(q_tile, WarpOfThread() * 16, 16 * i);
    dout_rows[i] = LoadLeft(dout_tile, WarpOfThread() * 16, 16 * i);
  }
  Sums<W> out = {};
  for (int turn = 0; tile < walk.end; turn ^= 1) {
    const int column = tile * C;
    const bool whole = walk.Whole(tile);
    tile = walk.From(tile + 1, rows.h);
    if (tile < walk.end) stage(tile, turn ^ 1);
    EndCopies();
    const int at = kWide ? 0 : turn;
    const auto dots = [&](Sums<C>* scores, Sums<C>* dp) {
      if constexpr (kWide) {
        AddWideDots(rows.q, keys.Rows(k, column, C), keys_at(at), scores);
        AddWideDots(rows.dout, values.Rows(v, column, C), values_at(at), dp);
      } else {
        AddDots([&](int i) { return q_rows[i]; }, keys_at(at), scores);
        AddDots([&](int i) { return dout_rows[i]; }, values_at(at), dp);
      }
    };
    Sums<C> ds;
    rows.Slopes(shape, known, column, places, columns[turn], whole, dots, &ds);
    if (kWide) StageNow(keys.Rows(k, column, C), part, keys_at(at));
    AddWeighted(ds, keys_at(at), &out);
    WaitForCopies<0>();
    __syncthreads();
  }
  const float factor[2] = {shape.scale, shape.scale};
  StoreRows(out, factor, QueryView(shape, rows.b, rows.h, shape.width), first, part, q_tile, dq);
}

// --- Rows are keys and values, columns the queries of all heads that share them
// A tile of queries of one of these heads.
struct QueriesOfGroup {
  int head, tile;
};

template <typename T, int W, int C, bool kWide>
OFL_KERNEL void __launch_bounds__(kTensorThreads, kTensorBlocks<W>)
    TensorKeyGradKernel(AttentionShape shape, TileKnowledge known, const T* dout, const T* q, const T* k,
                        const T* v, const float* lse, const float* delta, T* dk, T* dv) {
  using Tile = SharedTile<T, C, W>;
  using RowTile = SharedTile<T, kTensorRows, W>;
  OFL_SHARED ColumnData<C> columns[2];
  OFL_SHARED RowPlaces places;
  T* const room = DynamicShared<T>();
  const auto tiles = static_cast<unsigned>((shape.keys + kTensorRows - 1) / kTensorRows);
  const int64_t of_keys_pair = shape.first_pair / shape.group + blockIdx.x / tiles;
  const int64_t b = of_keys_pair / shape.key_heads;
  const int first = static_cast<int>(blockIdx.x % tiles) * kTensorRows, row = first + WarpOfThread() * 16;
  const int part = static_cast<int>(blockIdx.y) * W;
  const int first_head = static_cast<int>(of_keys_pair % shape.key_heads * shape.group);
  const HeadView of_keys = KeyView(shape, b, first_head, shape.width),
                 of_values = KeyView(shape, b, first_head, shape.value_width);
  const HeadRows<T> keys = of_keys.Rows(k, first, kTensorRows),
                    values = of_values.Rows(v, first, kTensorRows);
  const auto queries_at = [&](int turn) { return Tile{room + turn * 2 * Tile::kElements}; };
  const auto douts_at = [&](int turn) { return Tile{room + (turn * 2 + 1) * Tile::kElements}; };
  const RowTile key_rows{room + 4 * Tile::kElements}, value_rows{key_rows.data + RowTile::kElements};
  const auto queries_of = [&](const QueriesOfGroup& at) {
    return QueryView(shape, b, first_head + at.head, shape.width).Rows(q, at.tile * C, C);
  };
  const auto douts_of = [&](const QueriesOfGroup& at) {
    return QueryView(shape, b, first_head + at.head, shape.value_width).Rows(dout, at.tile * C, C);
  };
  // Statistics come to shared memory when they are there: the thread does not wait for them.
  QueryStatistics stats = {};
  const auto stage = [&](const QueriesOfGroup& at, int turn) {
    StagePlaces<true>(shape, b, at.tile * C, C, columns[turn].place, columns[turn].document);
    const int64_t s = at.tile * C + threadIdx.x;
    stats = {-INFINITY, 0};
    if (threadIdx.x < C && s < shape.queries) {
      const int64_t i = (b * shape.heads + first_head + at.head) * shape.queries + s;
      stats = {lse[i], delta[i]};
    }
    if (kWide) return;
    Stage(queries_of(at), 0, queries_at(turn));
    Stage(douts_of(at), 0, douts_at(turn));
  };
  const auto put = [&](int turn) {
    if (threadIdx.x >= C) return;
    const QueryStatistics in_units = stats.InUnits();
    columns[turn].lse[threadIdx.x] = in_units.lse;
    columns[turn].delta[threadIdx.x] = in_units.delta;
  };
  if (!kWide) {
    Stage(keys, 0, key_rows);
    Stage(values, 0, value_rows);
  }
  StagePlaces<false>(shape, b, first, kTensorRows, places.place, places.document);
  TileWalk<false, C> walk(shape, known, b, first);
  // The next tile that is not empty, from this one on, of this head or a later one.
  const auto from = [&](QueriesOfGroup tile) {
    while (tile.head < shape.group) {
      tile.tile = walk.From(tile.tile, first_head + tile.head);
      if (tile.tile < walk.end) break;
      tile = {tile.head + 1, walk.begin};
    }
    return tile;
  };
  QueriesOfGroup next = from({0, walk.begin});
  if (next.head < shape.group) stage(next, 0);
  put(0);
  EndCopies();
  WaitForCopies<0>();
  __syncthreads();
  Sums<W> dk_out = {}, dv_out = {};
  for (int turn = 0; next.head < shape.group; turn ^= 1) {
    const QueriesOfGroup at = next;
    const bool whole = walk.Whole(at.tile);
    next = from({at.head, at.tile + 1});
    if (next.head < shape.group) stage(next, turn ^ 1);
    EndCopies();
    const int column = at.tile * C;
    const int h = first_head + at.head;
    const int ready = kWide ? 0 : turn;
    Sums<C> bias, scores = {}, ds = {};  // ds: first dP
    KeptScores<false, C> kept;
    if (shape.bias != nullptr) LoadBias<false>(shape, b, h, row, column, &bias);
    if (shape.drop > 0) kept.Load(known, b * shape.heads + h - shape.first_pair, row, column);
    if constexpr (kWide) {
      AddWideDots(keys, queries_of(at), queries_at(0), &scores);
      AddWideDots(values, douts_of(at), douts_at(0), &ds);
    } else {
      const int own = WarpOfThread() * 16;
      AddDots([&](int i) { return LoadLeft(key_rows, own, 16 * i); }, queries_at(turn), &scores);
      AddDots([&](int i) { return LoadLeft(value_rows, own, 16 * i); }, douts_at(turn), &ds);
    }
    const ColumnData<C>& data = columns[turn];
    FinishScores<false>(shape, row, column, places, data, whole, bias, &scores);
    const auto stats_of = [&](int n, int i) {
      const int c = 8 * n + ColumnOfSum(i);
      return QueryStatistics{data.lse[c], data.delta[c]};
    };
    if (shape.drop > 0) {
      kept.Arrive(row);
      FinishKeptSlopes(shape, kept, stats_of, &scores, &ds);
    } else {
      FinishSlopes(shape, stats_of, &scores, &ds);
    }
    if (kWide) StageNow(douts_of(at), part, douts_at(0));
    AddWeighted(scores, douts_at(ready), &dv_out);
    if (kWide) StageNow(queries_of(at), part, queries_at(0));
    AddWeighted(ds, queries_at(ready), &dk_out);
    put(turn ^ 1);
    WaitForCopies<0>();
    __syncthreads();
  }
  const float of_keep[2] = {shape.keep, shape.keep}, of_scale[2] = {shape.scale, shape.scale};
  StoreRows(dv_out, of_keep, of_values, first, part, value_rows, dv);
  StoreRows(dk_out, of_scale, of_keys, first, part, key_rows, dk);
}

// --- The host's side
template <typename T, int W, bool kWide>
void LaunchGradOf(const AttentionShape& s, const KernelContext& context, const LaunchContext& launch,
                  const TileKnowledge& known, float* delta) {
  constexpr int kColumns = 32;  // so that sums of all products fit the registers
  constexpr size_t kTile = SharedTile<T, kColumns, W>::kBytes,
                   kRowTile = SharedTile<T, kTensorRows, W>::kBytes, kShared = 4 * kTile + 2 * kRowTile;
  static_assert(kShared <= kMostShared);
  const auto in = [&](int i) { return context.in[i].as<T>(); };
  const float* const lse = context.in[5].as<float>();
  const Grid of_queries = {static_cast<unsigned>(TensorTiles(s.queries) * s.pairs), TensorParts(s.width, W),
                           kTensorThreads, kShared};
  const Grid of_keys = {static_cast<unsigned>(TensorTiles(s.keys) * (s.pairs / s.group)),
                        TensorParts(std::max(s.width, s.value_width), W), kTensorThreads, kShared};
  cuda::Launch(TensorQueryGradKernel<T, W, kColumns, kWide>, of_queries, launch.stream, s, known, in(0),
               in(1), in(2), in(3), lse, delta, context.out[0].as<T>());
  cuda::Launch(TensorKeyGradKernel<T, W, kColumns, kWide>, of_keys, launch.stream, s, known, in(0), in(1),
               in(2), in(3), lse, delta, context.out[1].as<T>(), context.out[2].as<T>());
}

}  // namespace

Status LaunchTensorAttentionGrad(const AttentionShape& shape, const KernelContext& context,
                                 const LaunchContext& launch) {
  auto* const delta = static_cast<float*>(launch.workspace);
  // What is known lies behind it, at a multiple of 8 bytes.
  const int64_t numbers = (shape.pairs * shape.queries + 1) / 2 * 2;
  const DType dtype = context.in[1].dtype;
  const Grid of_deltas = {static_cast<unsigned>(TensorTiles(shape.queries) * shape.pairs), 1, kTensorThreads,
                          0};
  const auto launch_deltas = [&](auto t) {
    using T = decltype(t);
    cuda::Launch(TensorDeltaKernel<T>, of_deltas, launch.stream, shape, context.in[0].as<T>(),
                 context.in[4].as<T>(), delta);
  };
  if (dtype == DType::kBFloat16) {
    launch_deltas(BFloat16{});
  } else {
    launch_deltas(Float16{});
  }
  const int width = std::max(shape.width, shape.value_width);
  LaunchParts(shape, delta + numbers, launch, [&](const AttentionShape& part, const TileKnowledge& known) {
    ForTensorInstance(dtype, width, [&](auto t, auto of_instance, auto wide) {
      LaunchGradOf<decltype(t), of_instance, wide>(part, context, launch, known, delta);
    });
    if (context.out.size() > 3) LaunchTensorBiasGrad(part, known, context, launch, delta);
  });
  return Status();
}

}  // namespace oneflow_like::cuda
