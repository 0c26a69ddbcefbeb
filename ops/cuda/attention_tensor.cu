// attention of 16-bit operands on tensor cores, for all that the library does not take: any width of head,
// group of heads, mask, bias, dropout and piece. As attention.cu it keeps a running maximum and sum per query
// instead of a matrix of scores; probabilities are rounded to 16 bits as operands of the second product, sums
// are fp32. Tiles in which no query sees a key are left out: by places, by the ranges of positions and
// documents of every 32 of them, and by biases of minus infinity.
#include <algorithm>

#include "ops/cuda/attention_scores.h"

namespace oneflow_like::cuda {
namespace {

// Softmax of the warp's scores that have come so far, of the lane's two rows; a row lies in four lanes. The
// total is the lane's part. `shift`: the greatest score so far, in units of log2; 0 before there is any.
struct RunningSoftmax {
  float greatest[2] = {-INFINITY, -INFINITY}, shift[2] = {}, total[2] = {};

  // Scores, of `unit` (ScoreUnit), become probabilities relative to the greatest one; `rescale` is for what
  // was added up before. Returns whether it is 1 for all rows of the warp.
  template <int C>
  OFL_DEVICE bool Add(float unit, Sums<C>* scores, float (&rescale)[2]) {
    OFL_UNROLL
    for (int half = 0; half < 2; ++half) {
      float top = greatest[half];
      OFL_UNROLL
      for (int n = 0; n < C / 8; ++n) {
        const float* const x = scores->Of(n).at + 2 * half;
        top = fmaxf(top, fmaxf(x[0], x[1]));
      }
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
      const float before = greatest[half] * unit, now = top * unit;
      shift[half] = now == -INFINITY ? 0.0f : now;  // a query that has seen no key yet
      rescale[half] = PowerOfTwo(before - shift[half]);
      greatest[half] = top;
      float sum = 0;  // a NaN stays here, though it is no maximum
      OFL_UNROLL
      for (int n = 0; n < C / 8; ++n) {
        float* const x = scores->Of(n).at + 2 * half;
        x[0] = PowerOfTwo(x[0] * unit - shift[half]);
        x[1] = PowerOfTwo(x[1] * unit - shift[half]);
        sum += x[0] + x[1];
      }
      total[half] = total[half] * rescale[half] + sum;
    }
    return __all_sync(0xFFFFFFFFu, rescale[0] == 1 && rescale[1] == 1) != 0;
  }
  OFL_DEVICE void Finish() {
    OFL_UNROLL
    for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(0xFFFFFFFFu, total[half], 1);
      total[half] += __shfl_xor_sync(0xFFFFFFFFu, total[half], 2);
    }
  }
};

// Keys and values of a tile are copied while the tile before is worked on, unless heads are wide.
template <typename T, int W, int C, bool kWide>
OFL_KERNEL void __launch_bounds__(kTensorThreads, kTensorBlocks<W>)
    TensorAttentionKernel(AttentionShape shape, TileKnowledge known, const T* q, const T* k, const T* v, T* o,
                          float* lse, const ActState* act) {
  using Tile = SharedTile<T, C, W>;
  OFL_SHARED ColumnData<C> columns[2];
  OFL_SHARED RowPlaces places;
  T* const room = DynamicShared<T>();
  const auto tiles = static_cast<unsigned>((shape.queries + kTensorRows - 1) / kTensorRows);
  const int64_t pair = shape.first_pair + blockIdx.x / tiles, b = pair / shape.heads;
  const int h = static_cast<int>(pair % shape.heads);
  const int first =
      static_cast<int>(tiles - 1 - blockIdx.x % tiles) * kTensorRows;  // causal: the longest first
  const int part = static_cast<int>(blockIdx.y) * W;
  const int row = first + WarpOfThread() * 16;
  const HeadRows<T> rows = QueryView(shape, b, h, shape.width).Rows(q, first, kTensorRows);
  const HeadView keys = KeyView(shape, b, h, shape.width), values = KeyView(shape, b, h, shape.value_width);
  const auto keys_at = [&](int turn) { return Tile{room + turn * 2 * Tile::kElements}; };
  const auto values_at = [&](int turn) { return Tile{room + (turn * 2 + 1) * Tile::kElements}; };
  const SharedTile<T, kTensorRows, W> own{room + 4 * Tile::kElements};  // queries, then results
  const auto stage = [&](int tile, int turn) {
    StagePlaces<false>(shape, b, tile * C, C, columns[turn].place, columns[turn].document);
    if (kWide) return;
    Stage(keys.Rows(k, tile * C, C), 0, keys_at(turn));
    Stage(values.Rows(v, tile * C, C), 0, values_at(turn));
  };
  if (!kWide) Stage(rows, 0, own);
  StagePlaces<true>(shape, b, first, kTensorRows, places.place, places.document);
  TileWalk<true, C> walk(shape, known, b, first);
  int tile = walk.From(walk.begin, h);
  if (tile < walk.end) stage(tile, 0);
  EndCopies();
  WaitForCopies<0>();
  __syncthreads();
  LeftFragment left[W / 16];
  OFL_UNROLL
  for (int i = 0; i < W / 16 && !kWide; ++i) left[i] = LoadLeft(own, WarpOfThread() * 16, 16 * i);
  const float unit = ScoreUnit(shape);
  RunningSoftmax softmax;
  Sums<W> out = {};
  for (int turn = 0; tile < walk.end; turn ^= 1) {
    const int column = tile * C;
    const bool whole = walk.Whole(tile);
    tile = walk.From(tile + 1, h);
    if (tile < walk.end) stage(tile, turn ^ 1);
    EndCopies();
    Sums<C> bias, scores = {};
    KeptScores<true, C> kept;
    if (shape.bias != nullptr) LoadBias<true>(shape, b, h, row, column, &bias);
    if (shape.drop > 0) kept.Load(known, pair - shape.first_pair, row, column);
    if constexpr (kWide) {
      AddWideDots(rows, keys.Rows(k, column, C), keys_at(0), &scores);
      StageNow(values.Rows(v, column, C), part, values_at(0));
    } else {
      AddDots([&](int i) { return left[i]; }, keys_at(turn), &scores);
    }
    FinishScores<true>(shape, row, column, places, columns[turn], whole, bias, &scores);
    float rescale[2];
    if (!softmax.Add(unit, &scores, rescale)) {
      OFL_UNROLL
      for (int n = 0; n < W / 8; ++n) {
        OFL_UNROLL
        for (int i = 0; i < 4; ++i) out.Of(n).at[i] *= rescale[i / 2];
      }
    }
    LeftFragment weights[C / 16];
    RoundSums<T, C>(scores, weights);
    if (shape.drop > 0) {
      kept.Arrive(row);
      kept.template Apply<T>(weights);
    }
    AddWeighted<T, C, W>(weights, values_at(kWide ? 0 : turn), &out);
    WaitForCopies<0>();
    __syncthreads();
  }
  softmax.Finish();
  float factor[2];
  for (int half = 0; half < 2; ++half)
    factor[half] = softmax.total[half] == 0 ? 0.0f : shape.keep / softmax.total[half];
  StoreRows(out, factor, QueryView(shape, b, h, shape.value_width), first, part, own, o);
  if (threadIdx.x % 4 != 0 || part != 0) return;
  for (int half = 0; half < 2; ++half) {
    const int64_t s = first + RowOfLane() + 8 * half;
    if (s >= shape.queries) continue;
    const float total = softmax.total[half];
    lse[pair * shape.queries + s] = total == 0 ? -INFINITY : (softmax.shift[half] + log2f(total)) * kLn2;
  }
}

}  // namespace

Status LaunchTensorAttention(const AttentionShape& shape, const KernelContext& context,
                             const LaunchContext& launch) {
  const TensorArg &q = context.in[0], &k = context.in[1], &v = context.in[2], &o = context.out[0];
  LaunchParts(shape, launch.workspace, launch, [&](const AttentionShape& part, const TileKnowledge& known) {
    ForTensorInstance(q.dtype, std::max(shape.width, shape.value_width), [&](auto t, auto width, auto wide) {
      using T = decltype(t);
      constexpr int kColumns = 64;
      const Grid grid = {
          static_cast<unsigned>(TensorTiles(part.queries) * part.pairs), TensorParts(part.value_width, width),
          kTensorThreads,
          4 * SharedTile<T, kColumns, width>::kBytes + SharedTile<T, kTensorRows, width>::kBytes};
      cuda::Launch(TensorAttentionKernel<T, width, kColumns, wide>, grid, launch.stream, part, known,
                   q.as<T>(), k.as<T>(), v.as<T>(), o.as<T>(), context.out[1].as<float>(), launch.act);
    });
  });
  return Status();
}

}  // namespace oneflow_like::cuda
