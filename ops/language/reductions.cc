// Reductions made of others: prod, var, stddev, logsumexp, norm, any, all, masked_mean; and prelu, clamp's
// companion with a slope per channel.
#include <algorithm>
#include <cmath>

#include "ops/language/calls.h"
#include "ops/language/expressions.h"

namespace oneflow_like {

Tensor prelu(Tensor x, Tensor slope, int64_t axis, Here at) {
  at = at.In("prelu");
  axis = NormalAxis("prelu", axis, x, at);
  GraphOf("prelu", slope, at);
  const int64_t extent = x.shape()[static_cast<int>(axis)], elements = slope.shape().elements();
  if (slope.shape().rank() > 1 || (elements != 1 && elements != extent)) {
    Fail(Who("prelu", at), ": slope is ", slope.shape().str(), " but must be [", extent, "], as axis ", axis,
         " of ", x.shape().str(), ", or of one element");
  }
  Dims shape(x.shape().rank() - static_cast<int>(axis), int64_t{1});
  shape[0] = elements;
  return One("prelu", {x, slope.shape() == shape ? slope : reshape(slope, shape, at)}, {}, at);
}

namespace {

// x with the named axes last, as one: [kept .. n].
Tensor Gathered(Tensor x, const std::vector<int64_t>& axes, const Here& at) {
  std::vector<int64_t> order;
  Dims shape;
  const Dims from = x.shape();
  for (int axis = 0; axis < from.rank(); ++axis) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
    order.push_back(axis);
    shape.push_back(from[axis]);
  }
  order.insert(order.end(), axes.begin(), axes.end());
  shape.push_back(Count(x, axes));
  if (!std::is_sorted(order.begin(), order.end())) x = transpose(x, order, at);
  return reshape(x, shape, at);
}

}  // namespace

// By halves, as additions in a tree: log2(n) products of tensors, whose gradients hold at zeros too.
Tensor prod(Tensor x, std::vector<int64_t> axes, bool keep, Here at) {
  at = at.In("prod");
  axes = NormalAxes("prod", std::move(axes), x, at);
  std::sort(axes.begin(), axes.end());
  Dims kept, ones = x.shape();
  for (int axis = 0; axis < x.shape().rank(); ++axis) {
    bool reduced = std::find(axes.begin(), axes.end(), axis) != axes.end();
    if (reduced) ones[axis] = 1;
    if (!reduced) kept.push_back(x.shape()[axis]);
  }
  const Dims to = keep ? ones : kept;
  if (Count(x, axes) == 0) return full(x.graph(), to, 1, x.dtype(), at);
  Tensor y = Gathered(x, axes, at);
  for (int64_t n = y.shape().back(); n > 1; n = y.shape().back()) {
    const int64_t half = n / 2;
    Tensor pairs = mul(slice(y, -1, 0, half, at), slice(y, -1, half, 2 * half, at), at);
    y = n % 2 == 0 ? pairs : concat({pairs, slice(y, -1, n - 1, n, at)}, -1, at);
  }
  return y.shape() == to ? y : reshape(y, to, at);
}

Tensor var(Tensor x, std::vector<int64_t> axes, bool keep, int64_t correction, Here at) {
  at = InFloating("var", x, at);
  axes = NormalAxes("var", std::move(axes), x, at);
  const int64_t count = Count(x, axes);
  if (count <= correction) {
    Fail(Who("var", at), ": the reduced axes of ", x.shape().str(), " hold ", count,
         count == 1 ? " element" : " elements", " but must hold more than the correction, which is ",
         correction);
  }
  Tensor apart = sub(x, mean(x, axes, true, at), at);
  return scale(sum(square(apart, at), axes, keep, at), 1.0 / static_cast<double>(count - correction), at);
}

Tensor stddev(Tensor x, std::vector<int64_t> axes, bool keep, int64_t correction, Here at) {
  at = at.In("stddev");
  return sqrt(var(x, std::move(axes), keep, correction, at), at);
}

Tensor logsumexp(Tensor x, std::vector<int64_t> axes, bool keep, Here at) {
  at = InFloating("logsumexp", x, at);
  axes = NormalAxes("logsumexp", std::move(axes), x, at);
  // The shift may be any number: where the greatest is infinite, 0 keeps inf - inf out of it.
  Tensor greatest = stop_gradient(max(x, axes, true, at), at);
  Tensor by = where(isfinite(greatest, at), greatest, 0, at);
  Tensor y = add(log(sum(exp(sub(x, by, at), at), axes, true, at), at), by, at);
  return Dropped(y, axes, keep, at);
}

Tensor norm(Tensor x, double p, std::vector<int64_t> axes, bool keep, Here at) {
  at = InFloating("norm", x, at);
  axes = NormalAxes("norm", std::move(axes), x, at);
  if (p == 1) return sum(abs(x, at), axes, keep, at);
  if (p == 2) {
    // The slope of a root at 0 is infinite: there the root of 1 is taken instead, and 0 given.
    Tensor squares = sum(square(x, at), axes, keep, at);
    Tensor none = equal(squares, 0, at);
    return where(none, 0, sqrt(where(none, 1, squares, at), at), at);
  }
  if (std::isinf(p) && p > 0) return maximum(max(abs(x, at), axes, keep, at), 0, at);
  Fail(Who("norm", at), ": p is ", p, " but must be 1, 2 or infinity");
}

Tensor any(Tensor x, std::vector<int64_t> axes, bool keep, Here at) {
  at = at.In("any");
  NeedBool("any", "x", x, at);
  axes = NormalAxes("any", std::move(axes), x, at);
  return greater(max(cast(x, DType::kFloat32, at), axes, keep, at), 0, at);
}

Tensor all(Tensor x, std::vector<int64_t> axes, bool keep, Here at) {
  at = at.In("all");
  NeedBool("all", "x", x, at);
  axes = NormalAxes("all", std::move(axes), x, at);
  return greater(min(cast(x, DType::kFloat32, at), axes, keep, at), 0, at);
}

Tensor masked_mean(Tensor x, Tensor mask, std::vector<int64_t> axes, bool keep, Here at) {
  at = InFloating("masked_mean", x, at);
  NeedBool("masked_mean", "mask", mask, at);
  axes = NormalAxes("masked_mean", std::move(axes), x, at);
  const Dims shape = x.shape(), of_mask = mask.shape();
  const int more = shape.rank() - of_mask.rank();
  bool fits = more >= 0;
  for (int i = 0; fits && i < of_mask.rank(); ++i) fits = of_mask[i] == 1 || of_mask[i] == shape[more + i];
  if (!fits)
    Fail(Who("masked_mean", at), ": mask is ", of_mask.str(), " but x is ", shape.str(),
         ", to which the mask must broadcast");
  Tensor whole = mask.shape() == shape ? mask : broadcast_to(mask, shape, at);
  Tensor total = sum(where(whole, x, 0, at), axes, keep, at);
  Tensor count = sum(cast(whole, DType::kFloat32, at), axes, keep, at);
  return div(total, cast(maximum(count, 1, at), x.dtype(), at), at);
}

}  // namespace oneflow_like
