// cross_entropy: the loss of class scores against class numbers, with the log-sum-exp its gradient needs. A
// negative target is ignored: loss 0, no gradient. class_statistics: what the loss is made of where classes
// are cut.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/class_blocks.h"
#include "ops/language/calls.h"
#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"
#include "ops/statistics.h"

namespace oneflow_like {
namespace {

Status NoSuchClass(int64_t target, int64_t classes) {
  return Status(Cat("target ", target, " is outside the ", classes, " classes"));
}

Status CrossEntropyReference(const KernelContext& context) {
  const TensorArg &logits = context.in[0], &target = context.in[1];
  int64_t classes = logits.extent.back();
  for (int64_t row = 0; row < target.elements(); ++row) {
    int64_t wanted = LoadInt(target, row);
    if (wanted >= classes) return NoSuchClass(wanted, classes);
    double greatest = -std::numeric_limits<double>::infinity(), total = 0;
    for (int64_t c = 0; c < classes; ++c) greatest = std::max(greatest, LoadFloat(logits, row * classes + c));
    for (int64_t c = 0; c < classes; ++c) total += std::exp(LoadFloat(logits, row * classes + c) - greatest);
    double lse = std::log(total) + greatest;
    StoreFloat(context.out[0], row, wanted < 0 ? 0 : lse - LoadFloat(logits, row * classes + wanted));
    StoreFloat(context.out[1], row, lse);
  }
  return {};
}

// Of the classes held here, block by block.
Status ClassStatisticsReference(const KernelContext& context) {
  const TensorArg &logits = context.in[0], &target = context.in[1];
  const int64_t width = logits.extent.back(), begin = logits.begin.back(), classes = logits.global.back();
  const int64_t blocks = context.out[0].extent.back();
  if (blocks == 0 && width > 0) return TooFewBlocks(context.out[0].global.back());
  for (int64_t row = 0; row < target.elements(); ++row) {
    const int64_t wanted = LoadInt(target, row), here = wanted - begin;
    if (wanted >= classes) return NoSuchClass(wanted, classes);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = row * width + FirstOfBlock(width, blocks, block),
                    last = row * width + FirstOfBlock(width, blocks, block + 1);
      double greatest = -std::numeric_limits<double>::infinity(), total = 0;
      for (int64_t c = first; c < last; ++c) greatest = std::max(greatest, LoadFloat(logits, c));
      const double base = std::isinf(greatest) && greatest < 0 ? 0 : greatest;
      for (int64_t c = first; c < last; ++c) total += std::exp(LoadFloat(logits, c) - base);
      StoreFloat(context.out[0], row * blocks + block, greatest);
      StoreFloat(context.out[1], row * blocks + block, total);
    }
    const bool held = wanted >= 0 && here >= 0 && here < width;
    StoreFloat(context.out[2], row, held ? LoadFloat(logits, row * width + here) : 0);
  }
  return {};
}

// The classes held here may be a part of all. dlse, the gradient of the log-sum-exp, may be missing.
Status CrossEntropyGradReference(const KernelContext& context) {
  const TensorArg &logits = context.in[0], &target = context.in[1], &lse = context.in[2],
                  &dloss = context.in[3];
  int64_t width = logits.extent.back(), begin = logits.begin.back(), classes = logits.global.back();
  for (int64_t row = 0; row < target.elements(); ++row) {
    int64_t wanted = LoadInt(target, row);
    if (wanted >= classes) return NoSuchClass(wanted, classes);
    const double of_loss = wanted < 0 ? 0 : LoadFloat(dloss, row);
    const double of_lse = context.in.size() > 4 ? LoadFloat(context.in[4], row) : 0;
    for (int64_t c = 0; c < width; ++c) {
      double d = 0;
      if (of_loss != 0 || of_lse != 0 || wanted >= 0) {
        const double probability = std::exp(LoadFloat(logits, row * width + c) - LoadFloat(lse, row));
        d = of_loss * (probability - (begin + c == wanted ? 1 : 0)) + of_lse * probability;
      }
      StoreFloat(context.out[0], row * width + c, d);
    }
  }
  return {};
}

std::vector<Tensor> ExpandCrossEntropy(const Attrs&, const std::vector<Tensor>& in) {
  Tensor logits = InType(in[0], DType::kFloat32), target = in[1];
  Tensor greatest = max(logits, {-1}, true);
  Tensor total = sum(exp(sub(logits, greatest)), {-1});
  // One operator a line where order matters: compilers evaluate arguments in different orders.
  Tensor shift = reshape(greatest, total.shape());
  Tensor lse = add(log(total), shift);
  Tensor ignored = less(target, full(target.graph(), {}, 0, target.dtype()));
  Tensor apart = sub(lse, pick(logits, target)), nothing = full(target.graph(), {}, 0);
  Tensor loss = where(ignored, nothing, apart);
  return {loss, lse};
}

// The operands behind lse: what comes to the loss, and to lse where anything does.
std::vector<Tensor> CrossEntropyGrad(const GradCall& call) {
  Tensor logits = call.in[0], lse = call.out[1];
  std::vector<Tensor> din(2);
  if (!call.wanted[0]) return din;
  std::vector<Tensor> in = {logits, call.in[1], lse};
  AddLossGradients(call, &in);
  din[0] = Apply(lse.graph(), "cross_entropy_grad", in)[0];
  return din;
}

// Of dlogits = dloss (exp(logits - lse) - [class is target]) + dlse exp(logits - lse), whose first term is 0
// where the target is negative.
std::vector<Tensor> CrossEntropyGradGrad(const GradCall& call) {
  Tensor logits = call.in[0], target = call.in[1], lse = call.in[2], dloss = call.in[3];
  Tensor g = InType(call.dout[0], DType::kFloat32);
  Tensor shares = mul(g, exp(sub(InType(logits, DType::kFloat32), Column(InType(lse, DType::kFloat32)))));
  Tensor ignored = less(target, 0);
  std::vector<Tensor> din(call.in.size());
  Tensor factor = where(ignored, 0, InType(dloss, DType::kFloat32));
  if (call.in.size() > 4) factor = add(factor, InType(call.in[4], DType::kFloat32));
  Tensor moved = mul(shares, Column(factor));
  if (call.wanted[0]) din[0] = InType(moved, logits.dtype());
  if (call.wanted[2]) din[2] = InType(neg(sum(moved, {-1})), lse.dtype());
  if (call.wanted[3]) {
    Tensor apart = sub(sum(shares, {-1}), pick(g, target));
    din[3] = InType(where(ignored, 0, apart), dloss.dtype());
  }
  if (call.in.size() > 4 && call.wanted[4]) din[4] = InType(sum(shares, {-1}), call.in[4].dtype());
  return din;
}

// Every operand but the logits has the logits' shape without its classes.
void CheckShapes(const OpCall& call, size_t inputs) {
  RequireInputs(call, inputs);
  RequireFloating(call, 0);
  RequireInteger(call, 1);
  if (call.shapes[0].rank() == 0) Fail(call.who, ": logits has no axes but needs one of classes");
  const Dims rows(call.shapes[0].begin(), call.shapes[0].end() - 1);
  for (size_t i = 1; i < inputs; ++i) {
    if (i > 1) RequireFloating(call, i);
    if (call.shapes[i] != rows) {
      Fail(call.who, ": ", OperandName(call.op, i), " is ", call.shapes[i].str(), " but logits ",
           call.shapes[0].str(), " without its classes is ", rows.str());
    }
  }
  if (call.shapes[0].back() == 0) Fail(call.who, ": logits ", call.shapes[0].str(), " has 0 classes");
}

}  // namespace

