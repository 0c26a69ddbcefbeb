#include "ops/language/composed.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/language/calls.h"
#include "ops/language/expressions.h"
#include "ops/language/numbers.h"
#include "ops/language/sparse.h"

namespace oneflow_like {
namespace {

int64_t Extent(const Tensor& x, int64_t axis) { return x.shape()[static_cast<int>(axis)]; }

// f of x with the axis last, which changes no shape.
template <typename F>
Tensor WithAxisLast(Tensor x, int64_t axis, const Here& at, F&& f) {
  const int64_t last = x.shape().rank() - 1;
  if (axis == last) return f(x);
  std::vector<int64_t> order(x.shape().rank());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[axis], order[last]);
  return transpose(f(transpose(x, order, at)), order, at);
}

// f of x in fp32, in the type of x.
template <typename F>
Tensor InFloat32(Tensor x, const Here& at, F&& f) {
  return cast(f(cast(x, DType::kFloat32, at)), x.dtype(), at);
}

void NeedSize(const char* op, const char* name, int64_t size, int64_t least, const Here& at) {
  if (size < least) Fail(Who(op, at), ": ", name, " is ", size, " but must be at least ", least);
}

// Runs `combine(x, earlier)` with elements that are 1, 2, 4, ... places before, so that every element has
// been combined with all before it. `identity` stands where there are none.
template <typename F>
Tensor Running(Tensor x, int64_t axis, double identity, const Here& at, F&& combine) {
  const int64_t extent = Extent(x, axis);
  for (int64_t by = 1; by < extent; by *= 2) {
    Dims before = x.shape();
    before[static_cast<int>(axis)] = by;
    Tensor earlier = concat({full(x, before, identity, at), slice(x, axis, 0, extent - by, at)}, axis, at);
    x = combine(x, earlier);
  }
  return x;
}

// The number that the type has nothing below (`least`) or above.
double ExtremeOf(DType dtype, bool least) {
  switch (dtype) {
    case DType::kInt32:
      return least ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int32_t>::max();
    case DType::kInt64:  // one that a double holds
      return least ? -0x1p62 : 0x1p62;
    case DType::kUInt8:
    case DType::kBool:
      return least ? 0 : dtype == DType::kBool ? 1 : 255;
    default:
      return least ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  }
}

Extremes AtExtreme(const char* op, Tensor x, Tensor indices, int64_t axis, const Here& at) {
  axis = NormalAxis(op, axis, x, at);
  Tensor values = take_along_axis(x, unsqueeze(indices, axis, at), axis, at);
  return {squeeze(values, axis, at), indices};
}

}  // namespace

// --- Normalisation -------------------------------------------------------------------------------

Tensor softmax(Tensor x, int64_t axis, Here at) {
  at = at.In("softmax");
  axis = NormalAxis("softmax", axis, x, at);
  return WithAxisLast(x, axis, at, [&](Tensor y) { return softmax(y, at); });
}

Tensor log_softmax(Tensor x, int64_t axis, Here at) {
  at = at.In("log_softmax");
  axis = NormalAxis("log_softmax", axis, x, at);
  return WithAxisLast(x, axis, at, [&](Tensor y) { return log_softmax(y, at); });
}

Tensor layer_norm_over(Tensor x, std::vector<int64_t> axes, double eps, Here at) {
  at = InFloating("layer_norm_over", x, at);
  NeedNumber(Who("layer_norm_over", at), "eps", eps, Domain::kDivisor);
  axes = NormalAxes("layer_norm_over", std::move(axes), x, at);
  if (axes == std::vector<int64_t>{x.shape().rank() - 1}) {
    const Dims row{x.shape().back()};
    return layer_norm(x, full(x, row, 1, at), full(x, row, 0, at), eps, at);
  }
  return InFloat32(x, at, [&](Tensor y) {
    Tensor d = sub(y, mean(y, axes, true, at), at);
    return mul(d, rsqrt(shift(mean(square(d, at), axes, true, at), eps, at), at), at);
  });
}

