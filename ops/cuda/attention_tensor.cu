// attention of 16-bit operands on tensor cores, for all that the library does not take: any width of head,
// group of heads, mask, bias, dropout and piece. As attention.cu it keeps a running maximum and sum per query
// instead of a matrix of scores; probabilities are rounded to 16 bits as operands of the second product, sums
// are fp32. Tiles in which no query sees a key are left out: by places, by the ranges of positions and
// documents of every 32 of them, and by biases of minus infinity.
#include <algorithm>

#include "ops/cuda/attention_scores.h"

namespace oneflow_like::cuda {
namespace {

// A warp for each range, of queries and then of keys.
OFL_KERNEL void PlaceRangesKernel(AttentionShape shape, PlaceRange* ranges) {
  const int64_t of_queries = RangesOf(shape.queries), of_keys = RangesOf(shape.keys);
  const int64_t i = int64_t{blockIdx.x} * kTensorWarps + WarpOfThread();
  if (i >= shape.batch * (of_queries + of_keys)) return;  // the same for all lanes
  const bool queries = i < shape.batch * of_queries;
  const int64_t j = queries ? i : i - shape.batch * of_queries, each = queries ? of_queries : of_keys;
  const int64_t b = j / each, length = queries ? shape.queries : shape.keys;
  int64_t at = j % each * kRangedRows + threadIdx.x % 32;
  at = at < length ? at : length - 1;
  const int64_t place = (queries ? shape.query_positions : shape.key_positions).At(b, at),
                document = (queries ? shape.query_documents : shape.key_documents).At(b, at);
  PlaceRange range = {place, place, document, document};
  for (int lanes = 16; lanes > 0; lanes >>= 1) {
    const auto other = [&](int64_t x) { return __shfl_xor_sync(0xFFFFFFFFu, x, lanes); };
    const PlaceRange theirs = {other(range.low), other(range.high), other(range.low_document),
                               other(range.high_document)};
    range = JoinRanges(range, theirs);
  }
  if (threadIdx.x % 32 == 0) ranges[i] = range;
}

// A warp for each byte: whether any of 32 by 32 elements of the bias is not minus infinity.
OFL_KERNEL void BiasedTilesKernel(AttentionShape shape, int64_t tiles, unsigned char* biased) {
  const int64_t i = int64_t{blockIdx.x} * kTensorWarps + WarpOfThread();
  if (i >= tiles) return;  // the same for all lanes
  const int64_t* const stride = shape.bias_strides.at;
  const int64_t columns = stride[3] != 0 ? RangesOf(shape.keys) : 1,
                rows = stride[2] != 0 ? RangesOf(shape.queries) : 1, heads = stride[1] != 0 ? shape.heads : 1;
  const int64_t first_s = i / columns % rows * kRangedRows, t = i % columns * kRangedRows + threadIdx.x % 32;
  const float* const from = shape.bias + shape.bias_strides.Offset(i / columns / rows / heads,
                                                                   i / columns / rows % heads, first_s, t);
  const int64_t left = stride[2] != 0 ? shape.queries - first_s : 1;
  bool any = false;
  for (int s = 0; s < kRangedRows && s < left && t < shape.keys; ++s)
    any = any || from[s * stride[2]] != -INFINITY;
  any = __any_sync(0xFFFFFFFFu, any);
  if (threadIdx.x % 32 == 0) biased[i] = any ? 1 : 0;
}

// Softmax of the warp's scores that have come so far, of the lane's two rows; a row lies in four lanes. The
// total is the lane's part.
struct RunningSoftmax {
  float greatest[2] = {-INFINITY, -INFINITY}, total[2] = {};

