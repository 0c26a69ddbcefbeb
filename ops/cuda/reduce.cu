// Reductions over any axes: neighbouring axes that are kept, or reduced, merge. Floating operands are read
// once, 16 bytes at a time where they are aligned, and folded in fp32: along rows by a warp or a block, down
// columns by tiles of 32 packs, four of whose rows each thread loads at a time. Few results of many elements
// are folded in parts, whose number follows from the shape alone, and the parts (in the work space) in a
// second launch: no atomics, the same bits on every device. Integers, which models seldom reduce, take one
// thread per result.
//
// Floor, bytes: x once. Joining 256 parts of 768 columns by a thread for each column was a chain of 256
// loads; now eight warps share the parts, and each has eight loads on their way.
#include <algorithm>
#include <array>

#include "ops/cuda/kernel.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/reduce.h"
#include "ops/cuda/typed.h"
#include "ops/cuda/walk.h"

namespace oneflow_like::cuda {
namespace {

enum class Fold : int32_t { kSum, kMax, kMin };

// Take folds an element into a partial result, Join two partial results.
struct SumOf {
  OFL_DEVICE static float Identity() { return 0; }
  OFL_DEVICE static float Take(float a, float x) { return a + x; }
  OFL_DEVICE static float Join(float a, float b) { return a + b; }
};
struct MaxOf {
  OFL_DEVICE static float Identity() { return -INFINITY; }
  OFL_DEVICE static float Take(float a, float x) { return x > a || x != x ? x : a; }  // a NaN wins
  OFL_DEVICE static float Join(float a, float b) { return Take(a, b); }
};
struct MinOf {
  OFL_DEVICE static float Identity() { return INFINITY; }
  OFL_DEVICE static float Take(float a, float x) { return x < a || x != x ? x : a; }
  OFL_DEVICE static float Join(float a, float b) { return Take(a, b); }
};

// What is done with a finished total: y[i] = total / divisor (0 when the divisor is).
struct Finish {
  void* y;
  DType dtype;
  float divisor;
};
OFL_DEVICE void Put(const Finish& f, int64_t i, float total) {
  float value = f.divisor == 1.0f ? total : f.divisor == 0.0f ? 0.0f : total / f.divisor;
  StoreReal(f.y, f.dtype, i, value);
}

struct Params {
  Extents kept, reduced;  // at least one axis each
  Strides kept_strides, reduced_strides;
  int64_t results, terms;  // their elements
  int64_t part;            // terms of one part
  int64_t parts;
  const void* x;
  DType x_type;
  bool run;      // the terms of a result are contiguous
  bool aligned;  // and may be read in packs, or columns may
  Finish finish;
  float* partial;  // where parts go; null: straight to the result
};

template <typename F>
OFL_DEVICE float FoldWarp(float x) {
  for (int lanes = 16; lanes > 0; lanes >>= 1) x = F::Join(x, __shfl_xor_sync(0xFFFFFFFFu, x, lanes));
  return x;
}

// Terms [begin, end) of the result whose first term is at `base`, by `threads` threads of which this is
// `thread`.
template <typename T, typename F>
OFL_DEVICE float FoldTerms(const Params& p, int64_t base, int64_t begin, int64_t end, int thread,
                           int threads) {
  const T* x = static_cast<const T*>(p.x) + base;
  constexpr int kWidth = 16 / sizeof(T);
  float total = F::Identity();
  if (p.aligned) {
    float lane[kWidth];
    OFL_UNROLL
    for (int e = 0; e < kWidth; ++e) lane[e] = F::Identity();
    int64_t i = begin + int64_t{thread} * kWidth;
    for (; i + kWidth <= end; i += int64_t{threads} * kWidth) {
      Pack<T, kWidth> pack = *reinterpret_cast<const Pack<T, kWidth>*>(x + i);
      OFL_UNROLL
      for (int e = 0; e < kWidth; ++e) lane[e] = F::Take(lane[e], Load(pack.at[e]));
    }
    for (; i < end; ++i) total = F::Take(total, Load(x[i]));
    OFL_UNROLL
    for (int e = 0; e < kWidth; ++e) total = F::Join(total, lane[e]);
    return total;
  }
  for (int64_t i = begin + thread; i < end; i += threads) {
    int64_t at = p.run ? i : OffsetAt(PlaceOf(p.reduced, i), p.reduced, p.reduced_strides);
    total = F::Take(total, Load(x[at]));
  }
  return total;
}

// One warp for each result.
template <typename T, typename F>
OFL_KERNEL void FoldByWarp(Params p) {
  int warps = static_cast<int>(blockDim.x / 32), warp = static_cast<int>(threadIdx.x / 32);
  for (int64_t first = int64_t{blockIdx.x} * warps; first < p.results; first += int64_t{gridDim.x} * warps) {
    int64_t i = first + warp;
    if (i >= p.results) continue;  // a whole warp
    int64_t base = OffsetAt(PlaceOf(p.kept, i), p.kept, p.kept_strides);
    float total = FoldWarp<F>(FoldTerms<T, F>(p, base, 0, p.terms, static_cast<int>(threadIdx.x % 32), 32));
    if (threadIdx.x % 32 == 0) Put(p.finish, i, total);
  }
}

// One block for each part of each result.
template <typename T, typename F>
OFL_KERNEL void FoldByBlock(Params p) {
  OFL_SHARED float room[32];
  int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x / 32);
  for (int64_t item = blockIdx.x; item < p.results * p.parts; item += gridDim.x) {
    int64_t part, i = Divide(item, p.parts, &part);
    int64_t base = OffsetAt(PlaceOf(p.kept, i), p.kept, p.kept_strides);
    int64_t begin = part * p.part, end = begin + p.part < p.terms ? begin + p.part : p.terms;
    float total = FoldWarp<F>(FoldTerms<T, F>(p, base, begin, end, thread, static_cast<int>(blockDim.x)));
    if (thread % 32 == 0) room[thread / 32] = total;
    __syncthreads();
    if (thread < 32) {
      total = FoldWarp<F>(thread < warps ? room[thread] : F::Identity());
      if (thread == 0) {
        if (p.partial != nullptr) {
          p.partial[item] = total;
        } else {
          Put(p.finish, i, total);
        }
      }
    }
    __syncthreads();
  }
}

constexpr int kColumnThreads = 256;
constexpr int kRowsAtOnce = 4;  // loads of a thread on their way

struct ColumnParams {
  Params p;         // kept: the axes before the columns; its results count those
  int64_t columns;  // contiguous
  int64_t tiles;    // of lanes * width columns
  int lanes;        // threads side by side, a power of two up to 32; the others take further rows
};

// Rows first, first + rows ... before `end`, of kWidth columns, in this order.
template <typename T, typename F, int kWidth, typename Offset>
OFL_DEVICE void FoldRowsAt(const T* x, int64_t first, int64_t end, int rows, float (&total)[kWidth],
                           Offset offset) {
  using Columns = Pack<T, kWidth>;
  const auto load = [&](int64_t r) { return *reinterpret_cast<const Columns*>(x + offset(r)); };
  const auto take = [&](const Columns& pack) {
    OFL_UNROLL
    for (int e = 0; e < kWidth; ++e) total[e] = F::Take(total[e], Load(pack.at[e]));
  };
  int64_t r = first;
  for (; r + (kRowsAtOnce - 1) * rows < end; r += kRowsAtOnce * rows) {
    Columns packs[kRowsAtOnce];
    OFL_UNROLL
    for (int i = 0; i < kRowsAtOnce; ++i) packs[i] = load(r + i * rows);
    OFL_UNROLL
    for (int i = 0; i < kRowsAtOnce; ++i) take(packs[i]);
  }
  for (; r < end; r += rows) take(load(r));
}

// A tile of columns for each kept index and part; kWidth columns to a thread.
template <typename T, typename F, int kWidth>
OFL_DEVICE void FoldTile(const ColumnParams& c, int64_t item, float* room) {
  const Params& p = c.p;
  int lane = static_cast<int>(threadIdx.x) % c.lanes, row = static_cast<int>(threadIdx.x) / c.lanes;
  int rows = kColumnThreads / c.lanes;
  int64_t tile, part, rest = Divide(item, c.tiles, &tile), outer = Divide(rest, p.parts, &part);
  int64_t column = (tile * c.lanes + lane) * kWidth;
  int64_t end = (part + 1) * p.part < p.terms ? (part + 1) * p.part : p.terms;
  float total[kWidth];
  OFL_UNROLL
  for (int e = 0; e < kWidth; ++e) total[e] = F::Identity();
  if (column < c.columns) {
    const T* x =
        static_cast<const T*>(p.x) + OffsetAt(PlaceOf(p.kept, outer), p.kept, p.kept_strides) + column;
    const int64_t first = part * p.part + row;
    if (p.reduced.rank == 1) {
      FoldRowsAt<T, F, kWidth>(x, first, end, rows, total,
                               [stride = p.reduced_strides.at[0]](int64_t r) { return r * stride; });
    } else {
      FoldRowsAt<T, F, kWidth>(x, first, end, rows, total, [&p](int64_t r) {
        return OffsetAt(PlaceOf(p.reduced, r), p.reduced, p.reduced_strides);
      });
    }
  }
  OFL_UNROLL
  for (int e = 0; e < kWidth; ++e) room[e * kColumnThreads + static_cast<int>(threadIdx.x)] = total[e];
  __syncthreads();
  for (int half = rows / 2; half > 0; half /= 2) {
    if (row < half) {
      OFL_UNROLL
      for (int e = 0; e < kWidth; ++e) {
        float* mine = room + e * kColumnThreads + static_cast<int>(threadIdx.x);
        *mine = F::Join(*mine, mine[half * c.lanes]);
      }
    }
    __syncthreads();
  }
  if (row == 0 && column < c.columns) {
    OFL_UNROLL
    for (int e = 0; e < kWidth; ++e) {
      float value = room[e * kColumnThreads + lane];
      int64_t i = outer * c.columns + column + e;
      if (p.partial != nullptr) {
        p.partial[part * p.results * c.columns + i] = value;
      } else {
        Put(p.finish, i, value);
      }
    }
  }
  __syncthreads();
}

template <typename T, typename F>
OFL_KERNEL void FoldColumns(ColumnParams c) {
  constexpr int kWidth = 16 / sizeof(T);
  OFL_SHARED float room[kColumnThreads * kWidth];
  for (int64_t item = blockIdx.x; item < c.p.results * c.p.parts * c.tiles; item += gridDim.x) {
    if (c.p.aligned) {
      FoldTile<T, F, kWidth>(c, item, room);
    } else {
      FoldTile<T, F, 1>(c, item, room);
    }
  }
}

// Parts of `results` totals, part k of total i at partial[i * parts + k]: a warp for each total.
template <typename F>
OFL_KERNEL void JoinRowParts(const float* partial, int64_t results, int64_t parts, Finish finish) {
  int64_t self = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, all = int64_t{gridDim.x} * blockDim.x;
  int lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t i = self / 32; i < results; i += all / 32) {
    float total = F::Identity();
    for (int64_t k = lane; k < parts; k += 32) total = F::Join(total, partial[i * parts + k]);
    total = FoldWarp<F>(total);
    if (lane == 0) Put(finish, i, total);
  }
}