Tensor rms_norm_over(Tensor x, std::vector<int64_t> axes, double eps, Here at) {
  at = InFloating("rms_norm_over", x, at);
  NeedNumber(Who("rms_norm_over", at), "eps", eps, Domain::kDivisor);
  axes = NormalAxes("rms_norm_over", std::move(axes), x, at);
  if (axes == std::vector<int64_t>{x.shape().rank() - 1})
    return rms_norm(x, full(x, {x.shape().back()}, 1, at), eps, at);
  return InFloat32(x, at, [&](Tensor y) {
    return mul(y, rsqrt(shift(mean(square(y, at), axes, true, at), eps, at), at), at);
  });
}

Tensor weight_norm(Tensor v, Tensor g, int64_t axis, Here at) {
  at = at.In("weight_norm");
  NeedFloating("weight_norm", "v", v, at);
  NeedFloating("weight_norm", "g", g, at);
  axis = NormalAxis("weight_norm", axis, v, at);
  if (g.shape() != Dims{Extent(v, axis)})
    Fail(Who("weight_norm", at), ": g is ", g.shape().str(), " but must be [", Extent(v, axis), "], as axis ",
         axis, " of ", v.shape().str());
  Dims ones(v.shape().rank(), int64_t{1});
  ones[static_cast<int>(axis)] = Extent(v, axis);
  std::vector<int64_t> others;
  for (int64_t i = 0; i < v.shape().rank(); ++i)
    if (i != axis) others.push_back(i);
  Tensor length = others.empty() ? abs(v, at) : norm(v, 2, others, true, at);
  return mul(v, div(reshape(g, ones, at), length, at), at);
}

// --- Draws ---------------------------------------------------------------------------------------

Tensor bernoulli(Tensor p, Here at) {
  at = at.In("bernoulli");
  NeedFloating("bernoulli", "p", p, at);
  return less(uniform(p.graph(), Dims(p.shape()), 0, 1, at), cast(p, DType::kFloat32, at), at);
}

// 0 is drawn as half of the least number above it.
Tensor gumbel(GraphBuilder* graph, const Dims& shape, Here at) {
  at = at.In("gumbel");
  Tensor u = maximum(uniform(graph, shape, 0, 1, at), 0x1p-25, at);
  return neg(log(neg(log(u, at), at), at), at);
}

Tensor categorical(Tensor logits, Here at) {
  at = at.In("categorical");
  NeedFloating("categorical", "logits", logits, at);
  NormalAxis("categorical", -1, logits, at);
  Tensor wide = cast(logits, DType::kFloat32, at);
  return argmax(add(wide, gumbel(logits.graph(), Dims(logits.shape()), at), at), -1, at);
}

Tensor randint(GraphBuilder* graph, const Dims& shape, int64_t low, int64_t high, DType dtype, Here at) {
  at = at.In("randint");
  const std::string who = Who("randint", at);
  NeedType(who, dtype);
  if (low >= high) Fail(who, ": low is ", low, " but high is ", high, "; high must be above low");
  if (static_cast<uint64_t>(high) - static_cast<uint64_t>(low) > uint64_t{1} << 24)
    Fail(who, ": there are more than 2^24 numbers from ", low, " to ", high - 1,
         ", and draws have 24 random bits");
  if (!Holds(dtype, static_cast<double>(low)) || !Holds(dtype, static_cast<double>(high - 1)))
    Fail(who, ": ", Name(dtype), " does not hold all numbers from ", low, " to ", high - 1);
  // The product with the greatest draw may be rounded up to the count.
  const double count = static_cast<double>(high - low);
  Tensor drawn = minimum(floor(uniform(graph, shape, 0, count, at), at), count - 1, at);
  return cast(shift(cast(drawn, DType::kInt64, at), static_cast<double>(low), at), dtype, at);
}

Tensor randperm(GraphBuilder* graph, int64_t n, Here at) {
  at = at.In("randperm");
  NeedSize("randperm", "n", n, 0, at);
  return argsort(uniform(graph, {n}, 0, 1, at), 0, false, at);
}

Tensor drop_path(Tensor x, double p, Here at) {
  at = InFloating("drop_path", x, at);
  NormalAxis("drop_path", 0, x, at);
  NeedNumber(Who("drop_path", at), "p", p, Domain::kBelowOne);
  if (p == 0) return x;
  Dims samples(x.shape().rank(), int64_t{1});
  samples[0] = x.shape()[0];
  return mul(x, dropout(full(x, samples, 1, at), p, at), at);
}

