// Products: matmul over the last two axes, and einsum of two operands, whose labels are its rule.
#include "ops/equation.h"
#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

void CheckProduct(const OpCall& call) {
  RequireInputs(call, 2);
  RequireFloating(call);
  RequireSameTypes(call);
}

// --- matmul ---

Status MatmulReference(const KernelContext& context) {
  const TensorArg &a = context.in[0], &b = context.in[1], &y = context.out[0];
  int ra = a.extent.rank(), rb = b.extent.rank();
  int64_t inner = a.extent.back();
  Dims a_row = a.extent, b_row = b.extent;  // index of the first element of the sum
  int64_t offset = 0;
  int64_t b_stride = b.extent[rb - 1];
  ForEachIndex(y.extent, [&](const Dims& at) {
    int ry = at.rank();
    for (int i = 0; i < ra - 2; ++i) a_row[i] = a.extent[i] == 1 ? 0 : at[ry - ra + i];
    for (int i = 0; i < rb - 2; ++i) b_row[i] = b.extent[i] == 1 ? 0 : at[ry - rb + i];
    a_row[ra - 2] = at[ry - 2];
    a_row[ra - 1] = 0;
    b_row[rb - 2] = 0;
    b_row[rb - 1] = at[ry - 1];
    int64_t a_at = OffsetOf(a.extent, a_row), b_at = OffsetOf(b.extent, b_row);
    double total = 0;
    for (int64_t k = 0; k < inner; ++k) total += LoadFloat(a, a_at + k) * LoadFloat(b, b_at + k * b_stride);
    StoreFloat(y, offset++, total);
  });
  return {};
}

// An operand of a matmul as an operand of an einsum: without the leading axes along which it is broadcast.
struct Labelled {
  Tensor tensor;
  std::string labels;
};

Labelled HeldAxes(Tensor x, const Dims& y, const std::string& last_two) {
  int rank = x.shape().rank(), missing = y.rank() - rank;
  Dims held;
  std::string labels;
  for (int axis = 0; axis < rank - 2; ++axis) {
    if (x.shape()[axis] != y[missing + axis]) continue;
    held.push_back(x.shape()[axis]);
    labels += static_cast<char>('a' + missing + axis);
  }
  held.push_back(x.shape()[rank - 2]);
  held.push_back(x.shape()[rank - 1]);
  return {held.rank() == rank ? x : reshape(x, held), labels + last_two};
}

// A product of a gradient; in fp32 (attribute "wide") where the product itself is.
Tensor GradientProduct(const Attrs& attrs, const std::string& equation, Tensor a, Tensor b) {
  if (!attrs.Has("wide")) return einsum(equation, a, b);
  return Apply(a.graph(), "einsum", {a, b}, {{"equation", equation}, {"wide", attrs.Int("wide")}})[0];
}

// Each gradient is one einsum: leading axes an operand does not hold are summed in it, not afterwards.
std::vector<Tensor> MatmulGrad(const GradCall& call) {
  Tensor dy = call.dout[0];
  std::string y_labels;
  for (int axis = 0; axis < dy.shape().rank() - 2; ++axis) y_labels += static_cast<char>('a' + axis);
  y_labels += "mn";
  Labelled a = HeldAxes(call.in[0], dy.shape(), "mk"), b = HeldAxes(call.in[1], dy.shape(), "kn");
  auto like = [](Tensor gradient, Tensor x) {
    return gradient.shape() == x.shape() ? gradient : reshape(gradient, x.shape());
  };
  std::vector<Tensor> din(2);
  if (call.wanted[0]) {
    din[0] = like(GradientProduct(call.attrs, y_labels + "," + b.labels + "->" + a.labels, dy, b.tensor),
                  call.in[0]);
  }
  if (call.wanted[1]) {
    din[1] = like(GradientProduct(call.attrs, a.labels + "," + y_labels + "->" + b.labels, a.tensor, dy),
                  call.in[1]);
  }
  return din;
}

// --- einsum ---

std::string EinsumAxes(const OpCall& call) {
  Equation e = EquationOf(call);
  return "a[" + Spaced(e.a) + "], b[" + Spaced(e.b) + "] -> y[" + Spaced(e.y) + "]";
}