// The same at partial[k * results + i]: a block for 32 neighbours, whose warps share the parts.
constexpr int kJoinWarps = 8;
template <typename F>
OFL_KERNEL void JoinColumnParts(const float* partial, int64_t results, int64_t parts, Finish finish) {
  constexpr int kAtOnce = 8;  // loads of a thread on their way
  OFL_SHARED float room[kJoinWarps][32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  for (int64_t first = int64_t{blockIdx.x} * 32; first < results; first += int64_t{gridDim.x} * 32) {
    const int64_t i = first + lane;
    float total = F::Identity();
    for (int64_t k = warp; k < parts && i < results; k += kJoinWarps * kAtOnce) {
      float own[kAtOnce];
      OFL_UNROLL
      for (int j = 0; j < kAtOnce; ++j)
        own[j] = k + j * kJoinWarps < parts ? partial[(k + j * kJoinWarps) * results + i] : F::Identity();
      OFL_UNROLL
      for (int j = 0; j < kAtOnce; ++j) total = F::Join(total, own[j]);
    }
    room[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && i < results) {
      for (int w = 1; w < kJoinWarps; ++w) total = F::Join(total, room[w][lane]);
      Put(finish, i, total);
    }
    __syncthreads();
  }
}

// Integers, and reductions over nothing.
OFL_KERNEL void FoldSlowly(Params p, Fold fold, int64_t identity) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.results; i += step) {
    if (IsFloat(p.x_type)) {  // only over nothing
      float nothing = fold == Fold::kMax ? -INFINITY : fold == Fold::kMin ? INFINITY : 0.0f;
      Put(p.finish, i, nothing);
      continue;
    }
    int64_t base = OffsetAt(PlaceOf(p.kept, i), p.kept, p.kept_strides), total = identity;
    for (int64_t r = 0; r < p.terms; ++r) {
      int64_t x =
          LoadInteger(p.x, p.x_type, base + OffsetAt(PlaceOf(p.reduced, r), p.reduced, p.reduced_strides));
      if (fold == Fold::kMax) {
        total = x > total ? x : total;
      } else if (fold == Fold::kMin) {
        total = x < total ? x : total;
      } else {
        total = static_cast<int64_t>(static_cast<uint64_t>(total) + static_cast<uint64_t>(x));
      }
    }
    StoreInteger(p.finish.y, p.finish.dtype, i, total);
  }
}