// --- Elements by index ---------------------------------------------------------------------------

Tensor take(Tensor x, int64_t axis, const std::vector<int64_t>& places, Here at) {
  at = at.In("take");
  axis = NormalAxis("take", axis, x, at);
  const int64_t extent = Extent(x, axis), count = static_cast<int64_t>(places.size());
  HostTensor ids = HostTensor::Make(DType::kInt64, {count});
  for (int64_t i = 0; i < count; ++i) {
    if (places[i] < -extent || places[i] >= extent)
      Fail(Who("take", at), ": place ", i, " is ", places[i], " but axis ", axis, " has ", extent,
           " elements");
    ids.as<int64_t>()[i] = places[i] < 0 ? places[i] + extent : places[i];
  }
  return take(x, axis, constant(x.graph(), ids, at), at);
}

Extremes max_with_indices(Tensor x, int64_t axis, Here at) {
  at = at.In("max_with_indices");
  NormalAxis("max_with_indices", axis, x, at);
  return AtExtreme("max_with_indices", x, argmax(x, axis, at), axis, at);
}

Extremes min_with_indices(Tensor x, int64_t axis, Here at) {
  at = at.In("min_with_indices");
  NormalAxis("min_with_indices", axis, x, at);
  return AtExtreme("min_with_indices", x, argmin(x, axis, at), axis, at);
}

Tensor dynamic_slice(Tensor x, int64_t axis, Tensor begin, int64_t extent, Here at) {
  at = at.In("dynamic_slice");
  axis = NormalAxis("dynamic_slice", axis, x, at);
  NeedInteger("dynamic_slice", "begin", begin, at);
  if (begin.shape().rank() != 0)
    Fail(Who("dynamic_slice", at), ": begin is ", begin.shape().str(), " but must be one number, []");
  if (extent < 0 || extent > Extent(x, axis))
    Fail(Who("dynamic_slice", at), ": extent is ", extent, " but axis ", axis, " of x has ", Extent(x, axis),
         " elements");
  Tensor offsets = arange(x.graph(), 0, static_cast<double>(extent), 1, DType::kInt64, at);
  return take(x, axis, add(offsets, cast(begin, DType::kInt64, at), at), at);
}

Tensor whole_batch(Tensor x, int64_t axis, Here at) {
  return One("whole_batch", {x}, {{"axis", NormalAxis("whole_batch", axis, x, at)}}, at);
}

Tensor per_micro_batch(Tensor x, int64_t parts, Here at) {
  at = at.In("per_micro_batch");
  NeedGiven("per_micro_batch", "x", x, at);
  if (x.shape().empty()) Fail(Who("per_micro_batch", at), ": x is one number, but must have a batch axis");
  NeedSize("per_micro_batch", "parts", parts, 1, at);
  Dims shape = {parts, Extent(x, 0) / parts};
  if (Extent(x, 0) % parts != 0)
    Fail(Who("per_micro_batch", at), ": parts is ", parts, " but axis 0 of x has ", Extent(x, 0),
         " elements, which it does not divide");
  for (int i = 1; i < x.shape().rank(); ++i) shape.push_back(x.shape()[i]);
  return reshape(x, shape, at);
}

Tensor micro_batch_index(GraphBuilder* graph, Here at) {
  if (graph == nullptr) Fail(Who("micro_batch_index", at), ": no graph was given to make it in");
  return Apply(graph, "micro_batch_index", {}, {}, at)[0];
}

Tensor slice_scatter(Tensor x, int64_t axis, int64_t begin, Tensor src, Here at) {
  at = at.In("slice_scatter");
  axis = NormalAxis("slice_scatter", axis, x, at);
  NeedGiven("slice_scatter", "src", src, at);
  Dims wanted = x.shape();
  const int64_t extent = Extent(x, axis);
  if (src.shape().rank() == wanted.rank()) wanted[static_cast<int>(axis)] = Extent(src, axis);
  if (src.shape() != wanted || src.dtype() != x.dtype())
    Fail(Who("slice_scatter", at), ": x is ", Name(x.dtype()), x.shape().str(), " but src is ",
         Name(src.dtype()), src.shape().str(), "; they may differ along axis ", axis, " alone");
  if (begin < -extent || begin > extent || (begin < 0 ? begin + extent : begin) + Extent(src, axis) > extent)
    Fail(Who("slice_scatter", at), ": src has ", Extent(src, axis), " elements along axis ", axis,
         " and is to begin at ", begin, ", but x has ", extent);
  if (begin < 0) begin += extent;
  const int64_t end = begin + Extent(src, axis);
  std::vector<Tensor> parts;
  if (begin > 0) parts.push_back(slice(x, axis, 0, begin, at));
  parts.push_back(src);
  if (end < extent) parts.push_back(slice(x, axis, end, extent, at));
  return parts.size() == 1 ? src : concat(parts, axis, at);
}