void AddLossGradients(const GradCall& call, std::vector<Tensor>* in) {
  Tensor dloss = call.dout[0], dlse = call.dout[1], loss = call.out[0];
  if (!dloss.defined()) dloss = full(loss.graph(), loss.shape(), 0);
  in->push_back(dloss);
  if (dlse.defined()) in->push_back(dlse);
}

std::vector<Tensor> LossOfStatistics(const std::vector<Tensor>& statistics, Tensor target) {
  Tensor greatest = statistics[0], total = statistics[1], own = statistics[2];
  Tensor most = max(greatest, {-1}, true);
  Tensor all = sum(mul(total, exp(sub(greatest, most))), {-1});
  // One operator a line where order matters: compilers evaluate arguments in different orders.
  Tensor shift = reshape(most, all.shape());
  Tensor logarithm = log(all);
  Tensor lse = add(logarithm, shift);
  Tensor ignored = less(target, full(target.graph(), {}, 0, target.dtype()));
  // The greatest is taken off first: the difference of two large numbers would lose the small loss.
  Tensor apart = add(logarithm, sub(shift, own)), nothing = full(target.graph(), {}, 0);
  Tensor loss = where(ignored, nothing, apart);
  return {loss, lse};
}

std::map<std::string, int64_t> BlocksOf(int64_t classes) {
  return {{"p", std::min<int64_t>(classes, kClassBlocks)}};
}

