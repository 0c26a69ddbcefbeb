// Products together with what follows them: a bias, what is added to it, gelu and its slope, the sum that is
// the bias's gradient. compiler/passes/fuse_epilogue.cc makes them where a library does both in one kernel;
// nobody writes them, so they have no gradients.
#include "ops/equation.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

void CheckOperands(const OpCall& call, size_t count) {
  RequireInputs(call, count);
  RequireFloating(call);
  RequireSameTypes(call);
}

// --- linear: y = x w [+ b] [+ c], or gelu of that ---

bool Flag(const Attrs& attrs, const char* name) { return attrs.Int(name, 0) != 0; }

size_t LinearInputs(const Attrs& attrs) { return size_t{2} + Flag(attrs, "bias") + Flag(attrs, "residual"); }

// The labels of the bias: the last of y.
std::string BiasLabels(const OpCall& call, const Equation& e) {
  size_t rank = call.shapes[2].rank();
  if (rank > e.y.size()) {
    Fail(call.who, ": the bias has ", rank, " axes but the product only ", e.y.size());
  }
  return e.y.substr(e.y.size() - rank);
}

std::string LinearAxes(const OpCall& call) {
  RequireInputs(call, LinearInputs(*call.attrs));
  Equation e = EquationOf(call);
  std::string text = "x[" + Spaced(e.a) + "], w[" + Spaced(e.b) + "]";
  if (Flag(*call.attrs, "bias")) text += ", b[" + Spaced(BiasLabels(call, e)) + "]";
  const std::string result = "[" + Spaced(e.y) + "]";
  if (Flag(*call.attrs, "residual")) text += ", c" + result;
  text += " -> y" + result;
  if (Flag(*call.attrs, "pre")) text += ", pre" + result;
  return text;
}

Status LinearReference(const KernelContext& context) {
  const Attrs& attrs = context.spec.attrs;
  const TensorArg& y = context.out[0];
  const bool gelu = Flag(attrs, "gelu"), pre = Flag(attrs, "pre");
  const TensorArg* bias = Flag(attrs, "bias") ? &context.in[2] : nullptr;
  const TensorArg* residual = Flag(attrs, "residual") ? &context.in.back() : nullptr;
  const int64_t columns = bias ? bias->elements() : 1;
  Equation e = ParseEquation("linear", attrs.Str("equation"));
  ForEachTotal(e, context.in[0], context.in[1], [&](int64_t offset, double total) {
    if (bias) total += LoadFloat(*bias, offset % columns);
    if (residual) total += LoadFloat(*residual, offset);
    if (pre) StoreFloat(context.out[1], offset, total);
    StoreFloat(y, offset, gelu ? GeluOf(total) : total);
  });
  return {};
}

OpDef Linear() {
  OpDef def;
  def.name = "linear";
  def.doc =
      "Product with bias, and something of its shape, added; or gelu of that, and what it was taken of.";
  def.axes_of = LinearAxes;  // no folds: a bias is added once, to the whole sum
  def.check = [](const OpCall& call) {
    CheckOperands(call, LinearInputs(*call.attrs));
    EquationOf(call);
    if (Flag(*call.attrs, "pre") && !Flag(*call.attrs, "gelu"))
      Fail(call.who, ": pre is what gelu is taken of, but there is no gelu");
    if (Flag(*call.attrs, "gelu") && !Flag(*call.attrs, "bias"))
      Fail(call.who, ": gelu comes after a bias, but there is none");
  };
  def.category = "matmul";
  def.flops = ProductFlops;
  def.cuda_unit = UnitOfProducts;
  def.reference = LinearReference;
  auto attrs = [](const char* equation, int64_t bias, int64_t residual, int64_t gelu, int64_t pre) {
    return Attrs{{"equation", std::string(equation)},
                 {"bias", bias},
                 {"residual", residual},
                 {"gelu", gelu},
                 {"pre", pre}};
  };
  def.samples = {
      {.in = {{3, 5}, {5, 8}, {8}}, .attrs = attrs("mk,kn->mn", 1, 0, 1, 1)},
      {.in = {{2, 3, 5}, {5, 7}, {7}}, .attrs = attrs("amk,kn->amn", 1, 0, 1, 0)},
      {.in = {{2, 3, 5}, {5, 2, 4}, {2, 4}}, .attrs = attrs("bsw,whd->bshd", 1, 0, 0, 0)},
      {.in = {{2, 3, 2, 4}, {2, 4, 5}, {5}, {2, 3, 5}}, .attrs = attrs("bshd,hdw->bsw", 1, 1, 0, 0)},
      {.in = {{2, 3, 2, 4}, {5, 2, 4}, {2, 3, 5}}, .attrs = attrs("bshd,whd->bsw", 0, 1, 0, 0)},
      {.in = {{3, 0}, {0, 8}, {8}}, .attrs = attrs("mk,kn->mn", 1, 0, 1, 1)},
      {.in = {{4, 1, 6}, {6, 2}, {1, 2}}, .attrs = attrs("bmk,kn->bmn", 1, 0, 0, 0)}};
  return def;
}

