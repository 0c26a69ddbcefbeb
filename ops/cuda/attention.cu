// attention and attention_grad in fp32, on the plain cores, and their definition on a device: any width of
// head, group of heads, mask, dropout and piece. They keep a running maximum and sum per query instead of a
// matrix of scores: 4 operations per pair and element forward, 14 backward, where the device's fp32 peak is
// the floor. attention_choice.cu has what runs instead in 16 bits.
//
// Backward twice: a block for each tile of keys goes through the queries and adds up dk and dv, a block for
// each tile of queries goes through the keys for dq. Probabilities are computed in both; nothing is added
// across blocks, so the same bits come out of every run.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/cuda/attention_tile.h"

namespace oneflow_like::cuda {
namespace {

// The tile a block works on, of one head of queries or of keys.
struct BlockPlace {
  int64_t pair, b, h, first;
  int from;  // first element of the result
};
OFL_DEVICE BlockPlace PlaceOf(int64_t first_pair, int64_t heads, int64_t rows) {
  int64_t tiles = (rows + kTile - 1) / kTile;
  BlockPlace at;
  at.pair = first_pair + blockIdx.x / tiles;
  at.b = at.pair / heads;
  at.h = at.pair % heads;
  at.first = blockIdx.x % tiles * kTile;
  at.from = static_cast<int>(blockIdx.y) * kOutput;
  return at;
}

// -infinity where masked.
OFL_DEVICE float ScoreOf(const AttentionShape& shape, int64_t b, int64_t h, int64_t s, int64_t t, float dot) {
  if (!Seen(shape, b, s, t)) return -INFINITY;
  return shape.bias == nullptr ? dot * shape.scale
                               : dot * shape.scale + shape.bias[shape.bias_strides.Offset(b, h, s, t)];
}

// Keys that the queries before `end` may see are before this one.
OFL_DEVICE int64_t VisibleTo(const AttentionShape& shape, int64_t end) {
  if (!shape.simple || !shape.causal || end + shape.shift >= shape.keys) return shape.keys;
  return end + shape.shift;
}

// What a probability is multiplied by.
OFL_DEVICE float KeepFactor(const AttentionShape& shape, int64_t b, int64_t h, int64_t s, int64_t t,
                            int64_t step) {
  const int64_t index = DrawOf(shape, b, h, s, t);
  const uint32_t bits = DropBits(shape.random_key, static_cast<uint64_t>(step), static_cast<uint64_t>(index));
  return bits >= shape.drop_least ? shape.keep : 0.0f;
}

OFL_KERNEL void AttentionKernel(AttentionShape shape, const float* q, const float* k, const float* v,
                                float* o, float* lse, const ActState* act) {
  alignas(16) OFL_SHARED float room[kRoomFloats];
  OFL_SHARED float weights[kWeightFloats];
  BlockPlace at = PlaceOf(shape.first_pair, shape.heads, shape.queries);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  FloatRows rows = QueryView(shape, at.b, at.h, shape.width).Rows(q, at.first, kTile);
  HeadView keys = KeyView(shape, at.b, at.h, shape.width),
           values = KeyView(shape, at.b, at.h, shape.value_width);
  HeadView results = QueryView(shape, at.b, at.h, shape.value_width);
  float greatest[kRowsOfWarp], total[kRowsOfWarp], out[kRowsOfWarp][kSlots] = {};
  for (int r = 0; r < kRowsOfWarp; ++r) {
    greatest[r] = -INFINITY;
    total[r] = 0;
  }
  int64_t visible = VisibleTo(shape, at.first + rows.count), step = act->step;
  for (int64_t first = 0; first < visible; first += kTile) {
    float score[kRowsOfWarp] = {};
    Dots(rows, keys.Rows(k, first, kTile), room, score);
    __syncwarp();  // lanes have read the last tile's weights; of width 0 Dots has no barrier
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      int64_t s = at.first + warp * kRowsOfWarp + r, t = first + lane;
      float x = ScoreOf(shape, at.b, at.h, s, t, score[r]);
      float top = WarpMax(x);
      top = greatest[r] > top || greatest[r] != greatest[r] ? greatest[r] : top;
      float safe = top == -INFINITY ? 0.0f : top;  // a query that has seen no key yet
      float rescale = expf(greatest[r] - safe), p = expf(x - safe);
      total[r] = total[r] * rescale + WarpSum(p);
      greatest[r] = top;
      if (shape.drop > 0) p *= KeepFactor(shape, at.b, at.h, s, t, step);
      weights[(warp * kRowsOfWarp + r) * kWeightPitch + lane] = p;
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) out[r][slot] *= rescale;
    }
    AddColumns(weights, values.Rows(v, first, kTile), at.from, room, out);
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    int row = warp * kRowsOfWarp + r;
    int64_t s = at.first + row;
    if (row >= rows.count) continue;
    bool blind = total[r] == 0;
    StoreRow(out[r], blind ? 0.0f : 1.0f / total[r], at.from, shape.value_width, o + results.RowAt(s));
    if (lane == 0 && at.from == 0)
      lse[at.pair * shape.queries + s] = blind ? -INFINITY : greatest[r] + logf(total[r]);
  }
}