Tensor scatter(Tensor x, int64_t axis, Tensor ids, Tensor src, Here at) {
  at = at.In("scatter");
  axis = NormalAxis("scatter", axis, x, at);
  NeedGiven("scatter", "src", src, at);
  Tensor none = zeros_like(x, at), sums = scatter_add(none, axis, ids, src, at),
         hits = scatter_add(none, axis, ids, ones_like(src, at), at);
  return where(greater(hits, 0, at), sums, x, at);
}

Tensor bincount(Tensor ids, int64_t classes, Here at) {
  at = at.In("bincount");
  NeedInteger("bincount", "ids", ids, at);
  NeedSize("bincount", "classes", classes, 0, at);
  Tensor flat = reshape(ids, {-1}, at);
  Tensor ones = full(ids.graph(), Dims(flat.shape()), 1, DType::kInt64, at);
  return index_add(full(ids.graph(), {classes}, 0, DType::kInt64, at), 0, flat, ones, at);
}

// --- Results whose number depends on the data ----------------------------------------------------

// Sorting keeps the order of equals: places where the mask is true come first, in order.
Found nonzero(Tensor mask, int64_t size, Here at) {
  at = at.In("nonzero");
  NeedBool("nonzero", "mask", mask, at);
  NeedSize("nonzero", "size", size, 0, at);
  Tensor flat = reshape(mask, {mask.shape().elements()}, at);
  const int64_t all = flat.shape()[0], listed = std::min(size, all);
  Tensor order = top_k(cast(logical_not(flat, at), DType::kInt32, at), listed, 0, false, at).indices;
  Tensor count = sum(cast(flat, DType::kInt64, at), {0}, false, at);
  Tensor found = where(less(arange_like(order, 0, at), count, at), order, -1, at);
  if (listed < size) found = concat({found, full(found, {size - listed}, -1, at)}, 0, at);
  return {found, count};
}

// Of the sorted numbers those that differ from the one before begin a run, which ends where the next begins.
Distinct unique(Tensor x, int64_t size, Here at) {
  at = at.In("unique");
  GraphOf("unique", x, at);
  NeedSize("unique", "size", size, 0, at);
  const int64_t all = x.shape().elements();
  if (all == 0) {
    Tensor none = full(x.graph(), {size}, 0, DType::kInt64, at);
    return {zeros(x, {size}, at), none, full(x.graph(), {}, 0, DType::kInt64, at)};
  }
  Tensor sorted = sort(reshape(x, {all}, at), 0, false, at).values;
  Tensor first = full(x.graph(), {1}, 1, DType::kBool, at);
  if (all > 1)
    first =
        concat({first, not_equal(slice(sorted, 0, 1, all, at), slice(sorted, 0, 0, all - 1, at), at)}, 0, at);
  Found begins = nonzero(first, size + 1, at);
  Tensor begin = slice(begins.indices, 0, 0, size, at), next = slice(begins.indices, 0, 1, size + 1, at);
  Tensor is = greater_equal(begin, 0, at);
  Tensor end = where(greater_equal(next, 0, at), next, static_cast<double>(all), at);
  Tensor values = take(sorted, 0, maximum(begin, 0, at), at);
  return {where(is, values, 0, at), where(is, sub(end, begin, at), 0, at), begins.count};
}

// --- Order ---------------------------------------------------------------------------------------

