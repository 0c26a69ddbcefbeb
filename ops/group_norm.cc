// group_norm (Wu and He 2018): the channels of each sample in groups, each normalised over its channels and
// all inner axes. Like layer_norm it also gives the statistics its gradient reads, in fp32.
#include <cmath>

#include "ops/language/functional.h"
#include "ops/language/numbers.h"
#include "ops/manifest.h"
#include "ops/reference.h"
#include "ops/statistics.h"

namespace oneflow_like {
namespace {

// x[n inner groups width], whatever the number of inner axes.
struct Groups {
  int64_t batch, inner, groups, width;
  int64_t count() const { return inner * width; }
  int64_t At(int64_t n, int64_t i, int64_t g, int64_t c) const {
    return ((n * inner + i) * groups + g) * width + c;
  }
};
Groups GroupsOf(const TensorArg& x, const TensorArg& statistic) {
  Groups s{x.extent[0], 1, statistic.extent[1], 0};
  for (int axis = 1; axis + 1 < x.extent.rank(); ++axis) s.inner *= x.extent[axis];
  if (s.groups > 0) s.width = x.extent.back() / s.groups;
  return s;
}

// Mean over a group of f(i, c).
template <typename F>
double GroupMean(const Groups& s, F&& f) {
  double total = 0;
  for (int64_t i = 0; i < s.inner; ++i) {
    for (int64_t c = 0; c < s.width; ++c) total += f(i, c);
  }
  return s.count() == 0 ? 0 : total / static_cast<double>(s.count());
}

Status GroupNormReference(const KernelContext& context) {
  const TensorArg &x = context.in[0], &gamma = context.in[1], &beta = context.in[2], &y = context.out[0];
  const Groups s = GroupsOf(x, context.out[1]);
  double eps = context.spec.attrs.Float("eps");
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t g = 0; g < s.groups; ++g) {
      auto at = [&](int64_t i, int64_t c) { return LoadFloat(x, s.At(n, i, g, c)); };
      double mean = GroupMean(s, at);
      double variance =
          GroupMean(s, [&](int64_t i, int64_t c) { return (at(i, c) - mean) * (at(i, c) - mean); });
      double rstd = 1 / std::sqrt(variance + eps);
      for (int64_t i = 0; i < s.inner; ++i) {
        for (int64_t c = 0; c < s.width; ++c) {
          double scale = rstd * LoadFloat(gamma, g * s.width + c);
          StoreFloat(y, s.At(n, i, g, c), (at(i, c) - mean) * scale + LoadFloat(beta, g * s.width + c));
        }
      }
      StoreFloat(context.out[1], n * s.groups + g, mean);
      StoreFloat(context.out[2], n * s.groups + g, rstd);
    }
  }
  return {};
}

// With m = (x - mean) rstd and d = dy gamma: dx = rstd (d - mean(d) - m mean(d m)).
Status GroupNormGradReference(const KernelContext& context) {
  const TensorArg &dy = context.in[0], &x = context.in[1], &gamma = context.in[2];
  const Groups s = GroupsOf(x, context.in[3]);
  auto normal = [&](int64_t n, int64_t i, int64_t g, int64_t c) {
    return (LoadFloat(x, s.At(n, i, g, c)) - LoadFloat(context.in[3], n * s.groups + g)) *
           LoadFloat(context.in[4], n * s.groups + g);
  };
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t g = 0; g < s.groups; ++g) {
      auto d = [&](int64_t i, int64_t c) {
        return LoadFloat(dy, s.At(n, i, g, c)) * LoadFloat(gamma, g * s.width + c);
      };
      double mean_d = GroupMean(s, d);
      double mean_dm = GroupMean(s, [&](int64_t i, int64_t c) { return d(i, c) * normal(n, i, g, c); });
      for (int64_t i = 0; i < s.inner; ++i) {
        for (int64_t c = 0; c < s.width; ++c)
          StoreFloat(
              context.out[0], s.At(n, i, g, c),
              LoadFloat(context.in[4], n * s.groups + g) * (d(i, c) - mean_d - normal(n, i, g, c) * mean_dm));
      }
    }
  }
  for (int64_t channel = 0; channel < s.groups * s.width; ++channel) {
    double dgamma = 0, dbeta = 0;
    int64_t g = channel / s.width, c = channel % s.width;
    for (int64_t n = 0; n < s.batch; ++n) {
      for (int64_t i = 0; i < s.inner; ++i) {
        dgamma += LoadFloat(dy, s.At(n, i, g, c)) * normal(n, i, g, c);
        dbeta += LoadFloat(dy, s.At(n, i, g, c));
      }
    }
    StoreFloat(context.out[1], channel, dgamma);
    StoreFloat(context.out[2], channel, dbeta);
  }
  return {};
}