// do . o of one query, added up in the order of Dots: where a query sees one key only, its slope is 0 to the
// last bit.
OFL_DEVICE float DeltaOf(const HeadView& results, int64_t s, const float* dout, const float* o) {
  int64_t row = results.RowAt(s);
  float sum = 0;
  for (int d = 0; d < results.width; d += 4) {
    float4 x = LoadFour(dout + row + d, results.width - d, results.packed);
    float4 y = LoadFour(o + row + d, results.width - d, results.packed);
    sum += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
  }
  return sum;
}

// delta[pair][s] = do . o, a thread for each query.
OFL_KERNEL void DeltaKernel(AttentionShape shape, const float* dout, const float* o, float* delta) {
  int64_t count = shape.pairs * shape.queries, threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    int64_t pair = shape.first_pair + i / shape.queries;
    HeadView results = QueryView(shape, pair / shape.heads, pair % shape.heads, shape.value_width);
    delta[i] = DeltaOf(results, i % shape.queries, dout, o);
  }
}

// Of one score and its neighbours: the dropped probability, and the gradient of the score.
struct Slope {
  float p, ds;
};
OFL_DEVICE Slope SlopeOf(const AttentionShape& shape, int64_t b, int64_t h, int64_t s, int64_t t,
                         int64_t step, float dot, float dp, float lse, float delta) {
  float score = ScoreOf(shape, b, h, s, t, dot);
  if (score == -INFINITY) return {0, 0};
  float p = expf(score - lse);
  float keep = shape.drop > 0 ? KeepFactor(shape, b, h, s, t, step) : 1.0f;
  return {p * keep, p * (keep * dp - delta)};
}