Tensor searchsorted(Tensor sorted, Tensor values, bool right, Here at) {
  at = at.In("searchsorted");
  NeedGiven("searchsorted", "sorted", sorted, at);
  NeedGiven("searchsorted", "values", values, at);
  if (sorted.shape().rank() != 1)
    Fail(Who("searchsorted", at), ": sorted is ", sorted.shape().str(), " but must have one axis");
  Tensor each = unsqueeze(values, -1, at);
  Tensor below = right ? less_equal(sorted, each, at) : less(sorted, each, at);
  return sum(cast(below, DType::kInt64, at), {-1}, false, at);
}

Tensor quantile(Tensor x, double q, int64_t axis, bool keep, Here at) {
  at = InFloating("quantile", x, at);
  NeedNumber(Who("quantile", at), "q", q, Domain::kShare);
  axis = NormalAxis("quantile", axis, x, at);
  const int64_t extent = Extent(x, axis);
  if (extent == 0) Fail(Who("quantile", at), ": axis ", axis, " of x has no elements");
  const double place = q * static_cast<double>(extent - 1);
  const int64_t below = static_cast<int64_t>(place);
  Tensor sorted = sort(x, axis, false, at).values, low = slice(sorted, axis, below, below + 1, at);
  if (below + 1 < extent) {
    Tensor step = sub(slice(sorted, axis, below + 1, below + 2, at), low, at);
    low = add(low, scale(step, place - static_cast<double>(below), at), at);
  }
  return keep ? low : squeeze(low, axis, at);
}

// --- Running results -----------------------------------------------------------------------------

Tensor cumprod(Tensor x, int64_t axis, Here at) {
  at = at.In("cumprod");
  axis = NormalAxis("cumprod", axis, x, at);
  return Running(x, axis, 1, at, [&](Tensor a, Tensor b) { return mul(a, b, at); });
}
Tensor cummax(Tensor x, int64_t axis, Here at) {
  at = at.In("cummax");
  axis = NormalAxis("cummax", axis, x, at);
  return Running(x, axis, ExtremeOf(x.dtype(), true), at,
                 [&](Tensor a, Tensor b) { return maximum(b, a, at); });
}
Tensor cummin(Tensor x, int64_t axis, Here at) {
  at = at.In("cummin");
  axis = NormalAxis("cummin", axis, x, at);
  return Running(x, axis, ExtremeOf(x.dtype(), false), at,
                 [&](Tensor a, Tensor b) { return minimum(b, a, at); });
}
// Finite, so that gradients are; where there is nothing above the least number, the greatest element is the
// sum.
Tensor logcumsumexp(Tensor x, int64_t axis, Here at) {
  at = InFloating("logcumsumexp", x, at);
  axis = NormalAxis("logcumsumexp", axis, x, at);
  constexpr double kLeast = -1e30;
  return InFloat32(x, at, [&](Tensor y) {
    Tensor sums = Running(maximum(y, kLeast, at), axis, kLeast, at,
                          [&](Tensor a, Tensor b) { return logaddexp(a, b, at); });
    return where(greater(sums, kLeast / 2, at), sums, cummax(y, axis, at), at);
  });
}

// --- Shape ---------------------------------------------------------------------------------------

namespace {

// What stands before (else after) x along an axis.
Tensor Border(Tensor x, int64_t axis, int64_t count, bool before, const PadOptions& options, const Here& at) {
  const int64_t extent = Extent(x, axis);
  if (options.mode == PadMode::kConstant) {
    Dims shape = x.shape();
    shape[static_cast<int>(axis)] = count;
    return full(x, shape, options.value, at);
  }
  const int64_t most = options.mode == PadMode::kReflect    ? extent - 1
                       : options.mode == PadMode::kCircular ? extent
                       : extent > 0                         ? count
                                                            : 0;
  if (count > most)
    Fail(Who("pad", at), ": ", count, " elements are wanted ", before ? "before" : "after", " axis ", axis,
         ", but with ", extent, " elements this mode can add at most ", std::max<int64_t>(most, 0));
  if (options.mode == PadMode::kReflect) {
    const int64_t begin = before ? 1 : extent - 1 - count;
    return flip(slice(x, axis, begin, begin + count, at), {axis}, at);
  }
  if (options.mode == PadMode::kCircular)
    return before ? slice(x, axis, extent - count, extent, at) : slice(x, axis, 0, count, at);
  const int64_t edge = before ? 0 : extent - 1;
  return repeat_interleave(slice(x, axis, edge, edge + 1, at), count, axis, at);
}

}  // namespace