// --- Launching -----------------------------------------------------------------------------------

using Mask = std::array<bool, Dims::kMaxRank>;

// x with neighbouring axes of one kind merged, split into the kept and the reduced ones.
struct Groups {
  Extents kept, reduced;
  Strides kept_strides{}, reduced_strides{};
  bool columns = false;  // the last axis is kept
};

Groups GroupsOf(const Dims& x, const Mask& mask) {
  Groups g;
  Strides strides = StridesOf(x);
  int before = -1;  // kind of the axis before: 0 kept, 1 reduced
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (x[axis] == 1) continue;
    Extents& extents = mask[axis] ? g.reduced : g.kept;
    Strides& own = mask[axis] ? g.reduced_strides : g.kept_strides;
    if (before == static_cast<int>(mask[axis])) {
      extents.at[extents.rank - 1] *= x[axis];
    } else {
      extents.at[extents.rank++] = x[axis];
    }
    own.at[extents.rank - 1] = strides.at[axis];
    before = mask[axis];
  }
  g.columns = before == 0;
  for (Extents* extents : {&g.kept, &g.reduced}) {
    if (extents->rank == 0) extents->at[extents->rank++] = 1;
  }
  return g;
}

// Whether rows at all these strides begin aligned to packs of T.
template <typename T>
bool PacksFit(const void* x, const Extents& extents, const Strides& strides) {
  constexpr int64_t kWidth = 16 / sizeof(T);
  bool fits = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  for (int axis = 0; axis < extents.rank; ++axis)
    fits = fits && (extents.at[axis] == 1 || strides.at[axis] % kWidth == 0);
  return fits;
}

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Cuts the terms into parts when there are too few results to fill a device. `unit`: terms that stay
// together.
void CutTerms(Params* p, int64_t items, int64_t least, int64_t unit, const LaunchContext& launch) {
  int64_t wanted = std::max<int64_t>(
      1, std::min(CeilDivide(1024, std::max<int64_t>(1, items)), CeilDivide(p->terms, least)));
  p->part = CeilDivide(CeilDivide(p->terms, wanted), unit) * unit;
  p->parts = CeilDivide(p->terms, p->part);
  if (p->parts > 1) p->partial = static_cast<float*>(launch.workspace);
}