Status TooFewBlocks(int64_t blocks) {
  return Status(Cat("the classes are cut into more parts than the ", blocks, " blocks that there are"));
}

void AddCrossEntropy(Catalog* catalog) {
  using enum DType;
  catalog->Add({
      .name = "cross_entropy",
      .doc = "log(sum(exp(logits))) - logits[target] over the last axis, and the log-sum-exp; both fp32. A "
             "negative "
             "target gives loss 0.",
      .axes = "logits[.. c], target[..] -> loss[..], lse[..]",
      .whole = {"c"},
      .expandable = {"c"},
      .dtypes = ResultTypes({kFloat32, kFloat32}),
      .check = [](const OpCall& call) { CheckShapes(call, 2); },
      .grad = CrossEntropyGrad,
      .expand = ExpandCrossEntropy,
      .flops = [](const BoundRule& rule) { return 4 * rule.Volume(); },
      .reference = CrossEntropyReference,
      .any_type = true,
      .samples = {{.in = {{5, 7}, {5}}, .dtypes = {kFloat32, kInt64}},
                  {.in = {{3, 1, 5}, {3, 1}}, .dtypes = {kFloat32, kInt32}},
                  {.in = {{3, 1}, {3}}, .dtypes = {kFloat32, kInt64}, .limit = 1},
                  {.in = {{0, 5}, {0}}, .dtypes = {kFloat32, kInt64}}},
  });
  catalog->Add({
      .name = "cross_entropy_grad",
      .doc =
          "Gradient of cross_entropy: dloss (exp(logits - lse) - [class is target]), and dlse exp(logits - "
          "lse) where a gradient comes to the log-sum-exp.",
      .axes_of =
          [](const OpCall& call) {
            return Cat("logits[.. c], target[..], lse[..], dloss[..]",
                       call.shapes.size() > 4 ? ", dlse[..]" : "", " -> dlogits[.. c]");
          },
      .linear = {{"dloss", "dlse"}},
      .check = [](const OpCall& call) { CheckShapes(call, call.shapes.size() > 4 ? 5 : 4); },
      .grad = CrossEntropyGradGrad,
      .flops = [](const BoundRule& rule) { return 3 * rule.Volume(); },
      .reference = CrossEntropyGradReference,
      .precision = Precision::kFollow,
      .wide = {"lse", "dloss", "dlse"},
      .samples = {{.in = {{5, 7}, {5}, {5}, {5}}, .dtypes = {kFloat32, kInt64, kFloat32, kFloat32}},
                  {.in = {{3, 1, 5}, {3, 1}, {3, 1}, {3, 1}},
                   .dtypes = {kFloat32, kInt32, kFloat32, kFloat32}},
                  {.in = {{5, 7}, {5}, {5}, {5}, {5}},
                   .dtypes = {kFloat32, kInt64, kFloat32, kFloat32, kFloat32}},
                  {.in = {{0, 5}, {0}, {0}, {0}}, .dtypes = {kFloat32, kInt64, kFloat32, kFloat32}}},
  });
  catalog->Add({
      .name = "class_statistics",
      .doc = "Of up to 64 blocks of neighbouring classes: the greatest logit, and the sum of exp(logit - "
             "greatest); and the target's logit, 0 for a negative target. fp32. Which classes a block has "
             "depends "
             "on how they are cut, what all blocks together give does not.",
      .axes = "logits[.. c], target[..] -> greatest[.. p], total[.. p], own[..]",
      .folds = {{"c", Reduce::kSum}},
      .along = {{"p", "c"}},
      .extents = [](const OpCall& call) { return BlocksOf(call.shapes[0].back()); },
      .dtypes = ResultTypes({kFloat32, kFloat32, kFloat32}),
      .check = [](const OpCall& call) { CheckShapes(call, 2); },
      .flops =
          [](const BoundRule& rule) {
            return 4 * rule.Volume() / static_cast<double>(std::max<int64_t>(1, rule.extents.at("p")));
          },
      .reference = ClassStatisticsReference,
      .any_type = true,
      .samples = {{.in = {{5, 7}, {5}}, .dtypes = {kFloat32, kInt64}, .limit = 7},
                  {.in = {{3, 1, 5}, {3, 1}}, .dtypes = {kFloat32, kInt32}},
                  {.in = {{0, 5}, {0}}, .dtypes = {kFloat32, kInt64}}},
  });
}

}  // namespace oneflow_like
