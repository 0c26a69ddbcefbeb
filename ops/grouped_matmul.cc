// grouped_matmul: rows of x in runs, one for each expert, times that expert's matrix; and gradients. Rows
// know from counts, which are whole, whose they are, so every other axis may be cut: a rank that holds some
// experts gives their rows and zeros for the others. Rows may be of parts (p), each with counts of its own;
// and of ranks with experts of their own (r), each with parts.
#include "ops/groups.h"
#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/tf32.h"

namespace oneflow_like {
namespace {

// --- Reference kernels ---------------------------------------------------------------------------

// w is [e k m], or [e m k] if `transposed`.
Status GroupedMatmulOfPart(const KernelContext& context) {
  const TensorArg &x = context.in[0], &w = context.in[1], &counts = context.in[2], &y = context.out[0];
  if (Status checked = CheckCounts(counts, x.global[0]); !checked.ok()) return checked;
  bool transposed = context.spec.attrs.Int("transposed", 0) != 0;
  int64_t k = x.extent[1], m = y.extent[1];
  for (int64_t i = 0; i < y.elements(); ++i) StoreFloat(y, i, 0);
  ForGroups(counts, x, w.begin[0], w.extent[0], [&](int64_t e, int64_t begin, int64_t end) {
    for (int64_t i = begin * m; i < end * m; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < k; ++j) {
        int64_t at = transposed ? (e * m + i % m) * k + j : (e * k + j) * m + i % m;
        sum += LoadFloat(x, i / m * k + j) * LoadFloat(w, at);
      }
      StoreFloat(y, i, sum);
    }
  });
  return Status();
}

Status GradWeightOfPart(const KernelContext& context) {
  const TensorArg &x = context.in[0], &dy = context.in[1], &counts = context.in[2], &dw = context.out[0];
  if (Status checked = CheckCounts(counts, x.global[0]); !checked.ok()) return checked;
  int64_t k = x.extent[1], m = dy.extent[1];
  ForGroups(counts, x, dw.begin[0], dw.extent[0], [&](int64_t e, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < k * m; ++i) {
      double sum = 0;
      for (int64_t row = begin; row < end; ++row)
        sum += LoadFloat(x, row * k + i / m) * LoadFloat(dy, row * m + i % m);
      StoreFloat(dw, e * k * m + i, sum);
    }
  });
  return Status();
}

Status GroupedMatmul(const KernelContext& context) {
  return ForEachPart(context, kGroupedRanks, GroupedMatmulOfPart);
}
// x[r p n k], dy[r p n m] -> dw[r e k m], a sum over parts.
Status GradWeightOfRanks(const KernelContext& context) {
  const TensorArg &x = context.in[0], &dy = context.in[1], &counts = context.in[2], &dw = context.out[0];
  const int64_t parts = x.extent[1], rows = x.extent[2], k = x.extent[3], m = dy.extent[3],
                experts = dw.extent[1];
  for (int64_t r = 0; r < dw.extent[0]; ++r)
    for (int64_t part = 0; part < parts; ++part)
      if (Status s = CheckCounts(PartOf(PartOf(counts, r), part), x.global[2]); !s.ok()) return s;
  for (int64_t i = 0; i < dw.elements(); ++i) {
    const int64_t r = i / (experts * k * m), e = i / (k * m) % experts, row_of_w = i / m % k, column = i % m;
    double sum = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t at = r * parts + part;
      const TensorArg one = PartOf(PartOf(x, r), part);
      ForGroups(PartOf(PartOf(counts, r), part), one, dw.begin[1] + e, 1,
                [&](int64_t, int64_t begin, int64_t end) {
                  for (int64_t row = begin; row < end; ++row)
                    sum += LoadFloat(x, (at * rows + row) * k + row_of_w) *
                           LoadFloat(dy, (at * rows + row) * m + column);
                });
    }
    StoreFloat(dw, i, sum);
  }
  return Status();
}

Status GroupedMatmulGradWeight(const KernelContext& context) {
  if (context.in[0].global.rank() == 4) return GradWeightOfRanks(context);
  return ForEachPart(context, kGroupedWeightRanks, GradWeightOfPart);
}

// --- Rules: "c" is the axis of counts, as long as "e", that is never cut ---