template <typename T, typename F>
void LaunchRows(Params p, const LaunchContext& launch) {
  p.run = p.reduced.rank == 1 && (p.reduced_strides.at[0] == 1 || p.terms == 1);
  p.aligned = p.run && PacksFit<T>(p.x, p.kept, p.kept_strides);
  if (p.terms <= 1024 && p.results >= 64) {
    Grid grid{BlocksFor(p.results, 8, launch.multiprocessors), 1, 256, 0};
    return Launch(FoldByWarp<T, F>, grid, launch.stream, p);
  }
  CutTerms(&p, p.results, 8192, 64, launch);
  Grid grid{BlocksFor(p.results * p.parts, 1, launch.multiprocessors), 1, 256, 0};
  Launch(FoldByBlock<T, F>, grid, launch.stream, p);
  if (p.partial == nullptr) return;
  Grid join{BlocksFor(p.results * 32, 128, launch.multiprocessors), 1, 128, 0};
  Launch(JoinRowParts<F>, join, launch.stream, p.partial, p.results, p.parts, p.finish);
}

template <typename T, typename F>
void LaunchColumns(Params p, const LaunchContext& launch) {
  ColumnParams c{};
  int last = --p.kept.rank;
  c.columns = p.kept.at[last];
  if (p.kept.rank == 0) {
    p.kept.at[p.kept.rank++] = 1;
    p.kept_strides.at[0] = 0;
  }
  p.results /= c.columns;
  constexpr int64_t kWidth = 16 / sizeof(T);
  p.aligned = c.columns % kWidth == 0 && PacksFit<T>(p.x, p.kept, p.kept_strides) &&
              PacksFit<T>(p.x, p.reduced, p.reduced_strides);
  int64_t width = p.aligned ? kWidth : 1;
  c.lanes = 32;
  while (c.lanes > 1 && c.lanes / 2 * width >= c.columns) c.lanes /= 2;
  c.tiles = CeilDivide(c.columns, c.lanes * width);
  int64_t rows = kColumnThreads / c.lanes;
  CutTerms(&p, p.results * c.tiles, rows * 16, rows, launch);
  c.p = p;
  Grid grid{BlocksFor(p.results * p.parts * c.tiles, 1, launch.multiprocessors), 1, kColumnThreads, 0};
  Launch(FoldColumns<T, F>, grid, launch.stream, c);
  if (p.partial == nullptr) return;
  const int64_t results = p.results * c.columns;
  Grid join{BlocksFor(results, 32, launch.multiprocessors), 1, kJoinWarps * 32, 0};
  Launch(JoinColumnParts<F>, join, launch.stream, p.partial, results, p.parts, p.finish);
}

