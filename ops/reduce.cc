// Reductions: sum, mean, max, min, argmax, sum_to and square_sum. A rank that holds part of a reduced axis
// folds its part, and the parts recombine by the same fold.
#include <array>
#include <limits>

#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

using Mask = std::array<bool, Dims::kMaxRank>;  // per axis of x: whether it is reduced

Mask MaskOf(const Attrs& attrs) {
  Mask mask{};
  for (int64_t axis : attrs.Ints("axes")) mask[axis] = true;
  return mask;
}

// sum_to: missing leading axes, and those that become 1.
Mask SumToMask(const Dims& x, const Dims& shape) {
  Mask mask{};
  int lead = x.rank() - shape.rank();
  for (int i = 0; i < x.rank(); ++i) mask[i] = i < lead || (shape[i - lead] == 1 && x[i] != 1);
  return mask;
}

// --- Reference kernels ---------------------------------------------------------------------------

// y = step(step(identity, x_0), x_1) ..., over the reduced axes of each kept index. `step` is given Wide
// values.
template <typename T, typename Step, typename Finish>
void Fold(const TensorArg& x, const TensorArg& y, const Mask& mask, Wide<T> identity, Step step,
          Finish finish) {
  Dims kept = x.extent, reduced = x.extent;
  for (int i = 0; i < x.extent.rank(); ++i) (mask[i] ? kept : reduced)[i] = 1;
  int64_t out = 0;
  ForEachIndex(kept, [&](const Dims& base) {
    Wide<T> total = identity;
    ForEachIndex(reduced, [&](const Dims& inner) {
      Dims index = base;
      for (int i = 0; i < index.rank(); ++i) index[i] += inner[i];
      total = step(total, Load(x.as<T>() + OffsetOf(x.extent, index)));
    });
    if (y.dtype == x.dtype) {
      Store(y.as<T>() + out++, finish(total));
    } else {
      StoreFloat(y, out++, static_cast<double>(finish(total)));
    }
  });
}

template <typename T>
Wide<T> Lowest() {
  if constexpr (kIsFloating<T>) {
    return -std::numeric_limits<double>::infinity();
  } else {
    return static_cast<Wide<T>>(std::numeric_limits<T>::lowest());
  }
}
template <typename T>
Wide<T> Highest() {
  if constexpr (kIsFloating<T>) {
    return std::numeric_limits<double>::infinity();
  } else {
    return static_cast<Wide<T>>(std::numeric_limits<T>::max());
  }
}

constexpr auto kAdd = [](auto a, auto b) { return a + b; };
constexpr auto kAsIs = [](auto a) { return a; };

Status Sum(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  DispatchType(x.dtype, [&](auto t) { Fold<decltype(t)>(x, y, MaskOf(context.spec.attrs), 0, kAdd, kAsIs); });
  return Status();
}

Status SumTo(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  Mask mask = SumToMask(x.global, context.spec.attrs.GetDims("shape"));
  DispatchType(x.dtype, [&](auto t) { Fold<decltype(t)>(x, y, mask, 0, kAdd, kAsIs); });
  return Status();
}

Status SquareSum(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  Mask all;
  all.fill(true);
  DispatchType(x.dtype, [&](auto t) {
    Fold<decltype(t)>(
        x, y, all, 0, [](auto a, auto b) { return a + b * b; }, kAsIs);
  });
  return Status();
}

Status Mean(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  Mask mask = MaskOf(context.spec.attrs);
  int64_t count = 1;
  for (int i = 0; i < x.global.rank(); ++i) count *= mask[i] ? x.global[i] : 1;
  DispatchFloating(x.dtype, [&](auto t) {
    Fold<decltype(t)>(x, y, mask, 0, kAdd, [count](double total) { return count == 0 ? 0 : total / count; });
  });
  return Status();
}

Status Max(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  DispatchType(x.dtype, [&](auto t) {
    using T = decltype(t);
    auto greater_of = [](auto a, auto b) { return b > a || b != b ? b : a; };
    Fold<T>(x, y, MaskOf(context.spec.attrs), Lowest<T>(), greater_of, kAsIs);
  });
  return Status();
}