// --- linear_grad_gelu: dx = (dy w) gelu'(pre) ---

OpDef LinearGradGelu() {
  OpDef def{.name = "linear_grad_gelu", .doc = "Product, times the derivative of gelu at pre."};
  def.axes_of = [](const OpCall& call) {
    Equation e = EquationOf(call);
    return "dy[" + Spaced(e.a) + "], w[" + Spaced(e.b) + "], pre[" + Spaced(e.y) + "] -> dx[" + Spaced(e.y) +
           "]";
  };
  def.folds_of = [](const OpCall& call) { return SummedFolds(EquationOf(call)); };
  def.linear = {{"dy"}, {"w"}};
  def.check = [](const OpCall& call) {
    CheckOperands(call, 3);
    EquationOf(call);
  };
  def.category = "matmul";
  def.flops = ProductFlops;
  def.cuda_unit = UnitOfProducts;
  def.reference = [](const KernelContext& context) {
    Equation e = ParseEquation("linear_grad_gelu", context.spec.attrs.Str("equation"));
    ForEachTotal(e, context.in[0], context.in[1], [&](int64_t offset, double total) {
      StoreFloat(context.out[0], offset, total * GeluSlopeOf(LoadFloat(context.in[2], offset)));
    });
    return Status();
  };
  def.samples = {
      {.in = {{3, 5}, {8, 5}, {3, 8}}, .attrs = {{"equation", std::string("mn,kn->mk")}}},
      {.in = {{2, 3, 5}, {7, 5}, {2, 3, 7}}, .attrs = {{"equation", std::string("amn,kn->amk")}}},
      {.in = {{2, 3, 5}, {2, 4, 5}, {2, 3, 2, 4}}, .attrs = {{"equation", std::string("bsw,hdw->bshd")}}},
      {.in = {{3, 0}, {8, 0}, {3, 8}}, .attrs = {{"equation", std::string("mn,kn->mk")}}}};
  return def;
}

// --- linear_grad_weight: dw = x^T dy, db = sum of dy ---

// The labels of db: the last ones of dw, as many as "bias_rank" says. The other labels of dy are summed, and
// no others: then dw and db are sums over the same things.
std::string BiasGradLabels(const OpCall& call, const Equation& e) {
  RequireAttr(call, "bias_rank");
  size_t rank = static_cast<size_t>(call.attrs->Int("bias_rank"));
  if (rank > e.y.size()) Fail(call.who, ": bias_rank is ", rank, " but dw has ", e.y.size(), " axes");
  std::string kept = e.y.substr(e.y.size() - rank);
  for (char label : e.b) {
    if (HasLabel(e.y, label) != HasLabel(kept, label))
      Fail(call.who, ": axis ", label, " of dy is one of dw but not of db");
  }
  for (char label : kept + e.Summed()) {
    if (!HasLabel(e.b, label)) Fail(call.who, ": axis ", label, " of the product is not one of dy");
  }
  return kept;
}

