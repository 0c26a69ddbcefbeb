// attention and attention_grad. Types of 16 bits go to the library (flash.h) where it has a deterministic
// kernel for the shape; everything else, fp32 first of all, to the kernels here, which run any width of head,
// group of heads, mask, dropout and piece. They keep a running maximum and sum per query instead of a matrix
// of scores, and compute in fp32 on the plain cores: 4 operations per pair and element forward, 14 backward,
// where the device's fp32 peak is the floor.
//
// Backward twice: a block for each tile of keys goes through the queries and adds up dk and dv, a block for
// each tile of queries goes through the keys for dq. Probabilities are computed in both; nothing is added
// across blocks, so the same bits come out of every run.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <span>

#include "ops/attention_library.h"
#include "ops/attention_masks.h"
#include "ops/cuda/attention_tile.h"
#include "ops/cuda/flash.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/library_use.h"
#include "ops/cuda/operand.h"

namespace oneflow_like::cuda {
namespace {

// Positions or documents: an operand of integers [b i] or [i], or first + step * i.
struct PlaceView {
  IndexView operand;
  bool of_batch;
  int64_t length, first, step;

  OFL_DEVICE int64_t At(int64_t b, int64_t i) const {
    if (operand.data == nullptr) return first + step * i;
    return operand.At(of_batch ? b * length + i : i);
  }
};

struct AttentionShape {
  int64_t batch, heads, key_heads, group, queries, keys;
  int width, value_width;
  bool causal, packed;
  bool by_places;  // no operand says what a query sees: of local numbers, s sees keys up to s + shift if
                   // causal
  bool simple;     // and there is no window
  int64_t shift, window;
  float scale, drop, keep;  // keep: 1 / (1 - drop)
  uint64_t random_key;
  int64_t batch_begin, head_begin, query_begin, key_begin;  // of the pieces, for draws
  int64_t global_heads, global_queries, global_keys;
  PlaceView query_positions, key_positions, query_documents, key_documents;
  const float* bias;
  BiasStrides bias_strides;
  int64_t first_pair, pairs;  // of batch and head of queries, in this launch
};

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

// One head of a tensor [b, length, heads, width].
struct HeadView {
  int64_t b, h, heads, length;
  int width;
  bool packed;