// Rows are queries.
OFL_KERNEL void QueryGradKernel(AttentionShape shape, const float* dout, const float* q, const float* k,
                                const float* v, const float* lse, const float* delta, float* dq,
                                const ActState* act) {
  alignas(16) OFL_SHARED float room[kRoomFloats];
  OFL_SHARED float weights[kWeightFloats];
  BlockPlace at = PlaceOf(shape.first_pair, shape.heads, shape.queries);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  HeadView queries = QueryView(shape, at.b, at.h, shape.width);
  HeadView keys = KeyView(shape, at.b, at.h, shape.width),
           values = KeyView(shape, at.b, at.h, shape.value_width);
  FloatRows rows = queries.Rows(q, at.first, kTile);
  FloatRows dout_rows = QueryView(shape, at.b, at.h, shape.value_width).Rows(dout, at.first, kTile);
  float own_lse[kRowsOfWarp], own_delta[kRowsOfWarp], out[kRowsOfWarp][kSlots] = {};
  for (int r = 0; r < kRowsOfWarp; ++r) {
    int64_t s = at.first + warp * kRowsOfWarp + r;
    bool here = s < shape.queries;
    own_lse[r] = here ? lse[at.pair * shape.queries + s] : 0.0f;
    own_delta[r] = here ? delta[(at.pair - shape.first_pair) * shape.queries + s] : 0.0f;
  }
  int64_t visible = VisibleTo(shape, at.first + rows.count), step = act->step;
  for (int64_t first = 0; first < visible; first += kTile) {
    float score[kRowsOfWarp] = {}, dp[kRowsOfWarp] = {};
    FloatRows columns = keys.Rows(k, first, kTile);
    Dots(rows, columns, room, score);
    Dots(dout_rows, values.Rows(v, first, kTile), room, dp);
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      int row = warp * kRowsOfWarp + r;
      Slope slope = SlopeOf(shape, at.b, at.h, at.first + row, first + lane, step, score[r], dp[r],
                            own_lse[r], own_delta[r]);
      weights[row * kWeightPitch + lane] = slope.ds * shape.scale;
    }
    AddColumns(weights, columns, at.from, room, out);
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    int row = warp * kRowsOfWarp + r;
    if (row < rows.count) StoreRow(out[r], 1.0f, at.from, shape.width, dq + queries.RowAt(at.first + row));
  }
}

// Rows are keys and values, columns the queries of all heads that share them.
OFL_KERNEL void KeyGradKernel(AttentionShape shape, const float* dout, const float* q, const float* k,
                              const float* v, const float* lse, const float* delta, float* dk, float* dv,
                              const ActState* act) {
  alignas(16) OFL_SHARED float room[kRoomFloats];
  OFL_SHARED float p_weights[kWeightFloats];
  OFL_SHARED float ds_weights[kWeightFloats];
  BlockPlace at = PlaceOf(shape.first_pair / shape.group, shape.key_heads, shape.keys);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  HeadView of_keys = KeyView(shape, at.b, at.h * shape.group, shape.width),
           of_values = KeyView(shape, at.b, at.h * shape.group, shape.value_width);
  FloatRows keys = of_keys.Rows(k, at.first, kTile), values = of_values.Rows(v, at.first, kTile);
  float dk_out[kRowsOfWarp][kSlots] = {}, dv_out[kRowsOfWarp][kSlots] = {};
  int64_t begin = 0;  // first tile with a query that sees the first of these keys
  if (shape.simple && shape.causal && at.first > shape.shift)
    begin = (at.first - shape.shift) / kTile * kTile;
  int64_t step = act->step, tiles = begin < shape.queries ? (shape.queries - begin + kTile - 1) / kTile : 0;
  for (int64_t i = 0; i < shape.group * tiles; ++i) {
    int64_t h = at.h * shape.group + i / tiles, first = begin + i % tiles * kTile;
    int64_t pair = at.b * shape.heads + h, s = first + lane;
    float score[kRowsOfWarp] = {}, dp[kRowsOfWarp] = {};
    FloatRows queries = QueryView(shape, at.b, h, shape.width).Rows(q, first, kTile);
    FloatRows douts = QueryView(shape, at.b, h, shape.value_width).Rows(dout, first, kTile);
    bool here = s < shape.queries;
    float its_lse = here ? lse[pair * shape.queries + s] : 0.0f;
    float its_delta = here ? delta[(pair - shape.first_pair) * shape.queries + s] : 0.0f;
    Dots(keys, queries, room, score);
    Dots(values, douts, room, dp);
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      int row = warp * kRowsOfWarp + r;
      Slope slope = SlopeOf(shape, at.b, h, s, at.first + row, step, score[r], dp[r], its_lse, its_delta);
      p_weights[row * kWeightPitch + lane] = slope.p;
      ds_weights[row * kWeightPitch + lane] = slope.ds * shape.scale;
    }
    AddColumns(p_weights, douts, at.from, room, dv_out);
    AddColumns(ds_weights, queries, at.from, room, dk_out);
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    int row = warp * kRowsOfWarp + r;
    if (row >= keys.count) continue;
    StoreRow(dk_out[r], 1.0f, at.from, shape.width, dk + of_keys.RowAt(at.first + row));
    StoreRow(dv_out[r], 1.0f, at.from, shape.value_width, dv + of_values.RowAt(at.first + row));
  }
}