Tensor pad(Tensor x, const std::vector<std::pair<int64_t, int64_t>>& elements, const PadOptions& options,
           Here at) {
  at = at.In("pad");
  GraphOf("pad", x, at);
  NeedEnum(Who("pad", at), "mode", options.mode, PadMode::kCircular, "PadMode");
  if (static_cast<int>(elements.size()) != x.shape().rank())
    Fail(Who("pad", at), ": elements are given for ", elements.size(), " axes, but x ", x.shape().str(),
         " has ", x.shape().rank());
  if (options.mode == PadMode::kConstant && !Holds(x.dtype(), options.value))
    Fail(Who("pad", at), ": value is ", options.value, ", which ", Name(x.dtype()), " does not hold");
  for (int64_t axis = 0; axis < x.shape().rank(); ++axis) {
    const auto [before, after] = elements[axis];
    if (before < 0 || after < 0)
      Fail(Who("pad", at), ": ", std::min(before, after), " elements are wanted along axis ", axis,
           "; slice takes some away");
    std::vector<Tensor> parts = {x};
    if (before > 0) parts.insert(parts.begin(), Border(x, axis, before, true, options, at));
    if (after > 0) parts.push_back(Border(x, axis, after, false, options, at));
    if (parts.size() > 1) x = concat(parts, axis, at);
  }
  return x;
}

Tensor unfold(Tensor x, int64_t axis, int64_t size, int64_t step, Here at) {
  at = at.In("unfold");
  axis = NormalAxis("unfold", axis, x, at);
  NeedSize("unfold", "size", size, 1, at);
  NeedSize("unfold", "step", step, 1, at);
  const int64_t extent = Extent(x, axis);
  if (size > extent)
    Fail(Who("unfold", at), ": size is ", size, " but axis ", axis, " of x has ", extent, " elements");
  const int64_t windows = (extent - size) / step + 1;
  HostTensor ids = HostTensor::Make(DType::kInt64, {windows, size});
  for (int64_t w = 0; w < windows; ++w)
    for (int64_t i = 0; i < size; ++i) ids.as<int64_t>()[w * size + i] = w * step + i;
  Tensor y = take(x, axis, constant(x.graph(), ids, at), at);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < y.shape().rank(); ++i)
    if (i != axis + 1) order.push_back(i);
  order.push_back(axis + 1);
  return axis + 1 == y.shape().rank() - 1 ? y : transpose(y, order, at);
}

namespace {

void NeedPictures(const char* op, const Tensor& x, int64_t r, const Here& at) {
  GraphOf(op, x, at);
  NeedSize(op, "r", r, 1, at);
  constexpr int64_t kMost = 1 << 15;  // whose square is a number
  if (r > kMost) Fail(Who(op, at), ": r is ", r, " but may be 2^15 at most");
  if (x.shape().rank() != 4)
    Fail(Who(op, at), ": x is ", x.shape().str(), " but must have the axes [n h w c]");
}

}  // namespace

Tensor pixel_shuffle(Tensor x, int64_t r, Here at) {
  at = at.In("pixel_shuffle");
  NeedPictures("pixel_shuffle", x, r, at);
  const Dims s = x.shape();
  if (s[3] % (r * r) != 0)
    Fail(Who("pixel_shuffle", at), ": axis 3 of x is ", s[3], " but must be a multiple of r * r, ", r * r);
  Tensor y = reshape(x, {s[0], s[1], s[2], s[3] / (r * r), r, r}, at);
  return reshape(transpose(y, {0, 1, 4, 2, 5, 3}, at), {s[0], s[1] * r, s[2] * r, s[3] / (r * r)}, at);
}

Tensor pixel_unshuffle(Tensor x, int64_t r, Here at) {
  at = at.In("pixel_unshuffle");
  NeedPictures("pixel_unshuffle", x, r, at);
  const Dims s = x.shape();
  for (int axis : {1, 2})
    if (s[axis] % r != 0)
      Fail(Who("pixel_unshuffle", at), ": axis ", axis, " of x is ", s[axis],
           " but must be a multiple of r, ", r);
  Tensor y = reshape(x, {s[0], s[1] / r, r, s[2] / r, r, s[3]}, at);
  return reshape(transpose(y, {0, 1, 3, 5, 2, 4}, at), {s[0], s[1] / r, s[2] / r, s[3] * r * r}, at);
}

