// grouped_matmul and the gradient of its matrices. Where the runs of experts lie is found on the device, by a
// block for each set of parts that share matrices, and waits in the workspace. An expert's runs in all parts
// of a set are multiplied as if they followed each other, so that parts with few rows of an expert fill
// tiles. The grid has as many tiles as there may be, and a block without one ends at once. No atomics: a
// result is the sum of one block, in a fixed order.
//
// 16-bit operands: tiles of 128 by 128 on tensor cores (grouped_tiles.h), in one of two ways: 0, by warps, on
// every card, or 1, by warpgroups, on those of compute capability 9.0 whose operands are whole packs. Way 1
// is taken only where both were timed when the plan was loaded, agreed, and it was the faster one
// (product_choices.h), or where attribute "gemm_choice" says so. fp32: tiles of 32 by 32 in blocks of 16 by
// 16 threads on the plain cores.
//
// Floor, operations: 2 n k m. An expert's r rows of a set are computed in ceil(r / 128) tiles, whose warps
// leave padding out by 32 rows: 16 of padding for an expert on average, of 256 rows a sixteenth.
#include <glog/logging.h>

#include <cmath>
#include <limits>

#include "ops/cuda/driver_turn.h"
#include "ops/cuda/grouped_tiles.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/product_choices.h"

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

template <typename T, bool kLeftAcross, bool kRightAcross>
using PackedTile = ProductTile<T, kLeftAcross, kRightAcross, true>;
template <typename T, bool kLeftAcross, bool kRightAcross>
using LooseTile = ProductTile<T, kLeftAcross, kRightAcross, false>;

constexpr int64_t kByWarps = 0, kByWarpgroups = 1;
constexpr int kWarpgroupArchitecture = 90;

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

Status GroupedMatmul(const KernelContext& context, int64_t way, const LaunchContext& launch) {
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
  const bool packed = Packs(x) && Packs(w);
  if (way == kByWarpgroups && packed) {
    LaunchRowsByWarpgroups(x.dtype, runs, p, launch.stream);
    return Status();
  }
  WithFloating(x.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, float>) {
      Launch(MultiplyRowsPlain, Grid{.x = RowTiles(runs, p, kTile), .threads = kSide * kSide}, launch.stream,
             runs, p, runs.MostTiles());
    } else if (packed) {
      LaunchRows<T, PackedTile>(runs, p, launch.stream);
    } else {
      LaunchRows<T, LooseTile>(runs, p, launch.stream);
    }
  });
  return Status();
}

Status GroupedMatmulGradWeight(const KernelContext& context, int64_t way, const LaunchContext& launch) {
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
  const bool packed = Packs(x) && Packs(dy);
  if (way == kByWarpgroups && packed) {
    LaunchColumnsByWarpgroups(x.dtype, runs, p, launch.stream);
    return Status();
  }
  WithFloating(x.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, float>) {
      Launch(MultiplyColumnsPlain, Grid{.x = MatrixTiles(runs, p, kTile, kTile), .threads = kSide * kSide},
             launch.stream, runs, p);
    } else if (packed) {
      LaunchColumns<T, PackedTile>(runs, p, launch.stream);
    } else {
      LaunchColumns<T, LooseTile>(runs, p, launch.stream);
    }
  });
  return Status();
}

// --- Which way

using GroupedFn = Status (*)(const KernelContext&, int64_t way, const LaunchContext&);

// What is timed: as many rows for each of some experts as the node's may have on average, one expert more and
// one less, and some rows of none; operands as the node's types.
struct GroupedWork {
  std::string name;
  GroupedFn fn;
  Attrs attrs;
  bool gradient, transposed;
  DType in, out;
  int64_t k, m, experts, rows;  // rows: of an expert

  explicit GroupedWork(const KernelSpec& spec, GroupedFn which, bool is_gradient)
      : name(spec.name), fn(which), attrs(spec.attrs), gradient(is_gradient) {
    constexpr int64_t kMostExperts = 8, kMostRows = 2048;
    const TensorArg &x = spec.in[0], &of_experts = gradient ? spec.out[0] : spec.in[1];
    transposed = !gradient && attrs.Int("transposed", 0) != 0;
    in = x.dtype;
    out = spec.out[0].dtype;
    k = FromBehind(x.extent, 1);
    m = FromBehind(gradient ? spec.in[1].extent : spec.out[0].extent, 1);
    const int64_t all = std::max<int64_t>(FromBehind(of_experts.extent, 3), 1);
    experts = std::min(all, kMostExperts);
    const int64_t of_set = PartsOf(x, 1) / std::max<int64_t>(PartsOf(of_experts, 3), 1);
    rows = std::clamp<int64_t>(of_set / all, 2, kMostRows);
  }

  std::string Name(int device) const {
    return Cat(gradient     ? "gradient of grouped matrices "
               : transposed ? "grouped product across "
                            : "grouped product ",
               rows, " rows of ", experts, ", ", k, "x", m, " ", oneflow_like::Name(in), ">",
               oneflow_like::Name(out), ", kernels 1 on ", CardOf(device));
  }

  std::map<int64_t, double> Time(const LaunchContext& launch, void* scratch, int64_t bytes) const;
};

