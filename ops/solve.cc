// cholesky, triangular_solve, solve and qr of matrices in the last two axes; those before them are batches,
// which may be cut, as may the columns of right-hand sides. The algorithms are in ops/solve.h; matrices are
// shared among threads. Gradients: Giles 2008, Murray 2016, Walter and Lehmann 2012 (qr).
#include "ops/solve.h"

#include <algorithm>
#include <atomic>

#include "core/device/parallel_for.h"
#include "core/device/scratch.h"
#include "ops/language/calls.h"
#include "ops/language/expressions.h"
#include "ops/language/sparse.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

// A matrix of an operand.
struct MatrixPart {
  const TensorArg& arg;
  int64_t first, columns;
  bool turned = false;

  MatrixPart(const TensorArg& arg, int64_t number, bool turned = false)
      : arg(arg), columns(arg.extent.back()), turned(turned) {
    first = number * columns * arg.extent[arg.extent.rank() - 2];
  }
  double operator()(int64_t i, int64_t j) const {
    return LoadFloat(arg, first + (turned ? j * columns + i : i * columns + j));
  }
  void CopyTo(double* to, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) to[i] = LoadFloat(arg, first + i);
  }
};

void StoreMatrix(const TensorArg& to, int64_t number, const double* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) StoreFloat(to, number * count + i, from[i]);
}

int64_t RowsOfMatrix(const TensorArg& arg) { return arg.extent[arg.extent.rank() - 2]; }
int64_t ColumnsOfMatrix(const TensorArg& arg) { return arg.extent.back(); }
int64_t Matrices(const TensorArg& arg) {
  const int64_t each = RowsOfMatrix(arg) * ColumnsOfMatrix(arg);
  return each == 0 ? 0 : arg.elements() / each;
}

// Doubles of scratch for one matrix, by operator.
int64_t CholeskyRoom(const KernelSpec& s) { return RowsOfMatrix(s.in[0]) * ColumnsOfMatrix(s.in[0]); }
int64_t TriangularRoom(const KernelSpec& s) { return RowsOfMatrix(s.in[1]) * ColumnsOfMatrix(s.in[1]); }
int64_t SolveRoom(const KernelSpec& s) { return CholeskyRoom(s) + TriangularRoom(s); }
int64_t QrRoom(const KernelSpec& s) { return 2 * CholeskyRoom(s) + ColumnsOfMatrix(s.in[0]); }

template <int64_t (*room)(const KernelSpec&)>
int64_t MatrixScratch(const KernelSpec& spec) {
  Scratch scratch;
  if (Matrices(spec.in.back()) == 0) return 0;
  for (int range = 0; range < spec.threads; ++range) scratch.Take<double>(room(spec));
  return scratch.bytes();
}

// f(number, scratch) of every matrix, side by side; it returns a column where it fails, or -1. Returns that
// of the first matrix that fails.
template <int64_t (*room)(const KernelSpec&), typename F>
int64_t ForMatrices(const KernelContext& context, const TensorArg& shaped, F&& f) {
  const int64_t count = Matrices(shaped);
  std::atomic<int64_t> failed = -1;
  std::atomic<int64_t> first = count;
  ParallelForParts(count, 1, context.spec.threads, [&](int64_t begin, int64_t end, int range) {
    Scratch scratch(context.scratch);
    double* own = nullptr;
    for (int r = 0; r <= range; ++r) own = scratch.Take<double>(room(context.spec));
    for (int64_t number = begin; number < end; ++number) {
      const int64_t column = f(number, own);
      if (column < 0) continue;
      int64_t known = first.load();
      while (number < known && !first.compare_exchange_weak(known, number)) {
      }
      if (number < known) failed = column;
      return;
    }
  });
  return failed;
}

// --- Reference kernels ---------------------------------------------------------------------------