  // Scores become probabilities relative to the greatest score; `rescale` is for what was added up before.
  template <int C>
  OFL_DEVICE void Add(Sums<C>* scores, float (&rescale)[2]) {
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
      const float safe = top == -INFINITY ? 0.0f : top;  // a query that has seen no key yet
      rescale[half] = PowerOfTwo(greatest[half] - safe);
      greatest[half] = top;
      float sum = 0;  // a NaN stays here, though it is no maximum
      OFL_UNROLL
      for (int n = 0; n < C / 8; ++n) {
        float* const x = scores->Of(n).at + 2 * half;
        x[0] = PowerOfTwo(x[0] - safe);
        x[1] = PowerOfTwo(x[1] - safe);
        sum += x[0] + x[1];
      }
      total[half] = total[half] * rescale[half] + sum;
    }
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
  const int64_t tiles = (shape.queries + kTensorRows - 1) / kTensorRows;
  const int64_t pair = blockIdx.x / tiles, b = pair / shape.heads, h = pair % shape.heads;
  const int64_t first = (tiles - 1 - blockIdx.x % tiles) * kTensorRows;  // causal: the longest first
  const int part = static_cast<int>(blockIdx.y) * W;
  const int64_t row = first + WarpOfThread() * 16, step = act->step;
  const HeadRows<T> rows = QueryView(shape, b, h, shape.width).Rows(q, first, kTensorRows);
  const HeadView keys = KeyView(shape, b, h, shape.width), values = KeyView(shape, b, h, shape.value_width);
  StagePlaces<true>(shape, b, first, kTensorRows, places.place, places.document);
  const TileWalk<true, C> walk(shape, known, b, first);
  LeftFragment left[W / 16];
  if (!kWide) LoadRows<T, W>(rows, 0, left);
  const auto keys_at = [&](int turn) { return Tile{room + turn * 2 * Tile::kElements}; };
  const auto values_at = [&](int turn) { return Tile{room + (turn * 2 + 1) * Tile::kElements}; };
  const auto stage = [&](int64_t tile, int turn) {
    StagePlaces<false>(shape, b, tile * C, C, columns[turn].place, columns[turn].document);
    if (kWide) return;
    Stage(keys.Rows(k, tile * C, C), 0, keys_at(turn));
    Stage(values.Rows(v, tile * C, C), 0, values_at(turn));
  };
  RunningSoftmax softmax;
  Sums<W> out = {};
  int64_t tile = walk.From(walk.begin, h);
  if (tile < walk.end) stage(tile, 0);
  EndCopies();
  for (int turn = 0; tile < walk.end; turn ^= 1) {
    const int64_t next = walk.From(tile + 1, h), column = tile * C;
    if (next < walk.end) stage(next, turn ^ 1);
    EndCopies();
    WaitForCopies<1>();
    __syncthreads();
    Sums<C> scores = {};
    if constexpr (kWide) {
      AddWideDots(rows, keys.Rows(k, column, C), keys_at(0), &scores);
      StageNow(values.Rows(v, column, C), part, values_at(0));
    } else {
      AddDots([&](int i) { return left[i]; }, keys_at(turn), &scores);
    }
    FinishScores<true>(shape, b, h, row, column, places, columns[turn], &scores);
    float rescale[2];
    softmax.Add(&scores, rescale);
    OFL_UNROLL
    for (int n = 0; n < W / 8; ++n) {
      OFL_UNROLL
      for (int i = 0; i < 4; ++i) out.Of(n).at[i] *= rescale[i / 2];
    }
    if (shape.drop > 0) {
      const LaneBits kept = KeptOf<true, C>(shape, step, b, h, row, column);
      OFL_UNROLL
      for (int n = 0; n < C / 8; ++n) {
        OFL_UNROLL
        for (int i = 0; i < 4; ++i)
          if (!kept.At(n, i)) scores.Of(n).at[i] = 0;
      }
    }
    AddWeighted(scores, values_at(kWide ? 0 : turn), &out);
    __syncthreads();
    tile = next;
  }
  softmax.Finish();
  float factor[2];
  for (int half = 0; half < 2; ++half)
    factor[half] = softmax.total[half] == 0 ? 0.0f : shape.keep / softmax.total[half];
  StoreRows(out, factor, QueryView(shape, b, h, shape.value_width), first, part, o);
  if (threadIdx.x % 4 != 0 || part != 0) return;
  for (int half = 0; half < 2; ++half) {
    const int64_t s = first + RowOfLane() + 8 * half;
    if (s >= shape.queries) continue;
    const float total = softmax.total[half];
    lse[pair * shape.queries + s] = total == 0 ? -INFINITY : (softmax.greatest[half] + log2f(total)) * kLn2;
  }
}

}  // namespace

TileKnowledge LaunchTileKnowledge(const AttentionShape& shape, void* room, const LaunchContext& launch) {
  TileKnowledge known;
  const auto grid_of = [](int64_t warps) {
    return Grid{static_cast<unsigned>((warps + kTensorWarps - 1) / kTensorWarps), 1, kTensorThreads, 0};
  };
  const int64_t ranges = shape.batch * (RangesOf(shape.queries) + RangesOf(shape.keys));
  auto* const of_places = static_cast<PlaceRange*>(room);
  if (!shape.by_places) {
    known.ranges = of_places;
    cuda::Launch(PlaceRangesKernel, grid_of(ranges), launch.stream, shape, of_places);
  }
  // Reading a bias that no heads and no sequences share once more takes as long as what it could save.
  const int64_t* const stride = shape.bias_strides.at;
  const bool shared =
      (stride[0] == 0 && shape.batch > 1) || (stride[1] == 0 && shape.heads > 1) || stride[2] == 0;
  if (shape.bias == nullptr || !shared) return known;
  auto* const biased = reinterpret_cast<unsigned char*>(of_places + ranges);
  const int64_t tiles = (stride[0] != 0 ? shape.batch : 1) * (stride[1] != 0 ? shape.heads : 1) *
                        (stride[2] != 0 ? RangesOf(shape.queries) : 1) *
                        (stride[3] != 0 ? RangesOf(shape.keys) : 1);
  known.biased = biased;
  cuda::Launch(BiasedTilesKernel, grid_of(tiles), launch.stream, shape, tiles, biased);
  return known;
}

Status LaunchTensorAttention(const AttentionShape& shape, const KernelContext& context,
                             const LaunchContext& launch) {
  const TensorArg &q = context.in[0], &k = context.in[1], &v = context.in[2], &o = context.out[0];
  const TileKnowledge known = LaunchTileKnowledge(shape, launch.workspace, launch);
  ForTensorInstance(q.dtype, std::max(shape.width, shape.value_width), [&](auto t, auto width, auto wide) {
    using T = decltype(t);
    constexpr int kColumns = 64;
    const Grid grid = {static_cast<unsigned>(TensorTiles(shape.queries) * shape.pairs),
                       TensorParts(shape.value_width, width), kTensorThreads,
                       4 * SharedTile<T, kColumns, width>::kBytes};
    cuda::Launch(TensorAttentionKernel<T, width, kColumns, wide>, grid, launch.stream, shape, known,
                 q.as<T>(), k.as<T>(), v.as<T>(), o.as<T>(), context.out[1].as<float>(), launch.act);
  });
  return Status();
}

}  // namespace oneflow_like::cuda
