// grouped_matmul and the gradient of its matrices. Where the runs of experts lie is found on the device, by a
// block for each set of parts that share matrices, and waits in the workspace. An expert's runs in all parts
// of a set are multiplied as if they followed each other, so that parts with few rows of an expert fill
// tiles. The grid has as many tiles as there may be, and a block without one ends at once. No atomics: a
// result is the sum of one block, in a fixed order.
//
// 16-bit operands: tiles of 128 by 128 on tensor cores (product_tile.h). fp32: tiles of 32 by 32 in blocks of
// 16 by 16 threads on the plain cores.
//
// Floor, operations: 2 n k m. An expert's r rows of a set are computed in ceil(r / 128) tiles, whose warps
// leave padding out by 32 rows: 16 of padding for an expert on average, of 256 rows a sixteenth.
#include <limits>

#include "ops/cuda/grouped_runs.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/product_tile.h"

namespace oneflow_like::cuda {
namespace {

constexpr int kTile = 32, kDepth = 16, kSide = 16, kEach = kTile / kSide;  // of fp32

// blockIdx.x: the set, whose parts its warps share.
constexpr int kMostWarpsOfFind = 16;
OFL_KERNEL void __launch_bounds__(kMostWarpsOfFind * 32)
    FindRuns(IndexView counts, ExpertRuns runs, FaultPort port) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t set = blockIdx.x, part0 = set * runs.each, behind = part0 + runs.each;
  for (int64_t part = part0 + warp; part < behind; part += blockDim.x / 32)
    FindRows(counts, runs, part, port);
  __syncthreads();
  if (warp != 0) return;
  int64_t tiles = 0;
  for (int64_t run0 = 0; run0 <= runs.Count(); run0 += 32) {
    const int64_t run = run0 + lane;
    int64_t rows = 0;
    if (run < runs.Count()) {
      constexpr int kAtOnce = 8;  // loads
      for (int64_t part = part0; part < behind; part += kAtOnce) {
        int64_t own[kAtOnce];
        OFL_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          const int64_t* row = runs.Row(part + i);
          own[i] = part + i < behind ? row[run + 1] - row[run] : 0;
        }
        OFL_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          if (part + i < behind) runs.Before(part + i)[run] = rows;
          rows += own[i];
        }
      }
      runs.Rows(set)[run] = rows;
    }
    const int64_t own = (rows + runs.tall - 1) / runs.tall, sum = tiles + SumOfLanes(own);
    if (run <= runs.Count()) runs.Tile(set)[run] = sum - own;
    tiles = __shfl_sync(0xFFFFFFFFu, sum, 31);
  }
}

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

// --- On tensor cores

template <typename T, bool kTransposed, bool kPacked>
OFL_KERNEL void __launch_bounds__(kProductThreads, 2)
    MultiplyRows(ExpertRuns runs, RowsProduct p, int64_t most_tiles) {
  RunTile at;
  if (!FindRunTile(runs, most_tiles, p.m, kProductColumns, &at)) return;
  using Tile = ProductTile<T, false, !kTransposed, kPacked>;
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
      done += kProductDepth;
      return true;
    });
  }
  tile.Put({p.y.From(at.column), p.m, p.m - at.column, p.y_packs}, walk);
}

template <typename T, bool kPacked>
OFL_KERNEL void __launch_bounds__(kProductThreads, 2) MultiplyColumns(ExpertRuns runs, MatricesProduct p) {
  const MatrixTile at(runs, p.k, p.m, kProductRows, kProductColumns);
  using Tile = ProductTile<T, true, true, kPacked>;
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
    done += kProductDepth;
    return true;
  });
  tile.Put({p.dw.From(at.matrix * p.k * p.m + at.column), p.m, p.m - at.column, p.dw_packs},
           [&](int number) { return at.row + number < p.k ? at.row + number : -1; });
}

// --- On the plain cores, in fp32

// sum[kEach][kEach] += a[rows depth] b[depth columns]: load(d, &a, &b) gives the elements at depth d, which
// ascends, of the row and the column threadIdx.x % kTile of the tile, 0 unless it sets them. All threads of
// the block take part.
template <typename Load>
OFL_DEVICE void AddTile(int depth, float (&sum)[kEach][kEach], Load&& load) {
  OFL_SHARED float ta[kDepth][kTile + 1];
  OFL_SHARED float tb[kDepth][kTile + 1];
  const int tx = static_cast<int>(threadIdx.x) % kSide, ty = static_cast<int>(threadIdx.x) / kSide;
  const int at = static_cast<int>(threadIdx.x) % kTile;
  for (int d0 = 0; d0 < depth; d0 += kDepth) {
    for (int d = static_cast<int>(threadIdx.x) / kTile; d < kDepth; d += kSide * kSide / kTile) {
      float a = 0, b = 0;
      if (d0 + d < depth) load(d0 + d, &a, &b);
      ta[d][at] = a;
      tb[d][at] = b;
    }
    __syncthreads();
    for (int d = 0; d < kDepth; ++d) {
      for (int i = 0; i < kEach; ++i) {
        for (int j = 0; j < kEach; ++j) sum[i][j] += ta[d][ty + i * kSide] * tb[d][tx + j * kSide];
      }
    }
    __syncthreads();
  }
}