Status CholeskyReference(const KernelContext& context) {
  const TensorArg &a = context.in[0], &l = context.out[0];
  const int64_t n = ColumnsOfMatrix(a);
  const double shift = context.spec.attrs.Float("shift");
  const int64_t failed = ForMatrices<CholeskyRoom>(context, a, [&](int64_t number, double* w) {
    const int64_t pivot = CholeskyFactor(OneLane(), n, MatrixPart(a, number), shift, w);
    for (int64_t i = 0; i < n; ++i) std::fill(w + i * n + i + 1, w + (i + 1) * n, 0.0);
    if (pivot < 0) StoreMatrix(l, number, w, n * n);
    return pivot;
  });
  if (failed < 0) return Status();
  return Status(Cat("a matrix is not positive definite: pivot ", failed, " is not above 0"));
}

Status TriangularReference(const KernelContext& context) {
  const TensorArg &t = context.in[0], &b = context.in[1];
  const int64_t n = RowsOfMatrix(b), k = ColumnsOfMatrix(b);
  const bool turned = context.spec.attrs.Int("transposed") != 0,
             lower = (context.spec.attrs.Int("upper") != 0) == turned;
  ForMatrices<TriangularRoom>(context, b, [&](int64_t number, double* x) {
    MatrixPart(b, number).CopyTo(x, n * k);
    SolveTriangle(OneLane(), n, k, MatrixPart(t, number, turned), lower, x);
    StoreMatrix(context.out[0], number, x, n * k);
    return int64_t{-1};
  });
  return Status();
}

Status SolveReference(const KernelContext& context) {
  const TensorArg &a = context.in[0], &b = context.in[1];
  const int64_t n = RowsOfMatrix(b), k = ColumnsOfMatrix(b);
  const double shift = context.spec.attrs.Float("shift");
  const int64_t failed = ForMatrices<SolveRoom>(context, b, [&](int64_t number, double* w) {
    double* x = w + n * n;
    MatrixPart(a, number).CopyTo(w, n * n);
    for (int64_t i = 0; i < n; ++i) w[i * n + i] += shift;
    MatrixPart(b, number).CopyTo(x, n * k);
    const int64_t column = SolveSystem(OneLane(), n, k, w, x);
    if (column < 0) StoreMatrix(context.out[0], number, x, n * k);
    return column;
  });
  if (failed < 0) return Status();
  return Status(Cat("a matrix is singular: column ", failed, " has no pivot"));
}

Status QrReference(const KernelContext& context) {
  const TensorArg& a = context.in[0];
  const int64_t m = RowsOfMatrix(a), n = ColumnsOfMatrix(a);
  ForMatrices<QrRoom>(context, a, [&](int64_t number, double* w) {
    double *q = w + m * n, *tau = q + m * n;
    MatrixPart(a, number).CopyTo(w, m * n);
    FactorQr(OneLane(), m, n, w, tau, q);
    StoreMatrix(context.out[0], number, q, m * n);
    for (int64_t i = 0; i < n; ++i) std::fill_n(w + i * n, i, 0.0);
    StoreMatrix(context.out[1], number, w, n * n);
    return int64_t{-1};
  });
  return Status();
}

// --- Gradients -----------------------------------------------------------------------------------

// In fp32, in mixed precision, too.
Tensor WideProduct(Tensor a, Tensor b) {
  return Apply(a.graph(), "matmul", {a, b}, {{"wide", int64_t{1}}})[0];
}

Tensor Turned(Tensor a) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < a.shape().rank(); ++i) order.push_back(i);
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  return transpose(a, order);
}

Tensor SolvedTriangle(Tensor t, Tensor b, bool upper, bool transposed) {
  return Apply(t.graph(), "triangular_solve", {t, b},
               {{"upper", int64_t{upper}}, {"transposed", int64_t{transposed}}})[0];
}

// l^-T p l^-1, made symmetric; p is l^T dl on and below the diagonal, which is halved.
std::vector<Tensor> CholeskyGrad(const GradCall& c) {
  Tensor l = c.out[0], p = WideProduct(Turned(l), c.dout[0]);
  p = scale(add(tril(p), tril(p, -1)), 0.5);
  Tensor half = Turned(SolvedTriangle(l, p, false, true));
  Tensor da = SolvedTriangle(l, half, false, true);
  return {scale(add(da, Turned(da)), 0.5)};
}