Status EinsumReference(const KernelContext& context) {
  const TensorArg& y = context.out[0];
  Equation e = ParseEquation("einsum", context.spec.attrs.Str("equation"));
  const bool adds = Accumulates(context.spec.attrs) && context.time > 0;
  ForEachTotal(e, context.in[0], context.in[1], [&](int64_t offset, double total) {
    StoreFloat(y, offset, adds ? LoadFloat(y, offset) + total : total);
  });
  return {};
}

// The gradient of the operand x with labels `own`; `other` is the product's other operand. A label of x alone
// that the product sums over has the same gradient at each of its indices.
Tensor EinsumGradOf(const Attrs& attrs, Tensor x, const std::string& own, Tensor dy, const std::string& y,
                    Tensor other, const std::string& others) {
  std::string shared;
  Dims kept;
  for (size_t i = 0; i < own.size(); ++i) {
    bool has = HasLabel(y, own[i]) || HasLabel(others, own[i]);
    if (has) shared += own[i];
    kept.push_back(has ? x.shape()[i] : 1);
  }
  Tensor gradient = GradientProduct(attrs, y + "," + others + "->" + shared, dy, other);
  if (shared == own) return gradient;
  return broadcast_to(reshape(gradient, kept), x.shape());
}

std::vector<Tensor> EinsumGrad(const GradCall& call) {
  Equation e = ParseEquation("einsum", call.attrs.Str("equation"));
  std::vector<Tensor> din(2);
  if (call.wanted[0]) din[0] = EinsumGradOf(call.attrs, call.in[0], e.a, call.dout[0], e.y, call.in[1], e.b);
  if (call.wanted[1]) din[1] = EinsumGradOf(call.attrs, call.in[1], e.b, call.dout[0], e.y, call.in[0], e.a);
  return din;
}

Sample EinsumSample(const std::string& equation, const Dims& a, const Dims& b) {
  return {.in = {a, b}, .attrs = {{"equation", equation}}};
}

}  // namespace

void AddMatmul(Catalog* catalog) {
  catalog->Add({
      .name = "matmul",
      .doc = "Matrix product over the last two axes; leading axes broadcast.",
      .axes = "a[.. m k], b[.. k n] -> y[.. m n]",
      .folds = {{"k", Reduce::kSum}},
      .linear = {{"a"}, {"b"}},
      .check = CheckProduct,
      .grad = MatmulGrad,
      .category = "matmul",
      .flops = ProductFlops,
      .reference = MatmulReference,
      .cuda_unit = UnitOfProducts,
      .precision = Precision::kNarrow,
      .typed = true,
      .samples = {{.in = {{4, 6}, {6, 5}}},
                  {.in = {{3, 5, 7}, {3, 7, 2}}},
                  {.in = {{6, 3, 4, 5}, {5, 7}}},
                  {.in = {{2, 1, 3, 4}, {5, 4, 2}}},
                  {.in = {{5, 1}, {1, 3}}},
                  {.in = {{3, 0}, {0, 5}}}},
  });
  catalog->Add({
      .name = "einsum",
      .doc = "Product of two tensors with axes labelled by letters (\"bsw,whd->bshd\"); labels the output "
             "has not are "
             "summed.",
      .axes_of = EinsumAxes,
      .folds_of = [](const OpCall& call) { return SummedFolds(EquationOf(call)); },
      .linear = {{"a"}, {"b"}},
      .check =
          [](const OpCall& call) {
            CheckProduct(call);
            EquationOf(call);
          },
      .grad = EinsumGrad,
      .category = "matmul",
      .flops = ProductFlops,
      .reference = EinsumReference,
      .cuda_unit = UnitOfProducts,
      .precision = Precision::kNarrow,
      .typed = true,
      .accumulates = true,
      .samples = {EinsumSample("mk,kn->mn", {5, 7}, {7, 3}),
                  EinsumSample("bsw,whd->bshd", {2, 3, 5}, {5, 2, 4}),
                  EinsumSample("bsk,bsn->kn", {3, 5, 2}, {3, 5, 7}),
                  EinsumSample("bhst,bthd->bshd", {2, 3, 1, 5}, {2, 5, 3, 4}),
                  EinsumSample("abk,nk->bn", {3, 5, 2}, {7, 2}), EinsumSample("i,j->ij", {3}, {0}),
                  EinsumSample("ij,ij->", {3, 5}, {3, 5})},
  });
}

}  // namespace oneflow_like
