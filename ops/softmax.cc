// softmax and log_softmax over the last axis, and their gradients. Each expands into maximum, exponential and
// sum, so that the axis can be cut.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

// Sum of exp(x - greatest) over one row, and its greatest element.
struct RowSum {
  double greatest = -std::numeric_limits<double>::infinity();
  double total = 0;
};

RowSum SumRow(const TensorArg& x, int64_t begin, int64_t width) {
  RowSum row;
  for (int64_t c = 0; c < width; ++c) row.greatest = std::max(row.greatest, LoadFloat(x, begin + c));
  for (int64_t c = 0; c < width; ++c) row.total += std::exp(LoadFloat(x, begin + c) - row.greatest);
  return row;
}

template <bool kLog>
Status SoftmaxReference(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  int64_t width = x.extent.back();
  for (int64_t begin = 0; begin < x.elements(); begin += width) {
    RowSum row = SumRow(x, begin, width);
    for (int64_t i = begin; i < begin + width; ++i) {
      double above = LoadFloat(x, i) - row.greatest;
      StoreFloat(y, i, kLog ? above - std::log(row.total) : std::exp(above) / row.total);
    }
  }
  return {};
}

// softmax: (dy - sum(dy y)) y. log_softmax: dy - exp(y) sum(dy).
template <bool kLog>
Status SoftmaxGradReference(const KernelContext& context) {
  const TensorArg &dy = context.in[0], &y = context.in[1], &dx = context.out[0];
  int64_t width = y.extent.back();
  for (int64_t begin = 0; begin < y.elements(); begin += width) {
    double total = 0;
    for (int64_t i = begin; i < begin + width; ++i) total += LoadFloat(dy, i) * (kLog ? 1 : LoadFloat(y, i));
    for (int64_t i = begin; i < begin + width; ++i) {
      double d = LoadFloat(dy, i), v = LoadFloat(y, i);
      StoreFloat(dx, i, kLog ? d - std::exp(v) * total : (d - total) * v);
    }
  }
  return {};
}

std::vector<Tensor> ExpandSoftmax(const Attrs&, const std::vector<Tensor>& in) {
  Tensor above = exp(sub(in[0], max(in[0], {-1}, true)));
  return {div(above, sum(above, {-1}, true))};
}

std::vector<Tensor> ExpandLogSoftmax(const Attrs&, const std::vector<Tensor>& in) {
  Tensor above = sub(in[0], max(in[0], {-1}, true));
  return {sub(above, log(sum(exp(above), {-1}, true)))};
}

std::vector<Tensor> ExpandSoftmaxGrad(const Attrs&, const std::vector<Tensor>& in) {
  return {mul(sub(in[0], sum(mul(in[0], in[1]), {-1}, true)), in[1])};
}

std::vector<Tensor> ExpandLogSoftmaxGrad(const Attrs&, const std::vector<Tensor>& in) {
  return {sub(in[0], mul(exp(in[1]), sum(in[0], {-1}, true)))};
}

// Of dx = y (dy - sum(dy y)).
std::vector<Tensor> SoftmaxGradGrad(const GradCall& call) {
  Tensor dy = call.in[0], y = call.in[1], g = call.dout[0];
  std::vector<Tensor> din(2);
  if (call.wanted[0]) din[0] = Apply(y.graph(), "softmax_grad", {g, y})[0];
  if (call.wanted[1])
    din[1] = sub(mul(g, sub(dy, sum(mul(dy, y), {-1}, true))), mul(dy, sum(mul(g, y), {-1}, true)));
  return din;
}

// Of dx = dy - exp(y) sum(dy).
std::vector<Tensor> LogSoftmaxGradGrad(const GradCall& call) {
  Tensor dy = call.in[0], g = call.dout[0], weighted = mul(g, exp(call.in[1]));
  std::vector<Tensor> din(2);
  if (call.wanted[0]) din[0] = sub(g, sum(weighted, {-1}, true));
  if (call.wanted[1]) din[1] = neg(mul(weighted, sum(dy, {-1}, true)));
  return din;
}

void CheckSoftmaxGrad(const OpCall& call) {
  RequireInputs(call, 2);
  RequireFloating(call);
  RequireSameTypes(call);
  if (call.shapes[0] != call.shapes[1]) {
    Fail(call.who, ": dy is ", call.shapes[0].str(), " but y is ", call.shapes[1].str());
  }
}

// The pair of an operator and its gradient, which reads (dy, y).
void AddPair(Catalog* catalog, const std::string& name, const std::string& doc, KernelFn reference,
             ExpandFn expand, KernelFn grad_reference, ExpandFn grad_expand, GradFn grad_grad) {
  std::string grad_name = name + "_grad";
  catalog->Add({
      .name = name,
      .doc = doc,
      .axes = "x[.. c] -> y[.. c]",
      .whole = {"c"},
      .expandable = {"c"},
      .check =
          [](const OpCall& call) {
            RequireInputs(call, 1);
            RequireFloating(call);
          },
      .grad = [grad_name](const GradCall& call) -> std::vector<Tensor> {
        return {Apply(call.out[0].graph(), grad_name, {call.dout[0], call.out[0]})[0]};
      },
      .expand = expand,
      .flops = [](const BoundRule& rule) { return 4 * rule.Volume(); },
      .reference = reference,
      .samples = {{.in = {Dims{5, 7}}}, {.in = {Dims{3, 1, 5}}}, {.in = {Dims{3, 1}}}, {.in = {Dims{0, 5}}}},
  });
  catalog->Add({
      .name = grad_name,
      .doc = "Gradient of " + name + " from the gradient of its output and its output.",
      .axes = "dy[.. c], y[.. c] -> dx[.. c]",
      .linear = {{"dy"}},
      .whole = {"c"},
      .expandable = {"c"},
      .check = CheckSoftmaxGrad,
      .grad = grad_grad,
      .expand = grad_expand,
      .flops = [](const BoundRule& rule) { return 4 * rule.Volume(); },
      .reference = grad_reference,
      .samples = {{.in = {{5, 7}, {5, 7}}}, {.in = {{3, 1, 5}, {3, 1, 5}}}, {.in = {{0, 5}, {0, 5}}}},
  });
}

}  // namespace

void AddSoftmax(Catalog* catalog) {
  AddPair(catalog, "softmax", "exp(x) / sum(exp(x)) over the last axis.", SoftmaxReference<false>,
          ExpandSoftmax, SoftmaxGradReference<false>, ExpandSoftmaxGrad, SoftmaxGradGrad);
  AddPair(catalog, "log_softmax", "x - log(sum(exp(x))) over the last axis.", SoftmaxReference<true>,
          ExpandLogSoftmax, SoftmaxGradReference<true>, ExpandLogSoftmaxGrad, LogSoftmaxGradGrad);
}

}  // namespace oneflow_like