void CheckCountsOperand(const OpCall& call, int64_t experts) {
  RequireInteger(call, 2);
  const Dims& counts = call.shapes[2];
  if (counts.rank() > 0 && counts.back() != experts)
    Fail(call.who, ": axis e is ", experts, " in w but ", counts.back(), " in counts");
}

// "p " of an operand that is of parts, if the call has parts: then x has three axes.
std::string PartsLabel(const OpCall& call, size_t input, int rank) {
  if (call.shapes[0].rank() == 4) return "r p ";
  return call.shapes[0].rank() == 3 && call.shapes[input].rank() > rank ? "p " : "";
}

// Of all rows, or of those that are expected to be in a run: attribute "share".
std::function<double(const BoundRule&)> GroupedFlops(const Attrs& attrs) {
  return [share = attrs.Float("share", 1)](const BoundRule& rule) {
    double flops = 2.0 * share * static_cast<double>(rule.extents.at("n")) *
                   static_cast<double>(rule.extents.at("k")) * static_cast<double>(rule.extents.at("m"));
    for (const char* label : {"r", "p"})
      if (const auto parts = rule.extents.find(label); parts != rule.extents.end())
        flops *= static_cast<double>(parts->second);
    return flops;
  };
}

// 16-bit operands: ops/cuda/product_tile.h, which has no TF32.
ComputeUnit UnitOfGrouped(const KernelSpec& spec) {
  KernelSpec whole = spec;
  whole.attrs.Set(kTf32, int64_t{0});
  ComputeUnit unit = UnitOfProducts(whole);
  if (unit.kind == ComputeUnit::Kind::kLibrary) unit.kind = ComputeUnit::Kind::kTile;
  return unit;
}

Attrs WithShare(const GradCall& c, Attrs attrs) {
  if (c.attrs.Has("share")) attrs.Set("share", c.attrs.Float("share"));
  return attrs;
}

std::vector<Tensor> GroupedMatmulGrad(const GradCall& c) {
  GraphBuilder* graph = c.in[0].graph();
  Tensor x = c.in[0], w = c.in[1], counts = c.in[2], dy = c.dout[0];
  bool transposed = c.attrs.Int("transposed", 0) != 0;
  std::vector<Tensor> din(3);
  if (c.wanted[0])
    din[0] = Apply(graph, "grouped_matmul", {dy, w, counts},
                   WithShare(c, {{"transposed", int64_t{!transposed}}}))[0];
  if (c.wanted[1]) {
    const Attrs experts = WithShare(c, {{"experts", w.shape()[w.shape().rank() - 3]}});
    std::vector<Tensor> in =
        transposed ? std::vector<Tensor>{dy, x, counts} : std::vector<Tensor>{x, dy, counts};
    const bool of_parts = x.shape().rank() == 3 && w.shape().rank() == 3;
    din[1] = Apply(graph, "grouped_matmul_grad_weight", in, experts)[0];
    if (of_parts) din[1] = sum(din[1], {0});
  }
  return din;
}

// dw is linear in x and in dy: their gradients are products with its own.
std::vector<Tensor> GroupedMatmulGradWeightGrad(const GradCall& c) {
  GraphBuilder* graph = c.in[0].graph();
  Tensor x = c.in[0], dy = c.in[1], counts = c.in[2], dw = c.dout[0];
  std::vector<Tensor> din(3);
  if (c.wanted[0])
    din[0] = Apply(graph, "grouped_matmul", {dy, dw, counts}, WithShare(c, {{"transposed", int64_t{1}}}))[0];
  if (c.wanted[1])
    din[1] = Apply(graph, "grouped_matmul", {x, dw, counts}, WithShare(c, {{"transposed", int64_t{0}}}))[0];
  return din;
}