Status LinearGradWeightReference(const KernelContext& context) {
  const TensorArg &x = context.in[0], &dy = context.in[1], &dw = context.out[0], &db = context.out[1];
  Equation e = ParseEquation("linear_grad_weight", context.spec.attrs.Str("equation"));
  const bool adds = Accumulates(context.spec.attrs) && context.time > 0;
  ForEachTotal(e, x, dy, [&](int64_t offset, double total) {
    StoreFloat(dw, offset, adds ? LoadFloat(dw, offset) + total : total);
  });
  std::string kept = e.y.substr(e.y.size() - static_cast<size_t>(db.extent.rank()));
  const EquationWalk to = MakeWalk(kept, e, x, dy), summed = MakeWalk(e.Summed(), e, x, dy);
  int64_t offset = 0;
  ForEachIndex(to.extent, [&](const Dims& at) {
    double total = 0;
    ForEachIndex(summed.extent, [&](const Dims& k) {
      total += LoadFloat(dy, DotOf(at, to.b_stride) + DotOf(k, summed.b_stride));
    });
    StoreFloat(db, offset++, total);
  });
  return {};
}

OpDef LinearGradWeight() {
  OpDef def{.name = "linear_grad_weight",
            .doc = "The gradients of a weight and of a bias added to its product, both in one type."};
  def.axes_of = [](const OpCall& call) {
    RequireInputs(call, 2);
    Equation e = EquationOf(call);
    return "x[" + Spaced(e.a) + "], dy[" + Spaced(e.b) + "] -> dw[" + Spaced(e.y) + "], db[" +
           Spaced(BiasGradLabels(call, e)) + "]";
  };
  def.folds_of = [](const OpCall& call) { return SummedFolds(EquationOf(call)); };
  def.linear = {{"x", "dw"}, {"dy", "dw", "db"}};
  def.check = [](const OpCall& call) {
    CheckOperands(call, 2);
    BiasGradLabels(call, EquationOf(call));
    DType dtype;
    if (call.attrs->Has("dtype") && !ParseDType(call.attrs->Str("dtype"), &dtype))
      Fail(call.who, ": there is no type named \"", call.attrs->Str("dtype"), "\"");
  };
  def.dtypes = [](const OpCall& call) {
    DType dtype = call.dtypes[0];
    if (call.attrs->Has("dtype")) ParseDType(call.attrs->Str("dtype"), &dtype);
    return std::vector<DType>{dtype, dtype};
  };
  def.category = "matmul";
  def.accumulates = true;
  def.flops = ProductFlops;
  def.cuda_unit = UnitOfProducts;
  def.reference = LinearGradWeightReference;
  auto attrs = [](const char* equation, int64_t bias_rank) {
    return Attrs{{"equation", std::string(equation)}, {"bias_rank", bias_rank}};
  };
  def.samples = {{.in = {{5, 3}, {5, 8}}, .attrs = attrs("mk,mn->kn", 1)},
                 {.in = {{2, 3, 5}, {2, 3, 7}}, .attrs = attrs("amk,amn->kn", 1)},
                 {.in = {{2, 3, 5}, {2, 3, 2, 4}}, .attrs = attrs("bsw,bshd->whd", 2)},
                 {.in = {{2, 3, 2, 4}, {2, 3, 5}}, .attrs = attrs("bshd,bsw->hdw", 1)},
                 {.in = {{0, 3}, {0, 8}}, .attrs = attrs("mk,mn->kn", 1)}};
  Sample narrow = def.samples[1];
  narrow.dtypes = {DType::kBFloat16, DType::kBFloat16};
  narrow.attrs.Set("dtype", std::string("f32"));
  def.samples.push_back(narrow);
  return def;
}

}  // namespace

void AddLinear(Catalog* catalog) {
  catalog->Add(Linear());
  catalog->Add(LinearGradGelu());
  catalog->Add(LinearGradWeight());
}

}  // namespace oneflow_like
