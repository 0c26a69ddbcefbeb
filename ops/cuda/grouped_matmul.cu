// grouped_matmul and the gradient of its matrices: tiles of 32 by 32 of the result in blocks of 16 by 16
// threads, on the plain fp32 cores. Where the runs of experts begin is found once, by one thread, and waits
// in the workspace. A tile of rows that several experts share is walked once for each of them.
//
// Floor, operations: 2 n k m on fp32 cores; a library's grouped product on tensor cores is many times faster.
#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"
#include "ops/groups.h"

namespace oneflow_like::cuda {
namespace {

constexpr int kTile = 32, kDepth = 16, kSide = 16, kEach = kTile / kSide;

// Operands of faults.
constexpr int kNegative = 0, kTooMany = 1;

// starts[e]: the first row of expert e, of all experts and one behind them. Rows are 0 where counts are
// wrong.
OFL_KERNEL void FindStarts(IndexView counts, int64_t experts, int64_t rows, int64_t* starts, FaultPort port) {
  if (threadIdx.x != 0) return;
  int64_t sum = 0;
  bool wrong = false;
  for (int64_t e = 0; e < experts; ++e) {
    starts[e] = sum;
    const int64_t count = counts.At(e);
    if (!wrong && (count < 0 || count > rows - sum)) {
      port.operand = count < 0 ? kNegative : kTooMany;
      port.Raise(count < 0 ? e : count, count < 0 ? count : rows);
      wrong = true;
    }
    if (!wrong) sum += count;
  }
  starts[experts] = sum;
}

// A matrix with a stride for each side.
struct Side {
  FloatView data;
  int64_t row, column;
  OFL_DEVICE float At(int64_t r, int64_t c) const { return data.At(r * row + c * column); }
};

OFL_DEVICE FloatView Shifted(const FloatView& view, int64_t elements) {
  const int64_t size = view.dtype == DType::kFloat32 ? 4 : 2;
  return {static_cast<char*>(view.data) + elements * size, view.dtype};
}

// sum[kEach][kEach] += a[rows of the tile, depth] b[depth, columns of the tile]; rows outside [low, high),
// columns from `columns` on count as 0. All threads of the block take part.
OFL_DEVICE void AddTile(const Side& a, const Side& b, int64_t row0, int64_t low, int64_t high,
                        int64_t column0, int64_t columns, int64_t depth, float (&sum)[kEach][kEach]) {
  OFL_SHARED float ta[kDepth][kTile + 1];
  OFL_SHARED float tb[kDepth][kTile + 1];
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  for (int64_t d0 = 0; d0 < depth; d0 += kDepth) {
    for (int i = threadIdx.x; i < kDepth * kTile; i += blockDim.x) {
      const int64_t d = d0 + i / kTile, r = row0 + i % kTile, c = column0 + i % kTile;
      ta[i / kTile][i % kTile] = d < depth && r >= low && r < high ? a.At(r, d) : 0.0f;
      tb[i / kTile][i % kTile] = d < depth && c < columns ? b.At(d, c) : 0.0f;
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

OFL_DEVICE void PutTile(FloatView y, int64_t row0, int64_t rows, int64_t column0, int64_t columns,
                        const float (&sum)[kEach][kEach]) {
  for (int i = 0; i < kEach; ++i) {
    for (int j = 0; j < kEach; ++j) {
      const int64_t r = row0 + threadIdx.x / kSide + i * kSide, c = column0 + threadIdx.x % kSide + j * kSide;
      if (r < rows && c < columns) y.Put(r * columns + c, sum[i][j]);
    }
  }
}

// Rows [begin, begin + rows) of all, experts [first, first + experts) are held here.
struct Experts {
  const int64_t* starts;
  int64_t begin, rows, first, experts;
  OFL_DEVICE int64_t Start(int64_t e) const { return Clamp(starts[first + e]); }
  OFL_DEVICE int64_t End(int64_t e) const { return Clamp(starts[first + e + 1]); }
  OFL_DEVICE int64_t Clamp(int64_t row) const {
    return row < begin ? 0 : row > begin + rows ? rows : row - begin;
  }
};

// blockIdx.x: the tile. w: the first expert's matrix [k m], `size` elements before the next one's.
OFL_KERNEL void MultiplyRows(Experts all, Side x, Side w, int64_t size, int64_t k, int64_t m, FloatView y) {
  const int64_t across = (m + kTile - 1) / kTile;
  const int64_t row0 = blockIdx.x / across * kTile, column0 = blockIdx.x % across * kTile;
  const int64_t behind = row0 + kTile < all.rows ? row0 + kTile : all.rows;
  float sum[kEach][kEach] = {};
  for (int64_t e = 0; e < all.experts && all.Start(e) < behind; ++e) {
    const int64_t low = all.Start(e), high = all.End(e);
    if (high <= row0 || low == high) continue;
    AddTile(x, {Shifted(w.data, e * size), w.row, w.column}, row0, low, high, column0, m, k, sum);
  }
  PutTile(y, row0, all.rows, column0, m, sum);
}

// blockIdx.x: expert and tile of its matrix [k m] = x[rows k]^T dy[rows m].
OFL_KERNEL void MultiplyColumns(Experts all, FloatView x, FloatView dy, int64_t k, int64_t m, FloatView dw) {
  const int64_t across = (m + kTile - 1) / kTile, down = (k + kTile - 1) / kTile;
  const int64_t e = blockIdx.x / (across * down), row0 = blockIdx.x / across % down * kTile,
                column0 = blockIdx.x % across * kTile;
  const int64_t low = all.Start(e), high = all.End(e);
  float sum[kEach][kEach] = {};
  AddTile({Shifted(x, low * k), 1, k}, {Shifted(dy, low * m), m, 1}, row0, 0, k, column0, m, high - low, sum);
  PutTile(Shifted(dw, e * k * m), row0, k, column0, m, sum);
}

// The starts in the workspace, and what is held of x's rows and w's experts.
Experts FindExperts(const TensorArg& x, const TensorArg& w, const TensorArg& counts,
                    const LaunchContext& launch) {
  auto* starts = static_cast<int64_t*>(launch.workspace);
  Launch(FindStarts, Grid{.threads = 32}, launch.stream, IndicesOf(counts), counts.elements(), x.global[0],
         starts, FaultOf(launch, 0));
  return {starts, x.begin[0], x.extent[0], w.begin[0], w.extent[0]};
}

Status GroupedMatmulOfPart(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &w = context.in[1], &y = context.out[0];
  const bool transposed = context.spec.attrs.Int("transposed", 0) != 0;
  const Experts all = FindExperts(x, w, context.in[2], launch);
  if (y.elements() == 0) return Status();
  const int64_t k = x.extent[1], m = y.extent[1];
  const Side matrix = transposed ? Side{FloatsOf(w), 1, k} : Side{FloatsOf(w), m, 1};
  Grid grid{.x = static_cast<unsigned>((x.extent[0] + kTile - 1) / kTile * ((m + kTile - 1) / kTile))};
  Launch(MultiplyRows, grid, launch.stream, all, Side{FloatsOf(x), k, 1}, matrix, k * m, k, m, FloatsOf(y));
  return Status();
}

Status GradWeightOfPart(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &dy = context.in[1], &dw = context.out[0];
  const Experts all = FindExperts(x, dw, context.in[2], launch);
  if (dw.elements() == 0) return Status();
  const int64_t k = x.extent[1], m = dy.extent[1];
  Grid grid{.x = static_cast<unsigned>(all.experts * ((k + kTile - 1) / kTile) * ((m + kTile - 1) / kTile))};
  Launch(MultiplyColumns, grid, launch.stream, all, FloatsOf(x), FloatsOf(dy), k, m, FloatsOf(dw));
  return Status();
}

Status GroupedMatmul(const KernelContext& context, const LaunchContext& launch) {
  return ForEachPart(context, kGroupedRanks,
                     [&](const KernelContext& part) { return GroupedMatmulOfPart(part, launch); });
}
Status GroupedMatmulGradWeight(const KernelContext& context, const LaunchContext& launch) {
  return ForEachPart(context, kGroupedWeightRanks,
                     [&](const KernelContext& part) { return GradWeightOfPart(part, launch); });
}

std::string ExplainCounts(const Fault& fault) {
  if (fault.operand == kNegative) return Cat("expert ", fault.value, " has a count of ", fault.limit);
  return Cat("counts add up to more than the ", fault.limit, " rows of x");
}

}  // namespace

void AddGroupedMatmulKernels(KernelRegistry* registry) {
  registry->Add("grouped_matmul", "cuda", MakeIndexKernel(GroupedMatmul, ExplainCounts));
  registry->Add("grouped_matmul_grad_weight", "cuda",
                MakeIndexKernel(GroupedMatmulGradWeight, ExplainCounts));
}

}  // namespace oneflow_like::cuda