template <typename T>
void LaunchFold(const Params& p, Fold fold, bool columns, const LaunchContext& launch) {
  auto go = [&](auto of) {
    using F = decltype(of);
    columns ? LaunchColumns<T, F>(p, launch) : LaunchRows<T, F>(p, launch);
  };
  switch (fold) {
    case Fold::kSum:
      return go(SumOf());
    case Fold::kMax:
      return go(MaxOf());
    case Fold::kMin:
      return go(MinOf());
  }
}

void LaunchFloatFold(const Params& p, Fold fold, bool columns, const LaunchContext& launch) {
  if (p.x_type == DType::kBFloat16) {
    LaunchFold<BFloat16>(p, fold, columns, launch);
  } else if (p.x_type == DType::kFloat16) {
    LaunchFold<Float16>(p, fold, columns, launch);
  } else {
    LaunchFold<float>(p, fold, columns, launch);
  }
}

int64_t IntegerIdentity(DType dtype, Fold fold) {
  bool max = fold == Fold::kMax;
  if (!max && fold != Fold::kMin) return 0;
  switch (dtype) {
    case DType::kInt64:
      return max ? INT64_MIN : INT64_MAX;
    case DType::kInt32:
      return max ? INT32_MIN : INT32_MAX;
    case DType::kUInt8:
      return max ? 0 : 255;
    default:
      return max ? 0 : 1;
  }
}