void AddProduct(Catalog* catalog) {
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  OpDef def{.name = "grouped_matmul", .doc = "Rows of x in runs, each times the matrix of its expert."};
  def.axes_of = [](const OpCall& call) {
    bool transposed = call.attrs->Int("transposed", 0) != 0;
    RequireInputs(call, 3);
    const std::string x = PartsLabel(call, 0, 2), w = x == "r p " ? "r " : PartsLabel(call, 1, 3);
    return Cat("x[", x, "n k], w[", w, transposed ? "e m k" : "e k m", "], counts[", x, "c] -> y[", x,
               "n m]");
  };
  def.folds = {{"k", Reduce::kSum}, {"e", Reduce::kSum}};
  def.whole = {"c"};
  def.linear = {{"x"}, {"w"}};
  def.check = [](const OpCall& call) {
    RequireInputs(call, 3);
    RequireFloating(call, 0);
    RequireFloating(call, 1);
    RequireSameTypes(call, 0, 1);
    const double share = call.attrs->Float("share", 1);
    if (!(share > 0 && share <= 1)) Fail(call.who, ": share is ", share, " but must be above 0, at most 1");
    const int rank = call.shapes[1].rank();
    if (rank >= 3) CheckCountsOperand(call, call.shapes[1][rank - 3]);
  };
  def.category = "matmul";
  def.flops_of = GroupedFlops;
  def.cuda_unit = UnitOfGrouped;
  def.grad = GroupedMatmulGrad;
  def.reference = GroupedMatmul;
  def.precision = Precision::kNarrow;
  def.typed = true;
  const Attrs plain, transposed = {{"transposed", int64_t{1}}};
  def.samples = {{{{9, 4}, {3, 4, 2}, {3}}, plain, {f, f, i}, 4},
                 {{{7, 2}, {3, 5, 2}, {3}}, transposed, {f, f, l}, 3},
                 {{{5, 3}, {1, 3, 4}, {1}}, plain, {f, f, l}, 6},
                 {{{3, 7, 2}, {2, 2, 4}, {3, 2}}, plain, {f, f, i}, 4},
                 {{{2, 5, 3}, {2, 2, 4, 3}, {2, 2}}, transposed, {f, f, l}, 3},
                 {{{2, 3, 5, 3}, {2, 2, 3, 4}, {2, 3, 2}}, plain, {f, f, i}, 3},
                 {{{3, 1, 4, 2}, {3, 1, 5, 2}, {3, 1, 1}}, transposed, {f, f, i}, 5}};
  catalog->Add(std::move(def));
}

void AddGradWeight(Catalog* catalog) {
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  OpDef grad{.name = "grouped_matmul_grad_weight",
             .doc = "Gradient of grouped_matmul with respect to w: of every expert x^T dy over its rows."};
  grad.axes_of = [](const OpCall& call) {
    RequireInputs(call, 3);
    const std::string p = PartsLabel(call, 0, 2);
    const bool ranks = p == "r p ";
    return Cat("x[", p, "n k], dy[", p, "n m], counts[", p, "c] -> dw[", ranks ? "r " : p, "e k m]");
  };
  grad.folds_of = [](const OpCall& call) {
    std::map<std::string, Reduce> sums = {{"n", Reduce::kSum}};
    if (call.shapes.size() == 3 && PartsLabel(call, 0, 2) == "r p ") sums["p"] = Reduce::kSum;
    return sums;
  };
  grad.whole = {"c"};
  grad.linear = {{"x"}, {"dy"}};
  grad.extents = [](const OpCall& call) {
    return std::map<std::string, int64_t>{{"e", call.attrs->Int("experts")}};
  };
  grad.check = [](const OpCall& call) {
    RequireInputs(call, 3);
    RequireFloating(call, 0);
    RequireFloating(call, 1);
    RequireSameTypes(call, 0, 1);
    RequireAttr(call, "experts");
    CheckCountsOperand(call, call.attrs->Int("experts"));
  };
  grad.category = "matmul";
  grad.flops_of = GroupedFlops;
  grad.cuda_unit = UnitOfGrouped;
  grad.grad = GroupedMatmulGradWeightGrad;
  grad.reference = GroupedMatmulGradWeight;
  grad.precision = Precision::kNarrow;
  grad.typed = true;
  grad.samples = {{{{9, 4}, {9, 2}, {3}}, {{"experts", int64_t{3}}}, {f, f, i}, 4},
                  {{{5, 3}, {5, 4}, {1}}, {{"experts", int64_t{1}}}, {f, f, l}, 6},
                  {{{3, 7, 2}, {3, 7, 4}, {3, 2}}, {{"experts", int64_t{2}}}, {f, f, i}, 4},
                  {{{2, 3, 5, 3}, {2, 3, 5, 4}, {2, 3, 2}}, {{"experts", int64_t{2}}}, {f, f, i}, 3}};
  catalog->Add(std::move(grad));
}

}  // namespace

void AddGroupedMatmul(Catalog* catalog) {
  AddProduct(catalog);
  AddGradWeight(catalog);
}

}  // namespace oneflow_like