Status Min(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  DispatchType(x.dtype, [&](auto t) {
    using T = decltype(t);
    auto lesser_of = [](auto a, auto b) { return b < a || b != b ? b : a; };
    Fold<T>(x, y, MaskOf(context.spec.attrs), Highest<T>(), lesser_of, kAsIs);
  });
  return Status();
}

Status Argmax(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  int axis = static_cast<int>(context.spec.attrs.Int("axis"));
  int64_t outer = OuterOf(x.extent, axis), n = x.extent[axis], inner = InnerOf(x.extent, axis);
  if (inner == 0) return Status();  // however many there are of nothing
  DispatchType(x.dtype, [&](auto t) {
    const auto* from = x.as<decltype(t)>();
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < inner; ++i) {
        int64_t best = 0;
        for (int64_t k = 1; k < n; ++k) {
          if (Load(from + (o * n + k) * inner + i) > Load(from + (o * n + best) * inner + i)) best = k;
        }
        y.as<int64_t>()[o * inner + i] = best;
      }
    }
  });
  return Status();
}

// --- Rules ---------------------------------------------------------------------------------------

// "x[a b c] -> y[a 1 c]": reduced axes lose their label, and stay as 1 where `keep` says so.
std::string ReducedAxes(int rank, const Mask& mask, const Mask& keep) {
  std::string out;
  for (int i = 0; i < rank; ++i) {
    if (mask[i] && !keep[i]) continue;
    out += (out.empty() ? "" : " ") + (mask[i] ? "1" : Letter(i));
  }
  return "x[" + Letters(0, rank) + "] -> y[" + out + "]";
}

Mask KeepOf(const Attrs& attrs) {
  Mask keep;
  keep.fill(attrs.Int("keep", 0) != 0);
  return keep;
}

std::map<std::string, Reduce> FoldReduced(int rank, const Mask& mask, Reduce fold) {
  std::map<std::string, Reduce> folds;
  for (int i = 0; i < rank; ++i) {
    if (mask[i]) folds[Letter(i)] = fold;
  }
  return folds;
}

void CheckAxes(const OpCall& call) {
  RequireInputs(call, 1);
  RequireAttr(call, "axes");
  Mask seen{};
  for (int64_t axis : call.attrs->Ints("axes")) {
    if (axis < 0 || axis >= call.shapes[0].rank()) {
      Fail(call.who, ": axis ", axis, " is outside its operand of ", call.shapes[0].rank(), " axes");
    }
    if (seen[axis]) Fail(call.who, ": axis ", axis, " is named twice");
    seen[axis] = true;
  }
}

std::vector<Sample> ReduceSamples() {
  auto axes = [](std::vector<int64_t> a, int64_t keep) {
    return Attrs{{"axes", std::move(a)}, {"keep", keep}};
  };
  return {{.in = {{6, 4, 5}}, .attrs = axes({1}, 0)},
          {.in = {{6, 4}}, .attrs = axes({0, 1}, 0)},
          {.in = {{3, 6, 4}}, .attrs = axes({0, 2}, 1)},
          {.in = {{7}}, .attrs = axes({0}, 1)}};
}

// dy with the reduced axes put back as 1.
Tensor WithReduced(Tensor dy, const Dims& x, const Attrs& attrs) {
  Dims shape = x;
  for (int64_t axis : attrs.Ints("axes")) shape[axis] = 1;
  return dy.shape() == shape ? dy : reshape(dy, shape);
}

OpDef ReduceOp(const std::string& name, const std::string& doc, Reduce fold, KernelFn reference) {
  OpDef def{.name = name, .doc = doc};
  def.axes_of = [](const OpCall& call) {
    CheckAxes(call);
    return ReducedAxes(call.shapes[0].rank(), MaskOf(*call.attrs), KeepOf(*call.attrs));
  };
  def.folds_of = [fold](const OpCall& call) {
    return FoldReduced(call.shapes[0].rank(), MaskOf(*call.attrs), fold);
  };
  def.check = [](const OpCall& call) {
    CheckAxes(call);
    RequireArithmetic(call);
  };
  def.reference = reference;
  def.samples = ReduceSamples();
  return def;
}