Status ReduceAxes(const KernelContext& context, const LaunchContext& launch, const Mask& mask, Fold fold,
                  float divisor = 1) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  if (y.elements() == 0) return Status();
  Groups groups = GroupsOf(x.extent, mask);
  Params p{};
  p.kept = groups.kept;
  p.reduced = groups.reduced;
  p.kept_strides = groups.kept_strides;
  p.reduced_strides = groups.reduced_strides;
  p.results = y.elements();
  p.terms = x.elements() / p.results;
  p.part = p.terms;
  p.parts = 1;
  p.x = x.data;
  p.x_type = x.dtype;
  p.finish = {y.data, y.dtype, divisor};
  bool floating = IsFloating(x.dtype);
  if (!floating || p.terms == 0) {
    Grid grid{BlocksFor(p.results, 128, launch.multiprocessors), 1, 128, 0};
    Launch(FoldSlowly, grid, launch.stream, p, fold, IntegerIdentity(x.dtype, fold));
  } else {
    LaunchFloatFold(p, fold, groups.columns, launch);
  }
  return Status();
}

Mask MaskOf(const KernelContext& context) {
  Mask mask{};
  for (int64_t axis : context.spec.attrs.Ints("axes")) mask[static_cast<size_t>(axis)] = true;
  return mask;
}

// --- Kernels -------------------------------------------------------------------------------------

Status Sum(const KernelContext& context, const LaunchContext& launch) {
  return ReduceAxes(context, launch, MaskOf(context), Fold::kSum);
}
Status Max(const KernelContext& context, const LaunchContext& launch) {
  return ReduceAxes(context, launch, MaskOf(context), Fold::kMax);
}
Status Min(const KernelContext& context, const LaunchContext& launch) {
  return ReduceAxes(context, launch, MaskOf(context), Fold::kMin);
}

Status Mean(const KernelContext& context, const LaunchContext& launch) {
  Mask mask = MaskOf(context);
  const Dims& global = context.in[0].global;
  int64_t count = 1;
  for (int i = 0; i < global.rank(); ++i) count *= mask[static_cast<size_t>(i)] ? global[i] : 1;
  return ReduceAxes(context, launch, mask, Fold::kSum, static_cast<float>(count));
}

Status SumTo(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg& x = context.in[0];
  Dims shape = context.spec.attrs.GetDims("shape");
  Mask mask{};
  int lead = x.extent.rank() - shape.rank();
  for (int i = 0; i < x.extent.rank(); ++i) {
    mask[static_cast<size_t>(i)] = i < lead || (shape[i - lead] == 1 && x.global[i] != 1);
  }
  return ReduceAxes(context, launch, mask, Fold::kSum);
}

// --- argmax: the first of the greatest; a NaN is greater than nothing, but as the first element nothing is
// greater than it, as the reference has it.

struct ArgmaxParams {
  int64_t outer, extent, inner;
  const void* x;
  DType dtype;
  int64_t* y;
};

template <typename A>
OFL_DEVICE A LoadAs(const ArgmaxParams& p, int64_t at);
template <>
OFL_DEVICE float LoadAs<float>(const ArgmaxParams& p, int64_t at) {
  return LoadReal(p.x, p.dtype, at);
}
template <>
OFL_DEVICE int64_t LoadAs<int64_t>(const ArgmaxParams& p, int64_t at) {
  return LoadInteger(p.x, p.dtype, at);
}