std::vector<Tensor> TriangularGrad(const GradCall& c) {
  const bool upper = c.attrs.Int("upper") != 0, transposed = c.attrs.Int("transposed") != 0;
  Tensor x = c.out[0], db = SolvedTriangle(c.in[0], c.dout[0], upper, !transposed), dt;
  if (c.wanted[0]) {
    dt = neg(transposed ? WideProduct(x, Turned(db)) : WideProduct(db, Turned(x)));
    dt = upper ? triu(dt) : tril(dt);
  }
  return {dt, db};
}

std::vector<Tensor> SolveGrad(const GradCall& c) {
  Tensor db = Apply(c.in[0].graph(), "solve", {Turned(c.in[0]), c.dout[0]}, c.attrs)[0];
  return {c.wanted[0] ? neg(WideProduct(db, Turned(c.out[0]))) : Tensor(), db};
}

// (dq + q m) r^-T, where m is r dr^T - dq^T q on and below the diagonal and its mirror image above it.
std::vector<Tensor> QrGrad(const GradCall& c) {
  Tensor q = c.out[0], r = c.out[1], dq = c.dout[0], dr = c.dout[1], m;
  if (dr.defined()) m = WideProduct(r, Turned(dr));
  if (dq.defined()) {
    Tensor turns = WideProduct(Turned(dq), q);
    m = m.defined() ? sub(m, turns) : neg(turns);
  }
  Tensor along = WideProduct(q, add(tril(m), Turned(tril(m, -1))));
  if (dq.defined()) along = add(dq, along);
  return {Turned(SolvedTriangle(r, Turned(along), true, false))};
}

// --- Entries -------------------------------------------------------------------------------------

void CheckMatrices(const OpCall& call, size_t inputs) {
  RequireInputs(call, inputs);
  for (size_t i = 0; i < inputs; ++i) {
    RequireFloating(call, i);
    if (call.shapes[i].rank() < 2)
      Fail(call.who, ": ", OperandName(call.op, i), " is ", call.shapes[i].str(),
           " but needs at least 2 axes, rows and columns");
  }
}

// A square matrix, and a right-hand side of the same batches and rows.
void CheckSquare(const OpCall& call, size_t inputs) {
  CheckMatrices(call, inputs);
  const Dims& a = call.shapes[0];
  if (a.back() != a[a.rank() - 2])
    Fail(call.who, ": ", OperandName(call.op, 0), " is ", a.str(), " but must be square: it has ",
         a[a.rank() - 2], " rows and ", a.back(), " columns");
  if (inputs < 2) return;
  RequireSameTypes(call);
  const Dims& b = call.shapes[1];
  if (b.rank() != a.rank() || Dims(a.begin(), a.end() - 1) != Dims(b.begin(), b.end() - 1))
    Fail(call.who, ": b is ", b.str(), " but must have the batches and rows of ", OperandName(call.op, 0),
         ' ', a.str());
}

void CheckShift(const OpCall& call, size_t inputs) {
  RequireAttr(call, "shift");
  CheckSquare(call, inputs);
}

double Cubed(const BoundRule& rule) {  // of the first operand, and its right-hand side
  double work = 0;
  const double n = static_cast<double>(rule.in[0].shape.back());
  for (const BoundRule::Operand& in : rule.in) work += static_cast<double>(in.shape.elements()) * n;
  return work;
}

}  // namespace

