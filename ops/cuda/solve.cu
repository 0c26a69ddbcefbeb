// cholesky, triangular_solve, solve and qr: a block for each matrix, in double, in the work space, by the
// algorithms of ops/solve.h. Lanes share rows or columns; matrices are small.
//
// Floor: the arithmetic of one block for each matrix; operands are read once, results written once.
#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"
#include "ops/solve.h"

namespace oneflow_like::cuda {
namespace {

constexpr int kSolveThreads = 64;

struct BlockTeam {
  int64_t lane, lanes;
  OFL_DEVICE BlockTeam() : lane(threadIdx.x), lanes(blockDim.x) {}
  OFL_DEVICE void Sync() const { __syncthreads(); }
};

struct MatrixView {
  FloatView data;
  int64_t first, columns;
  bool turned = false;
  OFL_DEVICE double operator()(int64_t i, int64_t j) const {
    return data.At(first + (turned ? j * columns + i : i * columns + j));
  }
};

struct Systems {
  FloatView a, b, out, second;  // of qr: q, r
  int64_t count = 0, rows = 0, columns = 0, sides = 0;
  double shift = 0;
  bool upper = false, transposed = false;
  double* space = nullptr;  // of the work space: `each` doubles for each block
  int64_t each = 0;
};

OFL_DEVICE void LoadAll(const BlockTeam& team, const FloatView& from, int64_t number, int64_t count,
                        double* to) {
  for (int64_t i = team.lane; i < count; i += team.lanes) to[i] = from.At(number * count + i);
  team.Sync();
}
OFL_DEVICE void StoreAll(const BlockTeam& team, const double* from, int64_t count, const FloatView& to,
                         int64_t number) {
  team.Sync();
  for (int64_t i = team.lane; i < count; i += team.lanes)
    to.Put(number * count + i, static_cast<float>(from[i]));
  team.Sync();
}

OFL_KERNEL void CholeskyMatrices(Systems s, FaultPort port) {
  const BlockTeam team;
  const int64_t n = s.columns;
  double* w = s.space + blockIdx.x * s.each;
  for (int64_t number = blockIdx.x; number < s.count; number += gridDim.x) {
    for (int64_t i = team.lane; i < n * n; i += team.lanes) w[i] = 0;
    team.Sync();
    const int64_t pivot = CholeskyFactor(team, n, MatrixView{s.a, number * n * n, n}, s.shift, w);
    if (pivot >= 0 && team.lane == 0) port.Raise(pivot, 0);
    StoreAll(team, w, n * n, s.out, number);
  }
}

OFL_KERNEL void SolveTriangles(Systems s) {
  const BlockTeam team;
  const int64_t n = s.rows, k = s.sides;
  double* x = s.space + blockIdx.x * s.each;
  for (int64_t number = blockIdx.x; number < s.count; number += gridDim.x) {
    LoadAll(team, s.b, number, n * k, x);
    SolveTriangle(team, n, k, MatrixView{s.a, number * n * n, n, s.transposed}, s.upper == s.transposed, x);
    StoreAll(team, x, n * k, s.out, number);
  }
}

OFL_KERNEL void SolveSystems(Systems s, FaultPort port) {
  const BlockTeam team;
  const int64_t n = s.rows, k = s.sides;
  double *w = s.space + blockIdx.x * s.each, *x = w + n * n;
  for (int64_t number = blockIdx.x; number < s.count; number += gridDim.x) {
    LoadAll(team, s.a, number, n * n, w);
    for (int64_t i = team.lane; i < n; i += team.lanes) w[i * n + i] += s.shift;
    LoadAll(team, s.b, number, n * k, x);
    const int64_t column = SolveSystem(team, n, k, w, x);
    if (column >= 0 && team.lane == 0) port.Raise(column, 0);
    StoreAll(team, x, n * k, s.out, number);
  }
}

OFL_KERNEL void FactorMatrices(Systems s) {
  const BlockTeam team;
  const int64_t m = s.rows, n = s.columns;
  double *w = s.space + blockIdx.x * s.each, *q = w + m * n, *tau = q + m * n;
  for (int64_t number = blockIdx.x; number < s.count; number += gridDim.x) {
    LoadAll(team, s.a, number, m * n, w);
    FactorQr(team, m, n, w, tau, q);
    StoreAll(team, q, m * n, s.out, number);
    for (int64_t i = team.lane; i < n * n; i += team.lanes)
      if (i % n < i / n) w[i] = 0;
    StoreAll(team, w, n * n, s.second, number);
  }
}

// What the operands have in common, with room for `each` doubles of as many blocks as there are matrices, or
// the work space has room for.
Status Prepare(const KernelContext& context, const LaunchContext& launch, const TensorArg& shaped,
               int64_t each, Systems* s, Grid* grid) {
  const TensorArg& a = context.in[0];
  const int rank = shaped.extent.rank();
  s->a = FloatsOf(a);
  s->rows = a.extent[a.extent.rank() - 2];
  s->columns = a.extent.back();
  s->out = FloatsOf(context.out[0]);
  const int64_t size = shaped.extent[rank - 2] * shaped.extent.back();
  s->count = size == 0 ? 0 : shaped.elements() / size;
  s->shift = context.spec.attrs.Float("shift", 0);
  s->upper = context.spec.attrs.Int("upper", 0) != 0;
  s->transposed = context.spec.attrs.Int("transposed", 0) != 0;
  s->space = static_cast<double*>(launch.workspace);
  s->each = each;
  *grid = {.x = 0, .threads = kSolveThreads};
  if (s->count == 0) return Status();
  const auto room = static_cast<int64_t>(launch.workspace_bytes / sizeof(double)) / each;
  if (room == 0)
    return Status(Cat("a matrix needs ", each * static_cast<int64_t>(sizeof(double)),
                      " bytes of work space, but a GPU's stream has ", launch.workspace_bytes,
                      "; use smaller matrices"));
  grid->x = BlocksFor(s->count < room ? s->count : room, 1, launch.multiprocessors);
  return Status();
}

Status RunCholesky(const KernelContext& context, const LaunchContext& launch) {
  Systems s;
  Grid grid;
  const int64_t n = context.in[0].extent.back();
  const Status status = Prepare(context, launch, context.in[0], n * n, &s, &grid);
  if (status.ok()) Launch(CholeskyMatrices, grid, launch.stream, s, FaultOf(launch, 0));
  return status;
}

// x with a matrix and right-hand sides; `own`: with a copy of the matrix.
Status PrepareSides(const KernelContext& context, const LaunchContext& launch, bool own, Systems* s,
                    Grid* grid) {
  const TensorArg &a = context.in[0], &b = context.in[1];
  const int64_t n = a.extent.back();
  s->b = FloatsOf(b);
  s->sides = b.extent.back();
  return Prepare(context, launch, b, n * s->sides + (own ? n * n : 0), s, grid);
}

Status RunTriangularSolve(const KernelContext& context, const LaunchContext& launch) {
  Systems s;
  Grid grid;
  const Status status = PrepareSides(context, launch, false, &s, &grid);
  if (status.ok()) Launch(SolveTriangles, grid, launch.stream, s);
  return status;
}

Status RunSolve(const KernelContext& context, const LaunchContext& launch) {
  Systems s;
  Grid grid;
  const Status status = PrepareSides(context, launch, true, &s, &grid);
  if (status.ok()) Launch(SolveSystems, grid, launch.stream, s, FaultOf(launch, 0));
  return status;
}

Status RunQr(const KernelContext& context, const LaunchContext& launch) {
  Systems s;
  Grid grid;
  const TensorArg& a = context.in[0];
  const int64_t n = a.extent.back(), size = a.extent[a.extent.rank() - 2] * n;
  s.second = FloatsOf(context.out[1]);
  const Status status = Prepare(context, launch, a, 2 * size + n, &s, &grid);
  if (status.ok()) Launch(FactorMatrices, grid, launch.stream, s);
  return status;
}

std::string NotDefinite(const Fault& fault) {
  return Cat("a matrix is not positive definite: pivot ", fault.value, " is not above 0");
}
std::string Singular(const Fault& fault) {
  return Cat("a matrix is singular: column ", fault.value, " has no pivot");
}

}  // namespace

void AddSolveKernels(KernelRegistry* registry) {
  registry->Add("cholesky", "cuda", MakeIndexKernel(RunCholesky, NotDefinite));
  registry->Add("triangular_solve", "cuda", MakeLaunchKernel(RunTriangularSolve));
  registry->Add("solve", "cuda", MakeIndexKernel(RunSolve, Singular));
  registry->Add("qr", "cuda", MakeLaunchKernel(RunQr));
}

}  // namespace oneflow_like::cuda
