// grouped_matmul: rows of x in runs, one for each expert, times that expert's matrix; and gradients. Rows
// know from counts, which are whole, whose they are, so every other axis may be cut: a rank that holds some
// experts gives their rows and zeros for the others. Rows may be of parts (p), each with counts of its own.
#include "ops/groups.h"
#include "ops/language/functional.h"
#include "ops/manifest.h"

namespace oneflow_like {
namespace {

// --- Reference kernels ---------------------------------------------------------------------------

// w is [e k m], or [e m k] if `transposed`.
Status GroupedMatmulOfPart(const KernelContext& context) {
  const TensorArg &x = context.in[0], &w = context.in[1], &counts = context.in[2], &y = context.out[0];
  Status checked = CheckCounts(counts, x.global[0]);
  if (!checked.ok()) return checked;
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
  Status checked = CheckCounts(counts, x.global[0]);
  if (!checked.ok()) return checked;
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
Status GroupedMatmulGradWeight(const KernelContext& context) {
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
  return call.shapes[0].rank() == 3 && call.shapes[input].rank() > rank ? "p " : "";
}

double GroupedFlops(const BoundRule& rule) {
  const auto parts = rule.extents.find("p");
  return 2.0 * rule.extents.at("n") * static_cast<double>(rule.extents.at("k")) * rule.extents.at("m") *
         static_cast<double>(parts == rule.extents.end() ? 1 : parts->second);
}

std::vector<Tensor> GroupedMatmulGrad(const GradCall& c) {
  GraphBuilder* graph = c.in[0].graph();
  Tensor x = c.in[0], w = c.in[1], counts = c.in[2], dy = c.dout[0];
  bool transposed = c.attrs.Int("transposed", 0) != 0;
  std::vector<Tensor> din(3);
  if (c.wanted[0])
    din[0] = Apply(graph, "grouped_matmul", {dy, w, counts}, {{"transposed", int64_t{!transposed}}})[0];
  if (c.wanted[1]) {
    Attrs experts = {{"experts", w.shape()[w.shape().rank() - 3]}};
    std::vector<Tensor> in =
        transposed ? std::vector<Tensor>{dy, x, counts} : std::vector<Tensor>{x, dy, counts};
    const bool of_parts = x.shape().rank() > w.shape().rank() - 1;
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
  if (c.wanted[0]) din[0] = Apply(graph, "grouped_matmul", {dy, dw, counts}, {{"transposed", int64_t{1}}})[0];
  if (c.wanted[1]) din[1] = Apply(graph, "grouped_matmul", {x, dw, counts}, {{"transposed", int64_t{0}}})[0];
  return din;
}

void AddProduct(Catalog* catalog) {
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  OpDef def;
  def.name = "grouped_matmul";
  def.doc = "Rows of x in runs, each times the matrix of its expert.";
  def.axes_of = [](const OpCall& call) {
    bool transposed = call.attrs->Int("transposed", 0) != 0;
    RequireInputs(call, 3);
    const std::string x = PartsLabel(call, 0, 2);
    return Cat("x[", x, "n k], w[", PartsLabel(call, 1, 3), transposed ? "e m k" : "e k m", "], counts[", x,
               "c] -> y[", x, "n m]");
  };
  def.folds = {{"k", Reduce::kSum}, {"e", Reduce::kSum}};
  def.whole = {"c"};
  def.linear = {{"x"}, {"w"}};
  def.check = [](const OpCall& call) {
    RequireInputs(call, 3);
    RequireFloating(call, 0);
    RequireFloating(call, 1);
    if (call.dtypes[0] != call.dtypes[1])
      Fail(call.who, ": x is ", Name(call.dtypes[0]), " but w is ", Name(call.dtypes[1]),
           "; cast one of them");
    const int rank = call.shapes[1].rank();
    if (rank >= 3) CheckCountsOperand(call, call.shapes[1][rank - 3]);
  };
  def.category = "matmul";
  def.flops = GroupedFlops;
  def.cuda_unit = OnPlainCores;
  def.grad = GroupedMatmulGrad;
  def.reference = GroupedMatmul;
  def.precision = Precision::kNarrow;
  def.typed = true;
  const Attrs plain, transposed = {{"transposed", int64_t{1}}};
  def.samples = {{{{9, 4}, {3, 4, 2}, {3}}, plain, {f, f, i}, 4},
                 {{{7, 2}, {3, 5, 2}, {3}}, transposed, {f, f, l}, 3},
                 {{{5, 3}, {1, 3, 4}, {1}}, plain, {f, f, l}, 6},
                 {{{3, 7, 2}, {2, 2, 4}, {3, 2}}, plain, {f, f, i}, 4},
                 {{{2, 5, 3}, {2, 2, 4, 3}, {2, 2}}, transposed, {f, f, l}, 3}};
  catalog->Add(std::move(def));
}

void AddGradWeight(Catalog* catalog) {
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  OpDef grad;
  grad.name = "grouped_matmul_grad_weight";
  grad.doc = "Gradient of grouped_matmul with respect to w: of every expert x^T dy over its rows.";
  grad.axes_of = [](const OpCall& call) {
    RequireInputs(call, 3);
    const std::string p = PartsLabel(call, 0, 2);
    return Cat("x[", p, "n k], dy[", p, "n m], counts[", p, "c] -> dw[", p, "e k m]");
  };
  grad.folds = {{"n", Reduce::kSum}};
  grad.whole = {"c"};
  grad.linear = {{"x"}, {"dy"}};
  grad.extents = [](const OpCall& call) {
    return std::map<std::string, int64_t>{{"e", call.attrs->Int("experts")}};
  };
  grad.check = [](const OpCall& call) {
    RequireInputs(call, 3);
    RequireFloating(call, 0);
    RequireFloating(call, 1);
    if (call.dtypes[0] != call.dtypes[1])
      Fail(call.who, ": x is ", Name(call.dtypes[0]), " but dy is ", Name(call.dtypes[1]),
           "; cast one of them");
    RequireAttr(call, "experts");
    CheckCountsOperand(call, call.attrs->Int("experts"));
  };
  grad.category = "matmul";
  grad.flops = GroupedFlops;
  grad.cuda_unit = OnPlainCores;
  grad.grad = GroupedMatmulGradWeightGrad;
  grad.reference = GroupedMatmulGradWeight;
  grad.precision = Precision::kNarrow;
  grad.typed = true;
  grad.samples = {{{{9, 4}, {9, 2}, {3}}, {{"experts", int64_t{3}}}, {f, f, i}, 4},
                  {{{5, 3}, {5, 4}, {1}}, {{"experts", int64_t{1}}}, {f, f, l}, 6},
                  {{{3, 7, 2}, {3, 7, 4}, {3, 2}}, {{"experts", int64_t{2}}}, {f, f, i}, 4}};
  catalog->Add(std::move(grad));
}

}  // namespace

void AddGroupedMatmul(Catalog* catalog) {
  AddProduct(catalog);
  AddGradWeight(catalog);
}

}  // namespace oneflow_like