void AddSolve(Catalog* catalog) {
  const auto shifted = [](double shift) { return Attrs{{"shift", shift}}; };
  const auto triangle = [](int64_t upper, int64_t transposed) {
    return Attrs{{"upper", upper}, {"transposed", transposed}};
  };
  catalog->Add({
      .name = "cholesky",
      .doc = "The lower triangular l with l l^T = (a + a^T) / 2 + shift I.",
      .axes = "a[.. m n] -> l[.. m n]",
      .whole = {"m", "n"},
      .check = [](const OpCall& call) { CheckShift(call, 1); },
      .grad = CholeskyGrad,
      .flops = Cubed,
      .reference = CholeskyReference,
      .scratch = MatrixScratch<CholeskyRoom>,
      .cuda_unit = OnPlainCores,
      .samples = {{.in = {{5, 5}}, .attrs = shifted(8)},
                  {.in = {{3, 2, 4, 4}}, .attrs = shifted(8)},
                  {.in = {{6, 1, 1}}, .attrs = shifted(8)}},
  });
  catalog->Add({
      .name = "triangular_solve",
      .doc = "x with t x = b, or t^T x = b; of t only the lower, or upper, triangle counts.",
      .axes = "t[.. m n], b[.. m k] -> x[.. n k]",
      .linear = {{"b"}},
      .whole = {"m", "n"},
      .check =
          [](const OpCall& call) {
            CheckSquare(call, 2);
            RequireAttr(call, "upper");
            RequireAttr(call, "transposed");
          },
      .grad = TriangularGrad,
      .flops = Cubed,
      .reference = TriangularReference,
      .scratch = MatrixScratch<TriangularRoom>,
      .cuda_unit = OnPlainCores,
      .samples = {{.in = {{4, 4}, {4, 3}}, .attrs = triangle(0, 0), .low = 1, .high = 2},
                  {.in = {{3, 4, 4}, {3, 4, 5}}, .attrs = triangle(1, 0), .low = 1, .high = 2},
                  {.in = {{3, 2, 4, 4}, {3, 2, 4, 1}}, .attrs = triangle(0, 1), .low = 1, .high = 2},
                  {.in = {{2, 3, 3}, {2, 3, 5}}, .attrs = triangle(1, 1), .low = 1, .high = 2}},
  });
  catalog->Add({
      .name = "solve",
      .doc = "x with (a + shift I) x = b.",
      .axes = "a[.. m n], b[.. m k] -> x[.. n k]",
      .linear = {{"b"}},
      .whole = {"m", "n"},
      .check = [](const OpCall& call) { CheckShift(call, 2); },
      .grad = SolveGrad,
      .flops = Cubed,
      .reference = SolveReference,
      .scratch = MatrixScratch<SolveRoom>,
      .cuda_unit = OnPlainCores,
      .samples = {{.in = {{5, 5}, {5, 3}}, .attrs = shifted(6)},
                  {.in = {{3, 2, 4, 4}, {3, 2, 4, 5}}, .attrs = shifted(6)},
                  {.in = {{6, 3, 3}, {6, 3, 1}}, .attrs = shifted(-6)}},
  });
  catalog->Add({
      .name = "qr",
      .doc =
          "q with orthonormal columns and upper triangular r, q r = a, of matrices at least as high as wide.",
      .axes = "a[.. m n] -> q[.. m n], r[.. k n]",
      .whole = {"m", "n", "k"},
      .extents =
          [](const OpCall& call) {
            return std::map<std::string, int64_t>{{"k", call.shapes[0].back()}};
          },
      .dtypes = ResultTypes({0, 0}),
      .check =
          [](const OpCall& call) {
            CheckMatrices(call, 1);
            const Dims& a = call.shapes[0];
            if (a[a.rank() - 2] < a.back())
              Fail(call.who, ": a is ", a.str(), " but must have at least as many rows, ", a[a.rank() - 2],
                   ", as columns, ", a.back());
          },
      .grad = QrGrad,
      .flops = [](const BoundRule& rule) { return 4 * Cubed(rule); },
      .reference = QrReference,
      .scratch = MatrixScratch<QrRoom>,
      .cuda_unit = OnPlainCores,
      .samples = {{.in = {{6, 3}}}, {.in = {{3, 2, 5, 2}}}, {.in = {{4, 7, 3}}}},
  });
}

}  // namespace oneflow_like