// A block for each tile of the bias, of extent 1 where it is broadcast: it goes through all tiles of scores
// that the bias was added to, each thread summing its rows and column, and sums over threads at the end.
struct BiasTiles {
  int64_t batch, heads, rows, columns;  // tiles of the bias
};

OFL_DEVICE void AddBiasSlopes(const AttentionShape& shape, const BlockPlace& at, int64_t column,
                              const float* dout, const float* q, const float* k, const float* v,
                              const float* o, const float* lse, int64_t step, float* room,
                              float (&sum)[kRowsOfWarp]) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  HeadView results = QueryView(shape, at.b, at.h, shape.value_width);
  float dot[kRowsOfWarp] = {}, dp[kRowsOfWarp] = {};
  Dots(QueryView(shape, at.b, at.h, shape.width).Rows(q, at.first, kTile),
       KeyView(shape, at.b, at.h, shape.width).Rows(k, column, kTile), room, dot);
  Dots(results.Rows(dout, at.first, kTile),
       KeyView(shape, at.b, at.h, shape.value_width).Rows(v, column, kTile), room, dp);
  for (int r = 0; r < kRowsOfWarp; ++r) {
    int64_t s = at.first + warp * kRowsOfWarp + r;
    if (s >= shape.queries) continue;
    sum[r] += SlopeOf(shape, at.b, at.h, s, column + lane, step, dot[r], dp[r],
                      lse[(at.b * shape.heads + at.h) * shape.queries + s], DeltaOf(results, s, dout, o))
                  .ds;
  }
}

OFL_KERNEL void BiasGradKernel(AttentionShape shape, BiasTiles tiles, const float* dout, const float* q,
                               const float* k, const float* v, const float* o, const float* lse, float* dbias,
                               const ActState* act) {
  alignas(16) OFL_SHARED float room[kRoomFloats];
  const int64_t* stride = shape.bias_strides.at;
  int64_t i = blockIdx.x, step = act->step;
  int64_t row_tiles = (shape.queries + kTile - 1) / kTile, column_tiles = (shape.keys + kTile - 1) / kTile;
  int64_t first[4] = {i / tiles.columns / tiles.rows / tiles.heads,
                      i / tiles.columns / tiles.rows % tiles.heads, i / tiles.columns % tiles.rows,
                      i % tiles.columns};
  int64_t all[4] = {shape.batch, shape.heads, row_tiles, column_tiles}, end[4];
  for (int axis = 0; axis < 4; ++axis) end[axis] = stride[axis] != 0 ? first[axis] + 1 : all[axis];
  float sum[kRowsOfWarp] = {};
  for (int64_t b = first[0]; b < end[0]; ++b)
    for (int64_t h = first[1]; h < end[1]; ++h)
      for (int64_t row = first[2]; row < end[2]; ++row)
        for (int64_t column = first[3]; column < end[3]; ++column)
          AddBiasSlopes(shape, {0, b, h, row * kTile, 0}, column * kTile, dout, q, k, v, o, lse, step, room,
                        sum);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (stride[3] == 0) {
    for (int r = 0; r < kRowsOfWarp; ++r) sum[r] = WarpSum(sum[r]);
  }
  if (stride[2] == 0) {  // one row left, of all warps
    __syncthreads();
    float of_warp = 0;
    for (int r = 0; r < kRowsOfWarp; ++r) of_warp += sum[r];
    room[warp * 32 + lane] = of_warp;
    __syncthreads();
    sum[0] = 0;
    for (int w = 0; w < kWarps; ++w) sum[0] += room[w * 32 + lane];
  }
  for (int r = 0; r < kRowsOfWarp; ++r) {
    int64_t s = first[2] * kTile + warp * kRowsOfWarp + r, t = first[3] * kTile + lane;
    bool writes = (stride[2] != 0 ? s < shape.queries : warp == 0 && r == 0) &&
                  (stride[3] != 0 ? t < shape.keys : lane == 0);
    if (writes) dbias[shape.bias_strides.Offset(first[0], first[1], s, t)] = sum[r];
  }
}