template <typename A>
OFL_KERNEL void ArgmaxByThread(ArgmaxParams p) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.outer * p.inner; i += step) {
    int64_t in, out = Divide(i, p.inner, &in), first = out * p.extent * p.inner + in, best = 0;
    A greatest = LoadAs<A>(p, first);
    for (int64_t k = 1; k < p.extent; ++k) {
      A x = LoadAs<A>(p, first + k * p.inner);
      if (x > greatest) {
        greatest = x;
        best = k;
      }
    }
    p.y[i] = best;
  }
}

constexpr int kArgmaxThreads = 256;

template <typename A>
OFL_KERNEL void ArgmaxByBlock(ArgmaxParams p) {
  OFL_SHARED A greatest[kArgmaxThreads];
  OFL_SHARED int64_t index[kArgmaxThreads];
  int thread = static_cast<int>(threadIdx.x);
  for (int64_t row = blockIdx.x; row < p.outer; row += gridDim.x) {
    int64_t base = row * p.extent, best = -1;  // -1: only NaNs so far
    A top = LoadAs<A>(p, base);
    bool fixed = top != top;
    for (int64_t k = thread; k < p.extent; k += kArgmaxThreads) {
      A x = LoadAs<A>(p, base + k);
      if (x == x && (best < 0 || x > top)) {
        top = x;
        best = k;
      }
    }
    greatest[thread] = top;
    index[thread] = best;
    __syncthreads();
    for (int half = kArgmaxThreads / 2; half > 0; half /= 2) {
      if (thread < half) {
        int64_t other = index[thread + half];
        A value = greatest[thread + half];
        bool better = other >= 0 && (index[thread] < 0 || value > greatest[thread] ||
                                     (value == greatest[thread] && other < index[thread]));
        if (better) {
          greatest[thread] = value;
          index[thread] = other;
        }
      }
      __syncthreads();
    }
    if (thread == 0) p.y[row] = fixed ? 0 : index[0];
    __syncthreads();
  }
}

template <typename A>
void LaunchArgmax(const ArgmaxParams& p, const LaunchContext& launch) {
  if (p.inner == 1 && p.extent > 64) {
    Grid grid{BlocksFor(p.outer, 1, launch.multiprocessors), 1, kArgmaxThreads, 0};
    return Launch(ArgmaxByBlock<A>, grid, launch.stream, p);
  }
  Grid grid{BlocksFor(p.outer * p.inner, 128, launch.multiprocessors), 1, 128, 0};
  Launch(ArgmaxByThread<A>, grid, launch.stream, p);
}

Status Argmax(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  if (y.elements() == 0) return Status();
  int axis = static_cast<int>(context.spec.attrs.Int("axis"));
  ArgmaxParams p{1, x.extent[axis], 1, x.data, x.dtype, y.as<int64_t>()};
  for (int i = 0; i < axis; ++i) p.outer *= x.extent[i];
  for (int i = axis + 1; i < x.extent.rank(); ++i) p.inner *= x.extent[i];
  IsFloating(x.dtype) ? LaunchArgmax<float>(p, launch) : LaunchArgmax<int64_t>(p, launch);
  return Status();
}

}  // namespace

void LaunchMatrixSums(const SummedMatrix& x, void* y, DType y_type, const LaunchContext& launch) {
  Params p{};
  p.kept = {1, {x.results}};
  p.reduced = {1, {x.terms}};
  p.kept_strides.at[0] = x.to_next_result;
  p.reduced_strides.at[0] = x.to_next_term;
  p.results = x.results;
  p.terms = p.part = x.terms;
  p.parts = 1;
  p.x = x.data;
  p.x_type = x.dtype;
  p.finish = {y, y_type, 1};
  LaunchFloatFold(p, Fold::kSum, x.to_next_result == 1, launch);
}

void AddReduceKernels(KernelRegistry* registry) {
  auto add = [registry](const char* name, LaunchFn fn) { registry->Add(name, "cuda", MakeLaunchKernel(fn)); };
  add("sum", Sum);
  add("mean", Mean);
  add("max", Max);
  add("min", Min);
  add("sum_to", SumTo);
  add("argmax", Argmax);
}

}  // namespace oneflow_like::cuda
