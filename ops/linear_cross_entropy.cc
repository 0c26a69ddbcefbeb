// linear_cross_entropy: cross_entropy of logits x w^T of which only a tile of rows exists at a time. The
// gradient makes them again, tile by tile. Where classes are cut, each rank has the statistics of its blocks
// of classes, which are combined as for cross_entropy.
#include <algorithm>
#include <utility>

#include "ops/class_blocks.h"
#include "ops/language/calls.h"
#include "ops/language/functional.h"
#include "ops/logit_tiles.h"
#include "ops/manifest.h"
#include "ops/statistics.h"

namespace oneflow_like {
namespace {

class HostTiles : public Kernel, TileDevice {
 public:
  HostTiles(const KernelSpec& spec, const InnerKernels& kernels) : tiles_(spec, kernels) {}
  Status Run(const KernelContext& context) override { return tiles_.Run(context, this); }

 private:
  Status Run(Kernel* kernel, const KernelContext& context, bool adds) override {
    if (!adds) return kernel->Run(context);
    return kernel->Run({context.spec, context.in, context.out, context.scratch, context.step,
                        /*time=*/std::max<int64_t>(1, context.time), context.times, context.seed});
  }

  LogitTiles tiles_;
};

// x[.. k], w[c k] of one type; the others have the shape of x without its hidden axis.
void CheckHead(const OpCall& call, size_t inputs) {
  RequireInputs(call, inputs);
  RequireFloating(call, 0);
  RequireFloating(call, 1);
  RequireInteger(call, 2);
  RequireAttr(call, "tile");
  if (call.attrs->Int("tile") < 1)
    Fail(call.who, ": tile is ", call.attrs->Int("tile"), " rows but must be at least 1");
  const Dims &x = call.shapes[0], &w = call.shapes[1];
  RequireSameTypes(call, 0, 1);
  if (x.rank() == 0) Fail(call.who, ": x has no axes but needs a hidden one");
  if (w.rank() != 2)
    Fail(call.who, ": w is ", w.str(), " but must have 2 axes, of classes and the hidden one");
  if (w[1] != x.back())
    Fail(call.who, ": the last axis of x ", x.str(), " is ", x.back(), " but that of w ", w.str(), " is ",
         w[1]);
  const Dims rows(x.begin(), x.end() - 1);
  for (size_t i = 2; i < inputs; ++i) {
    if (i > 2) RequireFloating(call, i);
    if (call.shapes[i] != rows)
      Fail(call.who, ": ", OperandName(call.op, i), " is ", call.shapes[i].str(), " but x ", x.str(),
           " without its hidden axis is ", rows.str());
  }
  if (w[0] == 0) Fail(call.who, ": w ", w.str(), " has 0 classes");
}

void CheckHeadLoss(const OpCall& call) { CheckHead(call, 3); }

void CheckHeadGradient(const OpCall& call) {
  CheckHead(call, call.shapes.size() > 5 ? 6 : 5);
  if (call.attrs->Int("dw", 0) == 0 && call.attrs->Int("dx", 0) == 0)
    Fail(call.who, ": attributes \"dw\" and \"dx\" ask for no gradient");
}

std::vector<Tensor> ExpandLinearCrossEntropy(const Attrs& attrs, const std::vector<Tensor>& in) {
  return LossOfStatistics(Apply(in[0].graph(), "linear_class_statistics", in, attrs), in[2]);
}

std::vector<Tensor> LinearCrossEntropyGrad(const GradCall& call) {
  Tensor x = call.in[0], w = call.in[1];
  std::vector<Tensor> din(3), in = {x, w, call.in[2], call.out[1]};
  if (!call.wanted[0] && !call.wanted[1]) return din;
  AddLossGradients(call, &in);
  Attrs attrs = {{"tile", call.attrs.Int("tile")}};
  for (const auto& [name, operand] : {std::pair("dw", 1), std::pair("dx", 0)})
    if (call.wanted[operand]) attrs.Set(name, int64_t{1});
  const std::vector<Tensor> out = Apply(x.graph(), "linear_cross_entropy_grad", in, attrs);
  if (call.wanted[1]) din[1] = InType(out[0], w.dtype());
  if (call.wanted[0]) din[0] = out.back();
  return din;
}

// The gradient of linear_cross_entropy_grad, written out: unlike the operator this stores all logits.
std::vector<Tensor> LinearCrossEntropySecond(const GradCall& call) {
  Tensor x = call.in[0], w = call.in[1];
  const bool has_dw = call.attrs.Int("dw", 0) != 0, has_dx = call.attrs.Int("dx", 0) != 0;
  Tensor ddw = has_dw ? call.dout[0] : Tensor(), ddx = has_dx ? call.dout.back() : Tensor();
  if (ddw.defined()) ddw = InType(ddw, x.dtype());
  const std::string rows = std::string("abdefgh").substr(0, x.shape().rank() - 1);
  const std::string to_classes = rows + "k,ck->" + rows + "c", to_hidden = rows + "c,ck->" + rows + "k",
                    to_table = rows + "c," + rows + "k->ck";
  Tensor logits = einsum(to_classes, x, w);
  std::vector<Tensor> in = {logits};
  in.insert(in.end(), call.in.begin() + 2, call.in.end());
  Tensor slope = Apply(x.graph(), "cross_entropy_grad", in)[0];
  std::vector<Tensor> din(call.in.size());
  Tensor dslope;
  if (ddw.defined()) {
    dslope = einsum(to_classes, x, ddw);
    if (call.wanted[0]) din[0] = einsum(to_hidden, slope, ddw);
  }
  if (ddx.defined()) {
    dslope = Accumulate(dslope, einsum(to_classes, ddx, w), slope);
    if (call.wanted[1]) din[1] = einsum(to_table, slope, ddx);
  }
  std::vector<bool> wanted(call.wanted.begin() + 1, call.wanted.end());
  wanted[0] = call.wanted[0] || call.wanted[1];
  const std::vector<Tensor> more =
      BuiltinCatalog().Get("cross_entropy_grad").grad({{}, in, {slope}, {dslope}, wanted});
  if (call.wanted[0]) din[0] = Accumulate(din[0], einsum(to_hidden, more[0], w), x);
  if (call.wanted[1]) din[1] = Accumulate(din[1], einsum(to_table, more[0], x), w);
  for (size_t i = 3; i < din.size(); ++i) din[i] = more[i - 1];
  return din;
}

// --- The sum of losses times shares, whose gradients the forward pass makes ---

void CheckSum(const OpCall& call) {
  CheckHead(call, 4);
  if (call.dtypes[3] != DType::kFloat32)
    Fail(call.who, ": share is ", Name(call.dtypes[3]), " but must be f32; cast it");
}

std::vector<Tensor> ExpandLinearCrossEntropySum(const Attrs& attrs, const std::vector<Tensor>& in) {
  Tensor x = in[0], w = in[1], target = in[2], share = in[3];
  const Attrs tile = {{"tile", attrs.Int("tile")}};
  const std::vector<Tensor> rows =
      LossOfStatistics(Apply(x.graph(), "linear_class_statistics", {x, w, target}, tile), target);
  Tensor total = sum(mul(rows[0], share));
  std::vector<Tensor> out = {total, rows[0], rows[1]};
  if (attrs.Int("keep", 0) == 0) return out;
  const std::vector<Tensor> slopes =
      Apply(x.graph(), "linear_cross_entropy_grad", {x, w, target, rows[1], share},
            {{"tile", attrs.Int("tile")}, {"dw", int64_t{1}}, {"dx", int64_t{1}}});
  out.insert(out.end(), slopes.begin(), slopes.end());
  return out;
}

// What the forward pass kept, times what comes to the sum. What comes to single rows needs their logits
// again.
std::vector<Tensor> LinearCrossEntropySumGrad(const GradCall& call) {
  Tensor x = call.in[0], w = call.in[1], dsum = call.dout[0], dlse = call.dout[2];
  std::vector<Tensor> din(4);
  const auto add_to = [&](size_t i, Tensor term) {
    if (call.wanted[i] && term.defined()) din[i] = Accumulate(din[i], term, call.in[i]);
  };
  if (dsum.defined()) {
    if (call.wanted[0]) add_to(0, mul(InType(call.out[4], DType::kFloat32), dsum));
    if (call.wanted[1]) add_to(1, mul(call.out[3], dsum));
    if (call.wanted[3]) add_to(3, mul(call.out[1], dsum));
  }
  if (call.dout[3].defined() || call.dout[4].defined()) {  // of gradients that are kept
    const Attrs attrs = {{"tile", call.attrs.Int("tile")}, {"dw", int64_t{1}}, {"dx", int64_t{1}}};
    const std::vector<Tensor> second =
        LinearCrossEntropySecond({attrs,
                                  {x, w, call.in[2], call.out[2], call.in[3]},
                                  {call.out[3], call.out[4]},
                                  {call.dout[3], call.dout[4]},
                                  {call.wanted[0], call.wanted[1], false, true, call.wanted[3]}});
    for (size_t i : {0, 1}) add_to(i, second[i]);
    add_to(3, second[4]);
    dlse = Accumulate(dlse, second[3], call.out[2]);
  }
  if (!call.dout[1].defined() && !dlse.defined()) return din;
  const std::vector<Tensor> of_rows = LinearCrossEntropyGrad({call.attrs,
                                                              {x, w, call.in[2]},
                                                              {call.out[1], call.out[2]},
                                                              {call.dout[1], dlse},
                                                              {call.wanted[0], call.wanted[1], false}});
  for (size_t i : {0, 1}) add_to(i, of_rows[i]);
  return din;
}

double ProductFlopsOfRows(const BoundRule& rule, double products) {
  double volume = products * 2;
  for (const BoundRule::Operand& operand : rule.in)
    if (operand.name == "x" || operand.name == "w")
      for (size_t axis = 0; axis < operand.axes.size(); ++axis)
        if (operand.name == "x" || axis == 0)
          volume *= static_cast<double>(operand.shape[static_cast<int>(axis)]);
  return volume;
}

OpDef TiledOperator() {
  OpDef def;
  def.whole = {"k"};
  def.category = "matmul";
  def.cuda_unit = UnitOfProducts;
  def.composed = [](const KernelSpec& spec, const InnerKernels& kernels) -> std::unique_ptr<Kernel> {
    return std::make_unique<HostTiles>(spec, kernels);
  };
  def.composed_scratch = LogitTiles::Scratch;
  def.scratch = [](const KernelSpec& spec) { return LogitTiles::Scratch(spec, ReferenceInner()); };
  def.precision = Precision::kNarrow;
  return def;
}

}  // namespace

void AddLinearCrossEntropy(Catalog* catalog) {
  using enum DType;
  const auto flops = [](double products) {
    return [products](const BoundRule& rule) { return ProductFlopsOfRows(rule, products); };
  };

  OpDef loss = TiledOperator();
  loss.name = "linear_cross_entropy";
  loss.doc = "cross_entropy of logits x w^T, a tile of rows at a time, and the log-sum-exp.";
  loss.axes = "x[.. k], w[c k], target[..] -> loss[..], lse[..]";
  loss.whole.insert("c");
  loss.expandable = {"c"};
  loss.expand = ExpandLinearCrossEntropy;
  loss.dtypes = ResultTypes({kFloat32, kFloat32});
  loss.check = CheckHeadLoss;
  loss.grad = LinearCrossEntropyGrad;
  loss.flops = flops(1);
  loss.samples = {
      {.in = {{11, 3}, {7, 3}, {11}},
       .attrs = {{"tile", int64_t{8}}},
       .dtypes = {kFloat32, kFloat32, kInt64},
       .limit = 7},
      {.in = {{3, 5, 4}, {5, 4}, {3, 5}},
       .attrs = {{"tile", int64_t{8}}},
       .dtypes = {kFloat32, kFloat32, kInt32}},
      {.in = {{0, 3}, {5, 3}, {0}}, .attrs = {{"tile", int64_t{8}}}, .dtypes = {kFloat32, kFloat32, kInt64}}};
  const std::vector<Sample> samples = loss.samples;
  catalog->Add(std::move(loss));

  OpDef statistics = TiledOperator();
  statistics.name = "linear_class_statistics";
  statistics.doc = "class_statistics of logits x w^T, a tile of rows at a time.";
  statistics.axes = "x[.. k], w[c k], target[..] -> greatest[.. p], total[.. p], own[..]";
  statistics.folds = {{"c", Reduce::kSum}};
  statistics.along = {{"p", "c"}};
  statistics.extents = [](const OpCall& call) {
    return BlocksOf(call.shapes[1].rank() > 0 ? call.shapes[1][0] : 1);
  };
  statistics.dtypes = ResultTypes({kFloat32, kFloat32, kFloat32});
  statistics.check = CheckHeadLoss;
  statistics.flops = flops(1);
  statistics.samples = samples;
  catalog->Add(std::move(statistics));

  OpDef one_pass = TiledOperator();
  one_pass.name = "linear_cross_entropy_sum";
  one_pass.doc =
      "The sum of linear_cross_entropy times share; losses and log-sum-exps of the rows; and, where a "
      "gradient is wanted, those of the sum with respect to w, in fp32, and x, of the same logits.";
  one_pass.axes_of = [](const OpCall& call) {
    return Cat("x[.. k], w[c k], target[..], share[..] -> total[], loss[..], lse[..]",
               call.attrs->Int("keep", 0) != 0 ? ", dw[c k], dx[.. k]" : "");
  };
  one_pass.whole.insert("c");
  one_pass.expandable = {"c"};
  one_pass.expand = ExpandLinearCrossEntropySum;
  one_pass.folds = {{"..", Reduce::kSum}};
  one_pass.dtypes = [](const OpCall& call) {
    std::vector<DType> types(3, kFloat32);
    if (call.attrs->Int("keep", 0) != 0) types.insert(types.end(), {kFloat32, call.dtypes[0]});
    return types;
  };
  one_pass.check = CheckSum;
  one_pass.grad = LinearCrossEntropySumGrad;
  one_pass.keep = "keep";
  one_pass.flops_of = [](const Attrs& attrs) -> std::function<double(const BoundRule&)> {
    const double products = attrs.Int("keep", 0) != 0 ? 3 : 1;
    return [products](const BoundRule& rule) { return ProductFlopsOfRows(rule, products); };
  };
  one_pass.wide = {"share"};
  one_pass.samples = {{.in = {{11, 3}, {7, 3}, {11}, {11}},
                       .attrs = {{"tile", int64_t{8}}, {"keep", int64_t{1}}},
                       .dtypes = {kFloat32, kFloat32, kInt64, kFloat32},
                       .limit = 7},
                      {.in = {{3, 5, 4}, {5, 4}, {3, 5}, {3, 5}},
                       .attrs = {{"tile", int64_t{8}}, {"keep", int64_t{1}}},
                       .dtypes = {kFloat32, kFloat32, kInt32, kFloat32}},
                      {.in = {{9, 3}, {5, 3}, {9}, {9}},
                       .attrs = {{"tile", int64_t{8}}},
                       .dtypes = {kFloat32, kFloat32, kInt64, kFloat32}},
                      {.in = {{0, 3}, {5, 3}, {0}, {0}},
                       .attrs = {{"tile", int64_t{8}}, {"keep", int64_t{1}}},
                       .dtypes = {kFloat32, kFloat32, kInt64, kFloat32}}};
  catalog->Add(std::move(one_pass));

  OpDef gradient = TiledOperator();
  gradient.name = "linear_cross_entropy_grad";
  gradient.doc =
      "Gradients of linear_cross_entropy, whose logits it makes again: dw (attribute \"dw\"), in fp32, "
      "and dx (\"dx\").";
  gradient.axes_of = [](const OpCall& call) {
    const bool dw = call.attrs->Int("dw", 0) != 0, dx = call.attrs->Int("dx", 0) != 0;
    return Cat("x[.. k], w[c k], target[..], lse[..], dloss[..]", call.shapes.size() > 5 ? ", dlse[..]" : "",
               " -> ", dw ? "dw[c k]" : "", dw && dx ? ", " : "", dx ? "dx[.. k]" : "");
  };
  gradient.folds = {{"..", Reduce::kSum}, {"c", Reduce::kSum}};
  gradient.dtypes = [](const OpCall& call) {
    std::vector<DType> types;
    if (call.attrs->Int("dw", 0) != 0) types.push_back(kFloat32);
    if (call.attrs->Int("dx", 0) != 0) types.push_back(call.dtypes[0]);
    return types;
  };
  gradient.check = CheckHeadGradient;
  gradient.flops_of = [](const Attrs& attrs) -> std::function<double(const BoundRule&)> {
    const double products = 1.0 + static_cast<double>(attrs.Int("dw", 0) + attrs.Int("dx", 0));
    return [products](const BoundRule& rule) { return ProductFlopsOfRows(rule, products); };
  };
  gradient.wide = {"lse", "dloss", "dlse"};
  gradient.accumulates = true;
  gradient.grad = LinearCrossEntropySecond;
  const std::vector<DType> f = {kFloat32, kFloat32, kInt64, kFloat32, kFloat32};
  gradient.samples = {{.in = {{11, 3}, {20, 3}, {11}, {11}, {11}},
                       .attrs = {{"tile", int64_t{8}}, {"dw", int64_t{1}}, {"dx", int64_t{1}}},
                       .dtypes = f,
                       .limit = 20},
                      {.in = {{11, 30}, {20, 30}, {11}, {11}, {11}},
                       .attrs = {{"tile", int64_t{8}}, {"dw", int64_t{1}}, {"dx", int64_t{1}}},
                       .dtypes = f,
                       .limit = 20,
                       .low = -0.4,
                       .high = 0.4},
                      {.in = {{3, 5, 4}, {5, 4}, {3, 5}, {3, 5}, {3, 5}, {3, 5}},
                       .attrs = {{"tile", int64_t{8}}, {"dw", int64_t{1}}, {"dx", int64_t{1}}},
                       .dtypes = {kFloat32, kFloat32, kInt32, kFloat32, kFloat32, kFloat32}},
                      {.in = {{3, 3}, {4, 3}, {3}, {3}, {3}},
                       .attrs = {{"tile", int64_t{1}}, {"dx", int64_t{1}}},
                       .dtypes = f},
                      {.in = {{3, 3}, {4, 3}, {3}, {3}, {3}},
                       .attrs = {{"tile", int64_t{9}}, {"dw", int64_t{1}}},
                       .dtypes = f},
                      {.in = {{0, 3}, {5, 3}, {0}, {0}, {0}},
                       .attrs = {{"tile", int64_t{8}}, {"dw", int64_t{1}}, {"dx", int64_t{1}}},
                       .dtypes = f}};
  catalog->Add(std::move(gradient));
}

}  // namespace oneflow_like
