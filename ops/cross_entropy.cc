// cross_entropy: the loss of class scores against class numbers, with the log-sum-exp its gradient needs. A
// negative target is ignored: loss 0, no gradient.
#include <algorithm>
#include <cmath>
#include <limits>

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

// The classes held here may be a part of all.
Status CrossEntropyGradReference(const KernelContext& context) {
  const TensorArg &logits = context.in[0], &target = context.in[1], &lse = context.in[2],
                  &dloss = context.in[3];
  int64_t width = logits.extent.back(), begin = logits.begin.back(), classes = logits.global.back();
  for (int64_t row = 0; row < target.elements(); ++row) {
    int64_t wanted = LoadInt(target, row);
    if (wanted >= classes) return NoSuchClass(wanted, classes);
    for (int64_t c = 0; c < width; ++c) {
      double probability = std::exp(LoadFloat(logits, row * width + c) - LoadFloat(lse, row));
      double d = LoadFloat(dloss, row) * (probability - (begin + c == wanted ? 1 : 0));
      StoreFloat(context.out[0], row * width + c, wanted < 0 ? 0 : d);
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

std::vector<Tensor> CrossEntropyGrad(const GradCall& call) {
  Tensor logits = call.in[0], target = call.in[1], lse = call.out[1];
  std::vector<Tensor> din(2);
  if (!call.wanted[0]) return din;
  if (call.dout[0].defined()) {
    din[0] = Apply(lse.graph(), "cross_entropy_grad", {logits, target, lse, call.dout[0]})[0];
  }
  if (call.dout[1].defined()) {  // d lse / d logits is the softmax
    Tensor softmax = exp(sub(InType(logits, DType::kFloat32), Column(lse)));
    din[0] = Accumulate(din[0], mul(softmax, Column(call.dout[1])), logits);
  }
  return din;
}

// Of dlogits = dloss (exp(logits - lse) - [class is target]), which is 0 where the target is negative.
std::vector<Tensor> CrossEntropyGradGrad(const GradCall& call) {
  Tensor logits = call.in[0], target = call.in[1], lse = call.in[2], dloss = call.in[3];
  Tensor g = InType(call.dout[0], DType::kFloat32);
  Tensor shares = mul(g, exp(sub(InType(logits, DType::kFloat32), Column(InType(lse, DType::kFloat32)))));
  shares = where(Column(less(target, 0)), 0, shares);
  std::vector<Tensor> din(4);
  Tensor moved = mul(shares, Column(InType(dloss, DType::kFloat32)));
  if (call.wanted[0]) din[0] = InType(moved, logits.dtype());
  if (call.wanted[2]) din[2] = InType(neg(sum(moved, {-1})), lse.dtype());
  if (call.wanted[3]) din[3] = InType(sub(sum(shares, {-1}), pick(g, target)), dloss.dtype());
  return din;
}

// Every operand but the logits has the logits' shape without its classes.
void CheckShapes(const OpCall& call, size_t inputs, const char* const* names) {
  RequireInputs(call, inputs);
  RequireFloating(call, 0);
  RequireInteger(call, 1);
  if (call.shapes[0].rank() == 0) Fail(call.who, ": logits has no axes but needs one of classes");
  const Dims rows(call.shapes[0].begin(), call.shapes[0].end() - 1);
  for (size_t i = 1; i < inputs; ++i) {
    if (i > 1) RequireFloating(call, i);
    if (call.shapes[i] != rows) {
      Fail(call.who, ": ", names[i], " is ", call.shapes[i].str(), " but logits ", call.shapes[0].str(),
           " without its classes is ", rows.str());
    }
  }
  if (call.shapes[0].back() == 0) Fail(call.who, ": logits ", call.shapes[0].str(), " has 0 classes");
}

}  // namespace

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
      .dtypes =
          [](const OpCall&) {
            return std::vector<DType>{kFloat32, kFloat32};
          },
      .check =
          [](const OpCall& call) {
            static const char* const kNames[] = {"logits", "target"};
            CheckShapes(call, 2, kNames);
          },
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
      .doc = "Gradient of cross_entropy: dloss (exp(logits - lse) - [class is target]).",
      .axes = "logits[.. c], target[..], lse[..], dloss[..] -> dlogits[.. c]",
      .linear = {{"dloss"}},
      .check =
          [](const OpCall& call) {
            static const char* const kNames[] = {"logits", "target", "lse", "dloss"};
            CheckShapes(call, 4, kNames);
          },
      .grad = CrossEntropyGradGrad,
      .flops = [](const BoundRule& rule) { return 3 * rule.Volume(); },
      .reference = CrossEntropyGradReference,
      .precision = Precision::kFollow,
      .wide = {"lse", "dloss"},
      .samples = {{.in = {{5, 7}, {5}, {5}, {5}}, .dtypes = {kFloat32, kInt64, kFloat32, kFloat32}},
                  {.in = {{3, 1, 5}, {3, 1}, {3, 1}, {3, 1}},
                   .dtypes = {kFloat32, kInt32, kFloat32, kFloat32}},
                  {.in = {{0, 5}, {0}, {0}, {0}}, .dtypes = {kFloat32, kInt64, kFloat32, kFloat32}}},
  });
}

}  // namespace oneflow_like