  // Offset of element 0 of position i.
  OFL_DEVICE int64_t RowAt(int64_t i) const { return ((b * length + i) * heads + h) * width; }
  // The tile of rows from `first` on.
  template <typename T>
  OFL_DEVICE HeadRows<T> Rows(const T* data, int64_t first) const {
    int64_t left = length - first;
    return {data + RowAt(first), heads * width, static_cast<int>(left < kTile ? left : kTile), width, packed};
  }
};
// Of head h of queries, and of the keys it shares.
OFL_DEVICE HeadView QueryView(const AttentionShape& shape, int64_t b, int64_t h, int width) {
  return {b, h, shape.heads, shape.queries, width, shape.packed};
}
OFL_DEVICE HeadView KeyView(const AttentionShape& shape, int64_t b, int64_t h, int width) {
  return {b, h / shape.group, shape.key_heads, shape.keys, width, shape.packed};
}

OFL_DEVICE bool Seen(const AttentionShape& shape, int64_t b, int64_t s, int64_t t) {
  if (s >= shape.queries || t >= shape.keys) return false;
  if (shape.simple) return !shape.causal || t <= s + shape.shift;
  int64_t query = shape.query_positions.At(b, s), key = shape.key_positions.At(b, t);
  return (!shape.causal || key <= query) && (shape.window == 0 || key > query - shape.window) &&
         shape.query_documents.At(b, s) == shape.key_documents.At(b, t);
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
  int64_t index = (b + shape.batch_begin) * shape.global_heads + h + shape.head_begin;
  index = (index * shape.global_queries + s + shape.query_begin) * shape.global_keys + t + shape.key_begin;
  uint32_t bits = RandomBits(shape.random_key, static_cast<uint64_t>(step), static_cast<uint64_t>(index));
  return ToUniform(bits) >= shape.drop ? shape.keep : 0.0f;
}

template <typename T>
OFL_KERNEL void AttentionKernel(AttentionShape shape, const T* q, const T* k, const T* v, T* o, float* lse,
                                const ActState* act) {
  alignas(16) OFL_SHARED float room[kRoomFloats];
  OFL_SHARED float weights[kWeightFloats];
  BlockPlace at = PlaceOf(shape.first_pair, shape.heads, shape.queries);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  HeadRows<T> rows = QueryView(shape, at.b, at.h, shape.width).Rows(q, at.first);
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
    Dots(rows, keys.Rows(k, first), room, score);
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
    AddColumns(weights, values.Rows(v, first), at.from, room, out);
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
template <typename T>
OFL_DEVICE float DeltaOf(const HeadView& results, int64_t s, const T* dout, const T* o) {
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
template <typename T>
OFL_KERNEL void DeltaKernel(AttentionShape shape, const T* dout, const T* o, float* delta) {
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
template <typename T>
OFL_KERNEL void QueryGradKernel(AttentionShape shape, const T* dout, const T* q, const T* k, const T* v,
                                const float* lse, const float* delta, T* dq, const ActState* act) {
  alignas(16) OFL_SHARED float room[kRoomFloats];
  OFL_SHARED float weights[kWeightFloats];
  BlockPlace at = PlaceOf(shape.first_pair, shape.heads, shape.queries);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  HeadView queries = QueryView(shape, at.b, at.h, shape.width);
  HeadView keys = KeyView(shape, at.b, at.h, shape.width),
           values = KeyView(shape, at.b, at.h, shape.value_width);
  HeadRows<T> rows = queries.Rows(q, at.first);
  HeadRows<T> dout_rows = QueryView(shape, at.b, at.h, shape.value_width).Rows(dout, at.first);
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
    HeadRows<T> columns = keys.Rows(k, first);
    Dots(rows, columns, room, score);
    Dots(dout_rows, values.Rows(v, first), room, dp);
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
template <typename T>
OFL_KERNEL void KeyGradKernel(AttentionShape shape, const T* dout, const T* q, const T* k, const T* v,
                              const float* lse, const float* delta, T* dk, T* dv, const ActState* act) {
  alignas(16) OFL_SHARED float room[kRoomFloats];
  OFL_SHARED float p_weights[kWeightFloats];
  OFL_SHARED float ds_weights[kWeightFloats];
  BlockPlace at = PlaceOf(shape.first_pair / shape.group, shape.key_heads, shape.keys);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  HeadView of_keys = KeyView(shape, at.b, at.h * shape.group, shape.width),
           of_values = KeyView(shape, at.b, at.h * shape.group, shape.value_width);
  HeadRows<T> keys = of_keys.Rows(k, at.first), values = of_values.Rows(v, at.first);
  float dk_out[kRowsOfWarp][kSlots] = {}, dv_out[kRowsOfWarp][kSlots] = {};
  int64_t begin = 0;  // first tile with a query that sees the first of these keys
  if (shape.simple && shape.causal && at.first > shape.shift)
    begin = (at.first - shape.shift) / kTile * kTile;
  int64_t step = act->step, tiles = begin < shape.queries ? (shape.queries - begin + kTile - 1) / kTile : 0;
  for (int64_t i = 0; i < shape.group * tiles; ++i) {
    int64_t h = at.h * shape.group + i / tiles, first = begin + i % tiles * kTile;
    int64_t pair = at.b * shape.heads + h, s = first + lane;
    float score[kRowsOfWarp] = {}, dp[kRowsOfWarp] = {};
    HeadRows<T> queries = QueryView(shape, at.b, h, shape.width).Rows(q, first);
    HeadRows<T> douts = QueryView(shape, at.b, h, shape.value_width).Rows(dout, first);
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

template <typename T>
OFL_DEVICE void AddBiasSlopes(const AttentionShape& shape, const BlockPlace& at, int64_t column,
                              const T* dout, const T* q, const T* k, const T* v, const T* o, const float* lse,
                              int64_t step, float* room, float (&sum)[kRowsOfWarp]) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  HeadView results = QueryView(shape, at.b, at.h, shape.value_width);
  float dot[kRowsOfWarp] = {}, dp[kRowsOfWarp] = {};
  Dots(QueryView(shape, at.b, at.h, shape.width).Rows(q, at.first),
       KeyView(shape, at.b, at.h, shape.width).Rows(k, column), room, dot);
  Dots(results.Rows(dout, at.first), KeyView(shape, at.b, at.h, shape.value_width).Rows(v, column), room, dp);
  for (int r = 0; r < kRowsOfWarp; ++r) {
    int64_t s = at.first + warp * kRowsOfWarp + r;
    if (s >= shape.queries) continue;
    sum[r] += SlopeOf(shape, at.b, at.h, s, column + lane, step, dot[r], dp[r],
                      lse[(at.b * shape.heads + at.h) * shape.queries + s], DeltaOf(results, s, dout, o))
                  .ds;
  }
}

template <typename T>
OFL_KERNEL void BiasGradKernel(AttentionShape shape, BiasTiles tiles, const T* dout, const T* q, const T* k,
                               const T* v, const T* o, const float* lse, float* dbias, const ActState* act) {
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

PlaceView ViewOf(const MaskRow& row) {
  PlaceView view = {{}, false, 0, row.first, row.step};
  if (row.operand == nullptr) return view;
  view.operand = IndicesOf(*row.operand);
  view.of_batch = row.operand->extent.rank() == 2;
  view.length = row.operand->extent.back();
  return view;
}

void SetMasks(const KernelContext& context, const TensorArg& q, const TensorArg& k, int first_mask,
              AttentionShape* s) {
  AttentionMasks masks = MasksOf(context.spec.attrs, first_mask);
  MaskRows rows = MaskRowsOf(masks, context.in, q, k);
  s->causal = masks.causal;
  s->window = masks.window;
  s->by_places = !masks.Positions() && !masks.Documents();
  s->simple = masks.Simple();
  s->query_positions = ViewOf(rows.query_positions);
  s->key_positions = ViewOf(rows.key_positions);
  s->query_documents = ViewOf(rows.query_documents);
  s->key_documents = ViewOf(rows.key_documents);
  if (masks.bias < 0) return;
  s->bias = context.in[masks.bias].as<float>();
  s->bias_strides = StridesOf(context.in[masks.bias]);
}

// `first`: the number of the operand q, which k and v follow; `first_mask`: of the first optional one.
AttentionShape ShapeOf(const KernelContext& context, int first, int first_mask) {
  const TensorArg &q = context.in[first], &k = context.in[first + 1], &v = context.in[first + 2];
  const Attrs& attrs = context.spec.attrs;
  AttentionShape s = {};
  SetMasks(context, q, k, first_mask, &s);
  s.batch = q.extent[0];
  s.queries = q.extent[1];
  s.heads = q.extent[2];
  s.width = static_cast<int>(q.extent[3]);
  s.keys = k.extent[1];
  s.key_heads = k.extent[2];
  s.group = s.key_heads == 0 ? 0 : s.heads / s.key_heads;
  s.value_width = static_cast<int>(v.extent[3]);
  s.shift = q.begin[1] + k.global[1] - q.global[1] - k.begin[1];
  double scale = attrs.Float("scale", 0), drop = attrs.Float("dropout", 0);
  if (scale == 0) scale = q.global[3] == 0 ? 1 : 1 / std::sqrt(static_cast<double>(q.global[3]));
  s.scale = static_cast<float>(scale);
  s.drop = static_cast<float>(drop);
  s.keep = static_cast<float>(1 / (1 - drop));
  s.random_key = RandomKey(context.seed, static_cast<uint64_t>(attrs.Int("key", 0)));
  s.batch_begin = q.begin[0];
  s.query_begin = q.begin[1];
  s.head_begin = q.begin[2];
  s.key_begin = k.begin[1];
  s.global_heads = q.global[2];
  s.global_queries = q.global[1];
  s.global_keys = k.global[1];
  s.pairs = s.batch * s.heads;
  return s;
}

FlashShape FlashShapeOf(const AttentionShape& s, DType dtype, bool backward) {
  FlashShape f = {.batch = s.batch,
                  .heads = s.heads,
                  .queries = s.queries,
                  .keys = s.keys,
                  .width = s.width,
                  .key_heads = s.key_heads,
                  .all_keys = s.keys,
                  .dtype = dtype,
                  .backward = backward,
                  .causal = s.causal,
                  .shift = s.shift,
                  .window = s.window < s.queries + s.shift ? s.window : 0,
                  .scale = s.scale};
  if (!s.by_places) {
    const bool of_batch = s.query_positions.of_batch || s.key_positions.of_batch ||
                          s.query_documents.of_batch || s.key_documents.of_batch;
    f.masks = of_batch ? s.batch : 1;
    // The mask has all that hides keys. What places hide is left out in whole tiles, too; positions are not
    // places.
    if (!f.causal || s.query_positions.operand.data != nullptr) f.causal = false, f.window = 0, f.shift = 0;
  }
  // Pieces of a sequence: later keys are left out.
  if (f.causal && f.shift >= 0) f.keys = std::min(f.keys, f.queries + f.shift);
  if (f.window == 0 && (!f.causal || f.shift >= f.keys - 1)) {  // every query sees every key
    f.causal = false;
    f.shift = 0;
  }
  return f;
}

// Whether four neighbours of every operand lie in one aligned piece.
bool Packed(std::span<const TensorArg> operands, const AttentionShape& s) {
  uintptr_t bits = 0;
  for (const TensorArg& x : operands) bits |= reinterpret_cast<uintptr_t>(x.data);
  return bits % 16 == 0 && s.width % 4 == 0 && s.value_width % 4 == 0;
}

// For results of `width` elements at each of `rows` positions of each pair of batch and head.
Grid GridOf(int64_t pairs, int64_t rows, int64_t width) {
  int64_t tiles = (rows + kTile - 1) / kTile, parts = std::max<int64_t>(1, (width + kOutput - 1) / kOutput);
  return {static_cast<unsigned>(tiles * pairs), static_cast<unsigned>(parts), kWarps * 32, 0};
}

template <typename F>
void ForType(DType dtype, F&& f) {
  if (dtype == DType::kBFloat16) {
    f(BFloat16{});
  } else if (dtype == DType::kFloat16) {
    f(Float16{});
  } else {
    f(float{});
  }
}

Status Zero(const TensorArg& x, const LaunchContext& launch) {
  if (x.elements() == 0) return Status();
  cudaError_t error = cudaMemsetAsync(x.data, 0, x.elements() * SizeOf(x.dtype), launch.stream);
  return error == cudaSuccess ? Status() : Status(Cat("cudaMemsetAsync: ", cudaGetErrorString(error)));
}

void LaunchForward(AttentionShape s, const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &q = context.in[0], &k = context.in[1], &v = context.in[2], &o = context.out[0];
  ForType(q.dtype, [&](auto t) {
    using T = decltype(t);
    cuda::Launch(AttentionKernel<T>, GridOf(s.pairs, s.queries, s.value_width), launch.stream, s, q.as<T>(),
                 k.as<T>(), v.as<T>(), o.as<T>(), context.out[1].as<float>(), launch.act);
  });
}

void LaunchBiasGrad(const AttentionShape& s, const KernelContext& context, const LaunchContext& launch) {
  const int64_t* stride = s.bias_strides.at;
  BiasTiles tiles = {stride[0] != 0 ? s.batch : 1, stride[1] != 0 ? s.heads : 1,
                     stride[2] != 0 ? (s.queries + kTile - 1) / kTile : 1,
                     stride[3] != 0 ? (s.keys + kTile - 1) / kTile : 1};
  Grid grid = {static_cast<unsigned>(tiles.batch * tiles.heads * tiles.rows * tiles.columns), 1, kWarps * 32,
               0};
  ForType(context.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    auto in = [&](int i) { return static_cast<const T*>(context.in[i].data); };
    cuda::Launch(BiasGradKernel<T>, grid, launch.stream, s, tiles, in(0), in(1), in(2), in(3), in(4),
                 context.in[5].as<float>(), context.out[3].as<float>(), launch.act);
  });
}

// The work space holds one number per query of the heads under way, whole groups of them.
Status LaunchBackward(AttentionShape s, const KernelContext& context, const LaunchContext& launch) {
  if (context.out.size() > 3) LaunchBiasGrad(s, context, launch);
  int64_t most = static_cast<int64_t>(launch.workspace_bytes / sizeof(float)) / s.queries, all = s.pairs;
  most = most / s.group * s.group;
  if (most == 0) return Status(Cat("axis s has ", s.queries, " queries, more than work space holds"));
  float* delta = static_cast<float*>(launch.workspace);
  const TensorArg &dout = context.in[0], &q = context.in[1], &k = context.in[2], &v = context.in[3];
  const float* lse = context.in[5].as<float>();
  ForType(q.dtype, [&](auto t) {
    using T = decltype(t);
    for (s.first_pair = 0; s.first_pair < all; s.first_pair += s.pairs) {
      s.pairs = all - s.first_pair < most ? all - s.first_pair : most;
      Grid rows{BlocksFor(s.pairs * s.queries, 256, launch.multiprocessors), 1, 256, 0};
      Grid of_keys = GridOf(s.pairs / s.group, s.keys, std::max(s.width, s.value_width));
      cuda::Launch(DeltaKernel<T>, rows, launch.stream, s, dout.as<T>(), context.in[4].as<T>(), delta);
      cuda::Launch(QueryGradKernel<T>, GridOf(s.pairs, s.queries, s.width), launch.stream, s, dout.as<T>(),
                   q.as<T>(), k.as<T>(), v.as<T>(), lse, delta, context.out[0].as<T>(), launch.act);
      cuda::Launch(KeyGradKernel<T>, of_keys, launch.stream, s, dout.as<T>(), q.as<T>(), k.as<T>(), v.as<T>(),
                   lse, delta, context.out[1].as<T>(), context.out[2].as<T>(), launch.act);
    }
  });
  return Status();
}

// 0 where a key is seen, else -infinity: [masks s t].
template <typename T>
OFL_KERNEL void MaskKernel(AttentionShape shape, int64_t masks, T* mask) {
  const int64_t count = masks * shape.queries * shape.keys;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t t = i % shape.keys, row = i / shape.keys;
    mask[i] = Store<T>(Seen(shape, row / shape.queries, row % shape.queries, t) ? 0.0f : -INFINITY);
  }
}

class AttentionKernels : public CudaKernel {
 public:
  AttentionKernels(const KernelSpec& spec, bool backward) : backward_(backward) {
    const std::vector<TensorArg>& in = spec.in;
    size_t heads = backward ? 5 : 3;  // operands [b s h d]; the statistics come after them
    for (size_t i = 1; i < heads; ++i) {
      if (in[i].dtype == in[0].dtype) continue;
      Fail(spec.name, " at ", spec.line.str(), ": operands are ", Name(in[0].dtype), " and ",
           Name(in[i].dtype), " but on cuda must be of one type");
    }
    scratch_ = CudaAttentionScratchOf(spec, backward);
    bool drops = spec.attrs.Float("dropout", 0) != 0;
    if (!drops && in[0].dtype != DType::kFloat32 && FlashAllowed()) flash_ = MakeFlash();
  }

  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    AttentionShape s = backward_ ? ShapeOf(context, 1, 6) : ShapeOf(context, 0, 3);
    bool nothing = s.pairs == 0 || s.queries == 0 || s.keys == 0 || s.width + s.value_width == 0;
    if (backward_ && nothing) {
      for (const TensorArg& x : context.out)
        if (Status status = Zero(x, launch); !status.ok()) return status;
      return Status();
    }
    if (s.pairs == 0) return Status();
    FlashShape shape = FlashShapeOf(s, context.in[0].dtype, backward_);
    bool plain = (s.by_places || (scratch_.mask > 0 && EachSeesItself(s))) && s.bias == nullptr &&
                 s.value_width == s.width;
    LaunchContext roomy = launch;
    if (scratch_.library > 0) {
      roomy.workspace = static_cast<char*>(context.scratch) + scratch_.mask;
      roomy.workspace_bytes = static_cast<size_t>(scratch_.library);
    }
    if (flash_ && plain && MayFlash(shape) && Packed(context.in, s) && Packed(context.out, s) &&
        flash_->Takes(shape, roomy)) {
      Count(LibraryUse::kAttention);
      if (backward_)
        if (Status status = ZeroUnseen(shape, context, launch); !status.ok()) return status;
      FlashOperands operands = OperandsOf(context);
      if (shape.masks > 0) {
        operands.mask = context.scratch;
        WriteMask(s, shape, context.scratch, launch);
      }
      return flash_->Launch(shape, operands, roomy);
    }
    s.packed = Packed(context.in, s);
    if (backward_) return LaunchBackward(s, context, launch);
    LaunchForward(s, context, launch);
    return Status();
  }

 private:
  // A row without a key would be NaN to the library. Where queries and keys have the same places and
  // documents there is none.
  static bool EachSeesItself(const AttentionShape& s) {
    return s.queries == s.keys && s.shift == 0 &&
           s.query_positions.operand.data == s.key_positions.operand.data &&
           s.query_documents.operand.data == s.key_documents.operand.data;
  }

  static void WriteMask(const AttentionShape& s, const FlashShape& shape, void* to,
                        const LaunchContext& launch) {
    const Grid grid{BlocksFor(shape.masks * s.queries * s.keys, 256, launch.multiprocessors), 1, 256, 0};
    ForType(shape.dtype, [&](auto t) {
      using T = decltype(t);
      cuda::Launch(MaskKernel<T>, grid, launch.stream, s, shape.masks, static_cast<T*>(to));
    });
  }

  // Gradients of keys and values that no query sees.
  static Status ZeroUnseen(const FlashShape& shape, const KernelContext& context,
                           const LaunchContext& launch) {
    const size_t row = static_cast<size_t>(shape.key_heads * shape.width) * SizeOf(shape.dtype),
                 unseen = static_cast<size_t>(shape.all_keys - shape.keys) * row;
    for (int64_t b = 0; unseen > 0 && b < shape.batch; ++b) {
      for (int i : {1, 2}) {
        char* const from =
            context.out[i].as<char>() + static_cast<size_t>(b * shape.all_keys + shape.keys) * row;
        const cudaError_t error = cudaMemsetAsync(from, 0, unseen, launch.stream);
        if (error != cudaSuccess) return Status(Cat("cudaMemsetAsync: ", cudaGetErrorString(error)));
      }
    }
    return Status();
  }

  FlashOperands OperandsOf(const KernelContext& c) const {
    FlashOperands p;
    if (!backward_) {
      p.q = c.in[0].data;
      p.k = c.in[1].data;
      p.v = c.in[2].data;
      p.o = c.out[0].data;
      p.lse = c.out[1].as<float>();
      return p;
    }
    p.dout = c.in[0].data;
    p.q = c.in[1].data;
    p.k = c.in[2].data;
    p.v = c.in[3].data;
    p.o = c.in[4].data;
    p.lse = c.in[5].as<float>();
    p.dq = c.out[0].data;
    p.dk = c.out[1].data;
    p.dv = c.out[2].data;
    return p;
  }

  bool backward_;
  CudaAttentionScratch scratch_;
  std::unique_ptr<Flash> flash_;
};

std::atomic<bool> flash_allowed{true};

}  // namespace

void SetFlash(bool allowed) { flash_allowed = allowed; }
bool FlashAllowed() { return flash_allowed; }

void AddAttentionKernels(KernelRegistry* registry) {
  const auto add = [registry](const char* name, bool gradient) {
    registry->Add(name, "cuda",
                  [=](const KernelSpec& spec) { return std::make_unique<AttentionKernels>(spec, gradient); });
  };
  add("attention", false);
  add("attention_grad", true);
}

}  // namespace oneflow_like::cuda