template <typename RowOf>
OFL_DEVICE void PutTile(const FloatView& y, int stride, int columns, const float (&sum)[kEach][kEach],
                        RowOf row_of) {
  for (int i = 0; i < kEach; ++i) {
    const int row = row_of(static_cast<int>(threadIdx.x) / kSide + i * kSide);
    for (int j = 0; j < kEach; ++j) {
      const int column = static_cast<int>(threadIdx.x) % kSide + j * kSide;
      if (row >= 0 && column < columns) y.Put(static_cast<int64_t>(row) * stride + column, sum[i][j]);
    }
  }
}

OFL_KERNEL void MultiplyRowsPlain(ExpertRuns runs, RowsProduct p, int64_t most_tiles) {
  RunTile at;
  if (!FindRunTile(runs, most_tiles, p.m, kTile, &at)) return;
  float sum[kEach][kEach] = {};
  const RowWalk walk = at.Walk(runs);
  if (const int64_t matrix = at.Matrix(runs); matrix >= 0) {
    RowWalk walk_of_x = walk;
    const int64_t row = walk_of_x(static_cast<int>(threadIdx.x) % kTile);
    const int64_t column = at.column + static_cast<int>(threadIdx.x) % kTile;
    const auto *x = static_cast<const float*>(p.x), *w = static_cast<const float*>(p.w) + matrix * p.k * p.m;
    AddTile(p.k, sum, [&](int64_t d, float* a, float* b) {
      if (row >= 0) *a = x[row * p.k + d];
      if (column < p.m) *b = w[p.transposed ? column * p.k + d : d * p.m + column];
    });
  }
  PutTile(p.y.From(at.column), p.m, p.m - at.column, sum, walk);
}

OFL_KERNEL void MultiplyColumnsPlain(ExpertRuns runs, MatricesProduct p) {
  const MatrixTile at(runs, p.k, p.m, kTile, kTile);
  const int64_t row = at.row + static_cast<int>(threadIdx.x) % kTile;
  const int64_t column = at.column + static_cast<int>(threadIdx.x) % kTile;
  const auto *x = static_cast<const float*>(p.x), *dy = static_cast<const float*>(p.dy);
  RowWalk walk = at.Walk(runs);
  float sum[kEach][kEach] = {};
  AddTile(at.depth, sum, [&](int d, float* a, float* b) {
    const int64_t from = walk(d);
    if (row < p.k) *a = x[from * p.k + row];
    if (column < p.m) *b = dy[from * p.m + column];
  });
  PutTile(p.dw.From(at.matrix * p.k * p.m + at.column), p.m, p.m - at.column, sum,
          [&](int number) { return at.row + number < p.k ? at.row + number : -1; });
}

// --- Launches

int64_t PartsOf(const TensorArg& arg, int axes) {  // the product of all extents but the last `axes`
  int64_t parts = 1;
  for (int i = 0; i < arg.extent.rank() - axes; ++i) parts *= arg.extent[i];
  return parts;
}
int64_t FromBehind(const Dims& dims, int axis) { return dims[dims.rank() - axis]; }
bool Packs(const TensorArg& arg) { return Aligned(arg.data) && arg.extent[arg.extent.rank() - 1] % 8 == 0; }