// --- Biases of attention -------------------------------------------------------------------------

namespace {

// Of 2^k heads 2^(-8 i / 2^k), i = 1 to 2^k; of another number those of the power of two below, and then
// every second one of twice as many.
std::vector<float> Slopes(int64_t heads) {
  int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  std::vector<float> slopes;
  const auto slope = [](int64_t i, int64_t of) {
    return static_cast<float>(std::exp2(-8.0 * static_cast<double>(i) / static_cast<double>(of)));
  };
  for (int64_t i = 1; i <= power; ++i) slopes.push_back(slope(i, power));
  for (int64_t i = 1; static_cast<int64_t>(slopes.size()) < heads; i += 2)
    slopes.push_back(slope(i, 2 * power));
  return slopes;
}

}  // namespace

Tensor alibi(GraphBuilder* graph, int64_t heads, int64_t queries, int64_t keys, Here at) {
  at = at.In("alibi");
  NeedSize("alibi", "heads", heads, 1, at);
  NeedSize("alibi", "queries", queries, 1, at);
  NeedSize("alibi", "keys", keys, 1, at);
  HostTensor slopes = HostTensor::Make(DType::kFloat32, {heads, 1, 1});
  std::ranges::copy(Slopes(heads), slopes.as<float>());
  const double behind = static_cast<double>(keys - queries);
  Tensor query = reshape(arange(graph, behind, behind + static_cast<double>(queries), 1, DType::kFloat32, at),
                         {queries, 1}, at);
  Tensor key = arange(graph, 0, static_cast<double>(keys), 1, DType::kFloat32, at);
  return mul(constant(graph, slopes, at), neg(abs(sub(key, query, at), at), at), at);
}

Tensor relative_buckets(GraphBuilder* graph, int64_t queries, int64_t keys, const RelativeBuckets& options,
                        Here at) {
  at = at.In("relative_buckets");
  NeedSize("relative_buckets", "queries", queries, 1, at);
  NeedSize("relative_buckets", "keys", keys, 1, at);
  NeedSize("relative_buckets", "buckets", options.buckets, options.bidirectional ? 4 : 2, at);
  const int64_t buckets = options.bidirectional ? options.buckets / 2 : options.buckets, exact = buckets / 2;
  NeedSize("relative_buckets", "max_distance", options.max_distance, exact + 1, at);
  const double ratio = std::log(static_cast<double>(options.max_distance) / static_cast<double>(exact));
  const auto bucket = [&](int64_t apart) {  // key - query
    const int64_t first = options.bidirectional && apart > 0 ? buckets : 0;
    const int64_t distance = options.bidirectional ? std::abs(apart) : std::max<int64_t>(-apart, 0);
    if (distance < exact) return first + distance;
    const double far = std::log(static_cast<double>(distance) / static_cast<double>(exact)) / ratio;
    const int64_t more = static_cast<int64_t>(far * static_cast<double>(buckets - exact));
    return first + std::min(exact + more, buckets - 1);
  };
  HostTensor ids = HostTensor::Make(DType::kInt32, {queries, keys});
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = 0; j < keys; ++j)
      ids.as<int32_t>()[i * keys + j] = static_cast<int32_t>(bucket(j - i - (keys - queries)));
  return constant(graph, ids, at);
}

Tensor relative_places(GraphBuilder* graph, int64_t rows, int64_t columns, Here at) {
  at = at.In("relative_places");
  NeedSize("relative_places", "rows", rows, 1, at);
  NeedSize("relative_places", "columns", columns, 1, at);
  constexpr int64_t kMost = 4096;
  if (rows > kMost / columns)
    Fail(Who("relative_places", at), ": a window of ", rows, " x ", columns, " elements has more than ",
         kMost);
  const int64_t n = rows * columns;
  HostTensor ids = HostTensor::Make(DType::kInt32, {n, n});
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const int64_t down = i / columns - j / columns + rows - 1,
                    along = i % columns - j % columns + columns - 1;
      ids.as<int32_t>()[i * n + j] = static_cast<int32_t>(down * (2 * columns - 1) + along);
    }
  return constant(graph, ids, at);
}

}  // namespace oneflow_like