// The gradient of max and min: shared equally among the elements that are the extreme.
std::vector<Tensor> ShareAmongTies(const GradCall& c) {
  Tensor x = c.in[0], dy = WithReduced(c.dout[0], x.shape(), c.attrs);
  Tensor hit = cast(equal(x, WithReduced(c.out[0], x.shape(), c.attrs)), x.dtype());
  return {mul(hit, div(dy, sum(hit, c.attrs.Ints("axes"), true)))};
}

// Keeps elements apart, so that moving one a little seldom changes which is the extreme.
void SpreadSamples(OpDef* def) {
  for (Sample& s : def->samples) {
    s.low = -20;
    s.high = 20;
  }
}

void AddSums(Catalog* catalog) {
  OpDef sum = ReduceOp("sum", "The sum over some axes.", Reduce::kSum, Sum);
  sum.linear_of = [](const OpCall& call) {
    return call.attrs->Has("micro_batch") ? std::vector<std::set<std::string>>()
                                          : std::vector<std::set<std::string>>{{"x"}};
  };
  sum.turns_of = [](const OpCall& call) {
    std::set<std::string> turns;
    if (!call.attrs->Has("micro_batch")) return turns;
    for (int64_t axis : call.attrs->Ints("axes")) turns.insert(Letter(static_cast<int>(axis)));
    return turns;
  };
  sum.any_type = sum.typed = true;
  sum.grad = [](const GradCall& c) {
    Dims shape = c.in[0].shape();
    return std::vector<Tensor>{broadcast_to(WithReduced(c.dout[0], shape, c.attrs), shape)};
  };
  catalog->Add(std::move(sum));

  OpDef mean =
      ReduceOp("mean", "The sum over some axes, divided by their global extents.", Reduce::kSum, Mean);
  mean.linear = {{"x"}};
  mean.any_type = mean.typed = true;
  mean.check = [](const OpCall& call) {
    CheckAxes(call);
    RequireFloating(call);
  };
  mean.grad = [](const GradCall& c) {
    Dims shape = c.in[0].shape();
    int64_t count = 1;
    for (int64_t axis : c.attrs.Ints("axes")) count *= shape[axis];
    Tensor dy = scale(c.dout[0], count == 0 ? 0.0 : 1.0 / count);
    return std::vector<Tensor>{broadcast_to(WithReduced(dy, shape, c.attrs), shape)};
  };
  catalog->Add(std::move(mean));

  OpDef squares{.name = "square_sum",
                .doc = "The sum of the squares of all elements: what the norm of gradients is made of."};
  squares.axes_of = [](const OpCall& call) {
    RequireInputs(call, 1);
    return "x[" + Letters(0, call.shapes[0].rank()) + "] -> y[]";
  };
  squares.folds_of = [](const OpCall& call) {
    Mask all;
    all.fill(true);
    return FoldReduced(call.shapes[0].rank(), all, Reduce::kSum);
  };
  squares.check = [](const OpCall& call) { RequireFloating(call); };
  squares.flops = [](const BoundRule& rule) { return 2 * rule.Volume(); };
  squares.grad = [](const GradCall& c) { return std::vector<Tensor>{mul(scale(c.in[0], 2), c.dout[0])}; };
  squares.any_type = squares.typed = true;
  squares.reference = SquareSum;
  squares.samples = {{.in = {{6, 4}}}, {.in = {{7}}}, {.in = {{}}}};
  catalog->Add(std::move(squares));
}