// Labels of the axes between the batch and the channels.
std::string InnerAxes(const Dims& x) {
  std::string axes;
  for (int axis = 1; axis + 1 < x.rank(); ++axis) axes += Cat("i", axis, " ");
  return axes;
}
std::set<std::string> WholeAxes(const Dims& x) {
  std::set<std::string> whole = {"c"};
  for (int axis = 1; axis + 1 < x.rank(); ++axis) whole.insert(Cat("i", axis));
  return whole;
}

// x is operand `x` of `inputs`.
void CheckGroups(const OpCall& call, size_t inputs, size_t x, int64_t groups) {
  RequireInputs(call, inputs);
  RequireFloating(call);
  const Dims& shape = call.shapes[x];
  if (shape.rank() < 2)
    Fail(call.who, ": x has ", shape.rank(), shape.rank() == 1 ? " axis" : " axes",
         " but needs at least 2 (batch, .., channels)");
  if (groups < 1) Fail(call.who, ": groups is ", groups, " but must be at least 1");
  if (shape.back() % groups != 0)
    Fail(call.who, ": x has ", shape.back(), " channels, which do not divide into ", groups, " groups");
}

void CheckGroupNorm(const OpCall& call) {
  RequireInputs(call, 3);
  RequireAttr(call, "groups");
  RequireAttr(call, "eps");
  CheckGroups(call, 3, 0, call.attrs->Int("groups"));
  const char* const kNames[] = {"x", "gamma", "beta"};
  for (size_t i : {1, 2}) {
    if (call.shapes[i] != Dims{call.shapes[0].back()})
      Fail(call.who, ": ", kNames[i], " is ", call.shapes[i].str(), " but x has ", call.shapes[0].back(),
           " channels");
  }
  NeedNumber(call.who, "eps", call.attrs->Float("eps"), Domain::kPositive);
}

void CheckGroupNormGrad(const OpCall& call) {
  RequireInputs(call, 5);
  const Dims& x = call.shapes[1];
  if (call.shapes[0] != x) Fail(call.who, ": dy is ", call.shapes[0].str(), " but x is ", x.str());
  if (call.shapes[3].rank() != 2)
    Fail(call.who, ": mean is ", call.shapes[3].str(), " but must have 2 axes (batch, groups)");
  CheckGroups(call, 5, 1, call.shapes[3][1]);
}

// A group's statistics, and its elements in the shape [n, inner, groups, width], to broadcast against them.
struct GroupShapes {
  Dims whole, channels, each;
  GroupShapes(const Dims& x, int64_t groups) {
    const int64_t width = x.back() / groups;
    int64_t inner = 1;
    for (int axis = 1; axis + 1 < x.rank(); ++axis) inner *= x[axis];
    whole = {x[0], inner, groups, width};
    channels = {groups, width};
    each = {x[0], 1, groups, 1};
  }
};
// t in fp32 and that shape; undefined: undefined.
Tensor View(Tensor t, const Dims& shape) {
  return t.defined() ? reshape(InType(t, DType::kFloat32), shape) : t;
}

std::vector<Tensor> GroupNormGrad(const GradCall& call) {
  Tensor x = call.in[0], mean = call.out[1], rstd = call.out[2];
  std::vector<Tensor> din(3);
  if (call.dout[0].defined())
    din = Apply(x.graph(), "group_norm_grad", {call.dout[0], x, call.in[1], mean, rstd});
  if (!call.wanted[0] || (!call.dout[1].defined() && !call.dout[2].defined())) return din;
  // Through the statistics: dmean / count, and -rstd^3 (x - mean) drstd / count.
  const Dims shape = x.shape();
  const GroupShapes shapes(shape, mean.shape()[1]);
  const double count = static_cast<double>(shapes.whole[1] * shapes.whole[3]),
               part = count > 0 ? 1 / count : 0;
  if (call.dout[1].defined()) {
    Tensor each = broadcast_to(View(scale(call.dout[1], part), shapes.each), shapes.whole);
    din[0] = Accumulate(din[0], reshape(each, shape), x);
  }
  if (call.dout[2].defined()) {
    Tensor weight = scale(mul(call.dout[2], mul(square(rstd), rstd)), -part);
    Tensor away = sub(View(x, shapes.whole), View(mean, shapes.each));
    din[0] = Accumulate(din[0], reshape(mul(away, View(weight, shapes.each)), shape), x);
  }
  return din;
}