std::map<int64_t, double> GroupedWork::Time(const LaunchContext& launch, void* scratch, int64_t bytes) const {
  if (launch.architecture != kWarpgroupArchitecture) return {};
  const int64_t behind = 5, all_rows = experts * rows + behind;
  auto* free = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(scratch) + 255) / 256 * 256);
  char* const end = static_cast<char*>(scratch) + bytes;
  const auto take = [&](DType dtype, Dims shape) {
    TensorArg arg{free, dtype, shape, Dims(shape.rank(), 0), shape};
    const int64_t size = arg.elements() * static_cast<int64_t>(SizeOf(dtype));
    free = size <= end - free ? free + (size + 255) / 256 * 256 : end + 1;
    return arg;
  };
  const Dims left{all_rows, k}, right{all_rows, m};
  const Dims matrices = transposed ? Dims{experts, m, k} : Dims{experts, k, m};
  const TensorArg x = take(in, left), second = take(in, gradient ? right : matrices);
  const int64_t numbers = free - static_cast<char*>(x.data);
  const TensorArg counts = take(DType::kInt32, {experts});
  const TensorArg results[] = {take(out, gradient ? matrices : right),
                               take(out, gradient ? matrices : right)};
  if (free > end) return {};
  std::vector<int32_t> of_expert(experts, static_cast<int32_t>(rows));
  if (experts > 1) ++of_expert[0], --of_expert[experts - 1];
  const DriverCall call;
  if (FillWithNumbers(x.data, numbers, in, launch.stream) != cudaSuccess ||
      cudaMemcpyAsync(counts.data, of_expert.data(), of_expert.size() * sizeof(int32_t),
                      cudaMemcpyHostToDevice, launch.stream) != cudaSuccess ||
      cudaStreamSynchronize(launch.stream) != cudaSuccess)
    return {};
  KernelSpec spec;
  spec.name = spec.node = name;
  spec.attrs = attrs;
  spec.in = {x, second, counts};
  std::vector<std::function<bool()>> ways;
  for (const int64_t way : {kByWarps, kByWarpgroups}) {
    KernelSpec own = spec;
    own.out = {results[way]};
    ways.push_back([this, own, way, &launch] {
      const bool done = fn({own, own.in, own.out, nullptr, 0, 0, 1, 0}, way, launch).ok();
      return done && cudaGetLastError() == cudaSuccess;
    });
  }
  const std::vector<double> timed = TimeInTurn(ways, launch.stream);
  if (timed.empty() || std::isinf(timed[kByWarps])) return {};
  std::map<int64_t, double> seconds = {{kByWarps, timed[kByWarps]}};
  if (std::isinf(timed[kByWarpgroups])) return seconds;
  std::vector<char> found[2];
  for (const int64_t way : {kByWarps, kByWarpgroups}) {
    found[way].resize(results[way].elements() * SizeOf(out));
    if (cudaMemcpy(found[way].data(), results[way].data, found[way].size(), cudaMemcpyDeviceToHost) !=
        cudaSuccess)
      return {};
  }
  if (Agree(found[kByWarps], found[kByWarpgroups], out)) {
    seconds[kByWarpgroups] = timed[kByWarpgroups];
  } else {
    LOG(WARNING)
        << name << ": products by warpgroups do not agree with those by warps on this card, and are not used";
  }
  return seconds;
}

class GroupedKernel : public CudaKernel {
 public:
  GroupedKernel(const KernelSpec& spec, GroupedFn fn, bool gradient)
      : work_(std::make_shared<GroupedWork>(spec, fn, gradient)),
        asked_(spec.attrs.Int("gemm_choice", kDecided)) {
    if (work_->in == DType::kFloat32 || work_->k % 8 != 0 || work_->m % 8 != 0) asked_ = kByWarps;
    if (asked_ != kDecided) return;
    Choices().Want(Cat(spec.name, work_->Name(-1)),
                   {[work = work_](int device) { return work->Name(device); },
                    [work = work_](const LaunchContext& launch, void* scratch, int64_t bytes) {
                      return work->Time(launch, scratch, bytes);
                    }});
  }
  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    return work_->fn(context, Way(launch), launch);
  }
  std::string Explain(const Fault& fault) const override {
    if (fault.operand == kNegativeCount) return Cat("expert ", fault.value, " has a count of ", fault.limit);
    return Cat("counts add up to more than the ", fault.limit, " rows of x");
  }

 private:
  // As long as the process lives, the same on one device.
  int64_t Way(const LaunchContext& launch) {
    if (launch.architecture != kWarpgroupArchitecture) return kByWarps;
    if (asked_ != kDecided) return asked_;
    int device = -1;
    if (cudaGetDevice(&device) != cudaSuccess) return kByWarps;
    if (device != device_) {
      const std::string name = work_->Name(device);
      Choices().Settle(name);
      way_ = Choices().Decided(name);
      device_ = device;
    }
    return way_;
  }

  std::shared_ptr<const GroupedWork> work_;
  int64_t asked_;
  int device_ = -1;
  int64_t way_ = kByWarps;
};

}  // namespace

void AddGroupedMatmulKernels(KernelRegistry* registry) {
  registry->Add("grouped_matmul", "cuda", [](const KernelSpec& spec) -> std::unique_ptr<Kernel> {
    return std::make_unique<GroupedKernel>(spec, GroupedMatmul, false);
  });
  registry->Add("grouped_matmul_grad_weight", "cuda", [](const KernelSpec& spec) -> std::unique_ptr<Kernel> {
    return std::make_unique<GroupedKernel>(spec, GroupedMatmulGradWeight, true);
  });
}

}  // namespace oneflow_like::cuda