void AddExtremes(Catalog* catalog) {
  OpDef max = ReduceOp("max", "The greatest over some axes; a NaN wins; over nothing, the least number.",
                       Reduce::kMax, Max);
  max.grad = ShareAmongTies;
  max.precision = Precision::kFollow;
  SpreadSamples(&max);
  catalog->Add(std::move(max));

  OpDef min = ReduceOp("min", "The least over some axes; a NaN wins; over nothing, the greatest number.",
                       Reduce::kMin, Min);
  min.grad = ShareAmongTies;
  min.precision = Precision::kFollow;
  SpreadSamples(&min);
  catalog->Add(std::move(min));

  OpDef argmax{.name = "argmax", .doc = "The index of the greatest along one axis, the first of equals."};
  argmax.axes_of = [](const OpCall& call) {
    RequireInputs(call, 1);
    RequireAttr(call, "axis");
    Mask mask{};
    mask[call.attrs->Int("axis")] = true;
    return ReducedAxes(call.shapes[0].rank(), mask, KeepOf(*call.attrs));
  };
  argmax.whole_of = [](const OpCall& call) {
    return std::set<std::string>{Letter(static_cast<int>(call.attrs->Int("axis")))};
  };
  argmax.check = [](const OpCall& call) {
    RequireInputs(call, 1);
    RequireArithmetic(call);
    RequireAttr(call, "axis");
    int64_t axis = call.attrs->Int("axis");
    if (axis < 0 || axis >= call.shapes[0].rank()) {
      Fail(call.who, ": axis ", axis, " is outside its operand of ", call.shapes[0].rank(), " axes");
    }
    if (call.shapes[0][static_cast<int>(axis)] == 0) {
      Fail(call.who, ": axis ", axis, " is 0 but must be at least 1 to have a greatest element");
    }
  };
  argmax.dtypes = ResultTypes({DType::kInt64});
  argmax.stops_gradient = true;
  argmax.any_type = true;
  argmax.reference = Argmax;
  argmax.samples = {{.in = {{6, 5}}, .attrs = {{"axis", int64_t{1}}}},
                    {.in = {{6, 5, 4}}, .attrs = {{"axis", int64_t{1}}, {"keep", int64_t{1}}}}};
  catalog->Add(std::move(argmax));
}

void AddSumTo(Catalog* catalog) {
  OpDef def{.name = "sum_to", .doc = "The inverse of broadcasting: sums x down to a shape."};
  def.check = [](const OpCall& call) {
    RequireInputs(call, 1);
    RequireArithmetic(call);
    RequireAttr(call, "shape");
    Dims x = call.shapes[0], shape = call.attrs->GetDims("shape");
    int lead = x.rank() - shape.rank();
    if (lead < 0) Fail(call.who, ": ", x.str(), " has fewer axes than ", shape.str());
    for (int i = 0; i < shape.rank(); ++i) {
      if (shape[i] != 1 && shape[i] != x[lead + i]) {
        Fail(call.who, ": axis ", lead + i, " is ", x[lead + i], " but must be ", shape[i],
             "; it can be summed to 1 only");
      }
    }
  };
  def.axes_of = [](const OpCall& call) {
    RequireInputs(call, 1);
    Dims x = call.shapes[0], shape = call.attrs->GetDims("shape");
    Mask keep{};
    for (int i = x.rank() - shape.rank(); i < x.rank(); ++i) keep[i] = true;
    return ReducedAxes(x.rank(), SumToMask(x, shape), keep);
  };
  def.folds_of = [](const OpCall& call) {
    const Dims& x = call.shapes[0];
    return FoldReduced(x.rank(), SumToMask(x, call.attrs->GetDims("shape")), Reduce::kSum);
  };
  def.linear = {{"x"}};
  def.grad = [](const GradCall& c) { return std::vector<Tensor>{broadcast_to(c.dout[0], c.in[0].shape())}; };
  def.any_type = def.typed = true;
  def.reference = SumTo;
  auto to = [](std::vector<int64_t> shape) { return Attrs{{"shape", std::move(shape)}}; };
  def.samples = {{.in = {{6, 4}}, .attrs = to({4})},
                 {.in = {{3, 6, 4}}, .attrs = to({6, 1})},
                 {.in = {{6, 4}}, .attrs = to({})},
                 {.in = {{6, 1}}, .attrs = to({1, 1})}};
  catalog->Add(std::move(def));
}

}  // namespace

void AddReduce(Catalog* catalog) {
  AddSums(catalog);
  AddExtremes(catalog);
  AddSumTo(catalog);
}

}  // namespace oneflow_like
