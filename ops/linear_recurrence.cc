// linear_recurrence: h[i] = a[i] h[i - 1] + b[i]. Its gradient is the same in the other direction.
#include "ops/along_axis.h"
#include "ops/language/functional.h"
#include "ops/language/sparse.h"

namespace oneflow_like {
namespace {

Status Recur(const KernelContext& context) {
  const TensorArg &a = context.in[0], &b = context.in[1], &first = context.in[2], &y = context.out[0];
  const AroundAxis at(a, AxisOf(context.spec));
  const bool reverse = context.spec.attrs.Int("reverse", 0) != 0;
  DispatchFloating(y.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t line = 0; line < at.outer * at.inner; ++line) {
      double h = Load(first.as<T>() + line);
      for (int64_t i = 0; i < at.along; ++i) {
        const int64_t s = reverse ? at.along - 1 - i : i;
        const int64_t offset = (line / at.inner * at.along + s) * at.inner + line % at.inner;
        h = Load(a.as<T>() + offset) * h + Load(b.as<T>() + offset);
        Store(y.as<T>() + offset, h);
      }
    }
  });
  return Status();
}

// x with each place's part moved to the next one, along the axis; `first` comes in, the last leaves.
Tensor Moved(Tensor x, int64_t axis, bool forward, Tensor first) {
  const int64_t extent = x.shape()[static_cast<int>(axis)];
  if (extent == 1) return first;
  if (forward) return concat({first, slice(x, axis, 0, extent - 1)}, axis);
  return concat({slice(x, axis, 1, extent), first}, axis);
}

std::vector<Tensor> Grad(const GradCall& c) {
  const int64_t axis = c.attrs.Int("axis"), extent = c.in[0].shape()[static_cast<int>(axis)];
  const bool reverse = c.attrs.Int("reverse", 0) != 0;
  const Tensor a = c.in[0], first = c.in[2], y = c.out[0];
  Dims place = a.shape();
  place[static_cast<int>(axis)] = 1;
  Attrs attrs = c.attrs;
  attrs.Set("reverse", int64_t{!reverse});
  // The gradient of each place has what the next one hands back to it.
  const Tensor none = full(a, place, 0), next = Moved(a, axis, reverse, none);
  const Tensor g =
      Apply(a.graph(), "linear_recurrence", {next, c.dout[0], full(a, Dims(first.shape()), 0)}, attrs)[0];
  std::vector<Tensor> d = {Tensor(), g, Tensor()};
  if (c.wanted[0]) d[0] = mul(g, Moved(y, axis, !reverse, unsqueeze(first, axis)));
  if (c.wanted[2]) {
    const int64_t at = reverse ? extent - 1 : 0;
    d[2] = squeeze(mul(slice(g, axis, at, at + 1), slice(a, axis, at, at + 1)), axis);
  }
  return d;
}

}  // namespace

void AddLinearRecurrence(Catalog* catalog) {
  OpDef def{.name = "linear_recurrence", .doc = "h = a h + b along one axis, from a first h."};
  def.axes_of = [](const OpCall& call) {
    const int rank = call.shapes[0].rank(), axis = RequireAxis(call);
    const std::string all = "[" + LettersAround(rank, axis, "s") + "]";
    std::string others;
    for (int i = 0; i < rank; ++i)
      if (i != axis) others += (others.empty() ? "" : " ") + Letter(i);
    return "a" + all + ", b" + all + ", first[" + others + "] -> y" + all;
  };
  def.whole = {"s"};
  def.linear = {{"b", "first"}};
  def.check = [](const OpCall& call) {
    RequireInputs(call, 3);
    RequireFloating(call);
    RequireSameTypes(call);
    if (call.shapes[0][RequireAxis(call)] < 1) Fail(call.who, ": the axis of the recurrence is empty");
  };
  def.flops = [](const BoundRule& rule) { return 2 * rule.Volume(); };
  def.grad = Grad;
  def.reference = Recur;
  const auto attrs = [](int64_t axis, int64_t reverse) {
    return Attrs{{"axis", axis}, {"reverse", reverse}};
  };
  def.samples = {{.in = {{3, 7}, {3, 7}, {3}}, .attrs = attrs(1, 0)},
                 {.in = {{6, 4}, {6, 4}, {4}}, .attrs = attrs(0, 1)},
                 {.in = {{3, 5, 2}, {3, 5, 2}, {3, 2}}, .attrs = attrs(1, 0)},
                 {.in = {{1, 4}, {1, 4}, {4}}, .attrs = attrs(0, 0)}};
  catalog->Add(std::move(def));
}

}  // namespace oneflow_like