// --- The host's side

// For results of `width` elements at each of `rows` positions of each pair of batch and head.
Grid GridOf(int64_t pairs, int64_t rows, int64_t width) {
  int64_t tiles = (rows + kTile - 1) / kTile, parts = std::max<int64_t>(1, (width + kOutput - 1) / kOutput);
  return {static_cast<unsigned>(tiles * pairs), static_cast<unsigned>(parts), kWarps * 32, 0};
}

void LaunchBiasGrad(const AttentionShape& s, const KernelContext& context, const LaunchContext& launch) {
  const int64_t* stride = s.bias_strides.at;
  BiasTiles tiles = {stride[0] != 0 ? s.batch : 1, stride[1] != 0 ? s.heads : 1,
                     stride[2] != 0 ? (s.queries + kTile - 1) / kTile : 1,
                     stride[3] != 0 ? (s.keys + kTile - 1) / kTile : 1};
  Grid grid = {static_cast<unsigned>(tiles.batch * tiles.heads * tiles.rows * tiles.columns), 1, kWarps * 32,
               0};
  auto in = [&](int i) { return context.in[i].as<float>(); };
  cuda::Launch(BiasGradKernel, grid, launch.stream, s, tiles, in(0), in(1), in(2), in(3), in(4), in(5),
               context.out[3].as<float>(), launch.act);
}

}  // namespace

void LaunchPlainAttention(const AttentionShape& s, const KernelContext& context,
                          const LaunchContext& launch) {
  auto in = [&](int i) { return context.in[i].as<float>(); };
  cuda::Launch(AttentionKernel, GridOf(s.pairs, s.queries, s.value_width), launch.stream, s, in(0), in(1),
               in(2), context.out[0].as<float>(), context.out[1].as<float>(), launch.act);
}

// The work space holds one number per query of the heads under way, whole groups of them.
Status LaunchPlainAttentionGrad(AttentionShape s, const KernelContext& context, const LaunchContext& launch) {
  if (context.out.size() > 3) LaunchBiasGrad(s, context, launch);
  int64_t most = static_cast<int64_t>(launch.workspace_bytes / sizeof(float)) / s.queries, all = s.pairs;
  most = most / s.group * s.group;
  if (most == 0) return Status(Cat("axis s has ", s.queries, " queries, more than work space holds"));
  float* delta = static_cast<float*>(launch.workspace);
  auto in = [&](int i) { return context.in[i].as<float>(); };
  auto out = [&](int i) { return context.out[i].as<float>(); };
  for (s.first_pair = 0; s.first_pair < all; s.first_pair += s.pairs) {
    s.pairs = all - s.first_pair < most ? all - s.first_pair : most;
    Grid rows{BlocksFor(s.pairs * s.queries, 256, launch.multiprocessors), 1, 256, 0};
    Grid of_keys = GridOf(s.pairs / s.group, s.keys, std::max(s.width, s.value_width));
    cuda::Launch(DeltaKernel, rows, launch.stream, s, in(0), in(4), delta);
    cuda::Launch(QueryGradKernel, GridOf(s.pairs, s.queries, s.width), launch.stream, s, in(0), in(1), in(2),
                 in(3), in(5), delta, out(0), launch.act);
    cuda::Launch(KeyGradKernel, of_keys, launch.stream, s, in(0), in(1), in(2), in(3), in(5), delta, out(1),
                 out(2), launch.act);
  }
  return Status();
}

}  // namespace oneflow_like::cuda