std::vector<Tensor> GroupNormGradGrad(const GradCall& call) {
  const GroupShapes shapes(call.in[1].shape(), call.in[3].shape()[1]);
  const auto& [whole, channels, each] = shapes;
  const NormSecond second =
      GradientOf({View(call.in[0], whole),
                  View(call.in[1], whole),
                  View(call.in[2], channels),
                  View(call.in[3], each),
                  View(call.in[4], each),
                  {1, 3}},
                 {View(call.dout[0], whole), View(call.dout[1], channels), View(call.dout[2], channels)});
  std::vector<Tensor> din = {second.dy, second.x, second.gamma, second.mean, second.rstd};
  for (size_t i = 0; i < din.size(); ++i) {
    if (!din[i].defined()) continue;
    if (i == 2) din[i] = sum_to(din[i], channels);
    din[i] = call.wanted[i] ? InType(reshape(din[i], call.in[i].shape()), call.in[i].dtype()) : Tensor();
  }
  return din;
}

double GroupNormFlops(const BoundRule& rule) {
  return 8.0 * static_cast<double>(rule.in[0].shape.elements());
}

Attrs GroupAttrs(int64_t groups) { return {{"groups", groups}, {"eps", 1e-5}}; }

}  // namespace

void AddGroupNorm(Catalog* catalog) {
  using enum DType;
  OpDef norm;
  norm.name = "group_norm";
  norm.doc =
      "(x - mean) / sqrt(variance + eps) * gamma + beta in groups of channels; also mean and 1 / "
      "sqrt(..).";
  norm.axes_of = [](const OpCall& call) {
    std::string inner = InnerAxes(call.shapes[0]);
    return "x[n " + inner + "(g c)], gamma[(g c)], beta[(g c)] -> y[n " + inner +
           "(g c)], mean[n g], rstd[n g]";
  };
  norm.whole_of = [](const OpCall& call) { return WholeAxes(call.shapes[0]); };
  norm.extents = [](const OpCall& call) -> std::map<std::string, int64_t> {
    return {{"g", call.attrs->Int("groups")}};
  };
  norm.dtypes = ResultTypes({0, kFloat32, kFloat32});
  norm.check = CheckGroupNorm;
  norm.grad = GroupNormGrad;
  norm.flops = GroupNormFlops;
  norm.reference = GroupNormReference;
  norm.precision = Precision::kFollow;
  norm.wide = {"gamma", "beta"};
  norm.samples = {{.in = {{3, 2, 3, 6}, {6}, {6}}, .attrs = GroupAttrs(2)},
                  {.in = {{2, 5, 4}, {4}, {4}}, .attrs = GroupAttrs(4)},
                  {.in = {{4, 6}, {6}, {6}}, .attrs = GroupAttrs(3)},
                  {.in = {{2, 3, 5}, {5}, {5}}, .attrs = GroupAttrs(1)},
                  {.in = {{0, 2, 2, 4}, {4}, {4}}, .attrs = GroupAttrs(2)},
                  {.in = {{2, 0, 4}, {4}, {4}}, .attrs = GroupAttrs(2)}};
  catalog->Add(std::move(norm));

  OpDef grad{.name = "group_norm_grad", .doc = "Gradients of group_norm with respect to x, gamma and beta."};
  grad.axes_of = [](const OpCall& call) {
    std::string plane = "n " + InnerAxes(call.shapes[1]) + "(g c)";
    return "dy[" + plane + "], x[" + plane + "], gamma[(g c)], mean[n g], rstd[n g] -> dx[" + plane +
           "], dgamma[(g c)], dbeta[(g c)]";
  };
  grad.folds = {{"n", Reduce::kSum}};
  grad.linear = {{"dy"}};
  grad.whole_of = [](const OpCall& call) { return WholeAxes(call.shapes[1]); };
  grad.dtypes = ResultTypes({1, 2, 2});
  grad.check = CheckGroupNormGrad;
  grad.grad = GroupNormGradGrad;
  grad.flops = GroupNormFlops;
  grad.reference = GroupNormGradReference;
  grad.precision = Precision::kFollow;
  grad.wide = {"gamma", "mean", "rstd"};
  grad.samples = {{.in = {{3, 2, 3, 6}, {3, 2, 3, 6}, {6}, {3, 2}, {3, 2}}},
                  {.in = {{2, 5, 4}, {2, 5, 4}, {4}, {2, 4}, {2, 4}}},
                  {.in = {{4, 6}, {4, 6}, {6}, {4, 3}, {4, 3}}},
                  {.in = {{2, 3, 5}, {2, 3, 5}, {5}, {2, 1}, {2, 1}}},
                  {.in = {{0, 2, 2, 4}, {0, 2, 2, 4}, {4}, {0, 2}, {0, 2}}},
                  {.in = {{2, 0, 4}, {2, 0, 4}, {4}, {2, 2}, {2, 2}}}};
  catalog->Add(std::move(grad));
}

}  // namespace oneflow_like