// `experts`: the operand that has them, as [sets e k m].
Status FindRunsOf(const KernelContext& context, const TensorArg& experts, int tall,
                  const LaunchContext& launch, ExpertRuns* runs) {
  const TensorArg &x = context.in[0], &counts = context.in[2];
  const int64_t parts = PartsOf(x, 2), sets = PartsOf(experts, 3);
  *runs = {.all = FromBehind(counts.extent, 1),
           .whole_rows = FromBehind(x.global, 2),
           .begin = FromBehind(x.begin, 2),
           .rows = FromBehind(x.extent, 2),
           .first = FromBehind(experts.begin, 3),
           .experts = FromBehind(experts.extent, 3),
           .parts = parts,
           .sets = sets,
           .each = parts / std::max<int64_t>(sets, 1),
           .tall = tall,
           .table = static_cast<int64_t*>(launch.workspace)};
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  for (const TensorArg* arg : {&x, &context.in[1], &context.out[0]})
    if (PartsOf(*arg, 1) > kMost || FromBehind(arg->extent, 1) > kMost)
      return Status(Cat("an operand of ", PartsOf(*arg, 1), " rows of ", FromBehind(arg->extent, 1),
                        " elements; on a GPU either is at most ", kMost));
  if (runs->TableBytes() > launch.workspace_bytes)
    return Status(Cat(parts, " parts of ", runs->experts, " experts need a table of ", runs->TableBytes(),
                      " bytes, but the workspace has ", launch.workspace_bytes, "; use fewer parts"));
  const unsigned warps = static_cast<unsigned>(std::clamp<int64_t>(runs->each, 1, kMostWarpsOfFind));
  Launch(FindRuns, Grid{.x = static_cast<unsigned>(sets), .threads = 32 * warps}, launch.stream,
         IndicesOf(counts), *runs, FaultOf(launch, 0));
  return Status();
}

Status GroupedMatmul(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &w = context.in[1], &y = context.out[0];
  ExpertRuns runs;
  const int tall = x.dtype == DType::kFloat32 ? kTile : kProductRows;
  if (Status found = FindRunsOf(context, w, tall, launch, &runs); !found.ok()) return found;
  if (y.elements() == 0) return Status();
  const RowsProduct p = {x.data,
                         w.data,
                         FloatsOf(y),
                         static_cast<int>(FromBehind(x.extent, 1)),
                         static_cast<int>(FromBehind(y.extent, 1)),
                         Packs(y),
                         context.spec.attrs.Int("transposed", 0) != 0};
  const int64_t most = runs.MostTiles();
  const auto grid = [&](int broad, unsigned threads, size_t shared) {
    return Grid{static_cast<unsigned>(runs.sets * most * ((p.m + broad - 1) / broad)), 1, threads, shared};
  };
  WithFloating(x.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, float>) {
      Launch(MultiplyRowsPlain, grid(kTile, kSide * kSide, 0), launch.stream, runs, p, most);
    } else {
      const bool packed = Packs(x) && Packs(w);
      const auto kernel = p.transposed ? packed ? MultiplyRows<T, true, true> : MultiplyRows<T, true, false>
                          : packed ? MultiplyRows<T, false, true>
                                       : MultiplyRows<T, false, false>;
      Launch(kernel, grid(kProductColumns, kProductThreads, kProductShared), launch.stream, runs, p, most);
    }
  });
  return Status();
}

Status GroupedMatmulGradWeight(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &dy = context.in[1], &dw = context.out[0];
  ExpertRuns runs;
  if (Status found = FindRunsOf(context, dw, kTile, launch, &runs); !found.ok()) return found;
  if (dw.elements() == 0) return Status();
  const MatricesProduct p = {x.data,
                             dy.data,
                             FloatsOf(dw),
                             static_cast<int>(FromBehind(x.extent, 1)),
                             static_cast<int>(FromBehind(dy.extent, 1)),
                             Packs(dw)};
  const auto grid = [&](int tall, int broad, unsigned threads, size_t shared) {
    return Grid{
        static_cast<unsigned>(PartsOf(dw, 2) * ((p.k + tall - 1) / tall) * ((p.m + broad - 1) / broad)), 1,
        threads, shared};
  };
  WithFloating(x.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, float>) {
      Launch(MultiplyColumnsPlain, grid(kTile, kTile, kSide * kSide, 0), launch.stream, runs, p);
    } else {
      Launch(Packs(x) && Packs(dy) ? MultiplyColumns<T, true> : MultiplyColumns<T, false>,
             grid(kProductRows, kProductColumns, kProductThreads, kProductShared), launch.stream, runs, p);
    }
  });
  return Status();
}

std::string ExplainCounts(const Fault& fault) {
  if (fault.operand == kNegativeCount) return Cat("expert ", fault.value, " has a count of ", fault.limit);
  return Cat("counts add up to more than the ", fault.limit, " rows of x");
}

}  // namespace

void AddGroupedMatmulKernels(KernelRegistry* registry) {
  registry->Add("grouped_matmul", "cuda", MakeIndexKernel(GroupedMatmul, ExplainCounts));
  registry->Add("grouped_matmul_grad_weight", "cuda",
                MakeIndexKernel(GroupedMatmulGradWeight, ExplainCounts));
}

}  // namespace oneflow_like::cuda
