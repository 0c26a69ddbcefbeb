// layer_norm (Ba et al. 2016) and rms_norm (Zhang and Sennrich 2019) over the last axis. They also give the
// statistics their gradients read, in fp32 whatever the type of x. With attribute "residual" a gradient has
// one more operand, of dx's shape and type, that is added to dx before it is rounded: the gradient of the
// branch beside the norm (compiler/passes/fuse_epilogue.cc makes these).
#include <algorithm>
#include <cmath>

#include "ops/language/functional.h"
#include "ops/language/numbers.h"
#include "ops/manifest.h"
#include "ops/reference.h"
#include "ops/statistics.h"

namespace oneflow_like {
namespace {

// Mean over the last axis of f(c).
template <typename F>
double MeanOf(int64_t width, F&& f) {
  double total = 0;
  for (int64_t c = 0; c < width; ++c) total += f(c);
  return width == 0 ? 0 : total / static_cast<double>(width);
}

// x, gamma, beta -> y, mean, rstd; kCentred false: x, gamma -> y, rstd, as if the mean were 0.
template <bool kCentred>
Status NormReference(const KernelContext& context) {
  const TensorArg &x = context.in[0], &gamma = context.in[1], &y = context.out[0];
  const TensorArg& rstd = context.out[kCentred ? 2 : 1];
  double eps = context.spec.attrs.Float("eps");
  int64_t width = x.extent.back();
  for (int64_t row = 0; row < rstd.elements(); ++row) {
    auto at = [&](int64_t c) { return LoadFloat(x, row * width + c); };
    double mean = kCentred ? MeanOf(width, at) : 0;
    double variance = MeanOf(width, [&](int64_t c) { return (at(c) - mean) * (at(c) - mean); });
    double scale = 1 / std::sqrt(variance + eps);
    for (int64_t c = 0; c < width; ++c) {
      double shift = kCentred ? LoadFloat(context.in[2], c) : 0;
      StoreFloat(y, row * width + c, (at(c) - mean) * scale * LoadFloat(gamma, c) + shift);
    }
    if (kCentred) StoreFloat(context.out[1], row, mean);
    StoreFloat(rstd, row, scale);
  }
  return {};
}

bool HasResidual(const Attrs& attrs) { return attrs.Int("residual", 0) != 0; }

// dy, x, gamma, mean, rstd[, residual] -> dx, dgamma, dbeta; kCentred false: without mean and dbeta.
// With n = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - n mean(g n)) [+ residual].
template <bool kCentred>
Status NormGradReference(const KernelContext& context) {
  const TensorArg &dy = context.in[0], &x = context.in[1], &gamma = context.in[2];
  const TensorArg& rstd = context.in[kCentred ? 4 : 3];
  const TensorArg* residual = HasResidual(context.spec.attrs) ? &context.in[kCentred ? 5 : 4] : nullptr;
  int64_t width = x.extent.back(), rows = rstd.elements();
  auto normal = [&](int64_t row, int64_t c) {
    double mean = kCentred ? LoadFloat(context.in[3], row) : 0;
    return (LoadFloat(x, row * width + c) - mean) * LoadFloat(rstd, row);
  };
  for (int64_t row = 0; row < rows; ++row) {
    auto g = [&](int64_t c) { return LoadFloat(dy, row * width + c) * LoadFloat(gamma, c); };
    double mean_g = kCentred ? MeanOf(width, g) : 0;
    double mean_gn = MeanOf(width, [&](int64_t c) { return g(c) * normal(row, c); });
    for (int64_t c = 0; c < width; ++c) {
      double dx = LoadFloat(rstd, row) * (g(c) - mean_g - normal(row, c) * mean_gn);
      if (residual) dx += LoadFloat(*residual, row * width + c);
      StoreFloat(context.out[0], row * width + c, dx);
    }
  }
  for (int64_t c = 0; c < width; ++c) {
    double dgamma = 0, dbeta = 0;
    for (int64_t row = 0; row < rows; ++row) {
      dgamma += LoadFloat(dy, row * width + c) * normal(row, c);
      dbeta += LoadFloat(dy, row * width + c);
    }
    StoreFloat(context.out[1], c, dgamma);
    if (kCentred) StoreFloat(context.out[2], c, dbeta);
  }
  return {};
}

double ShareOf(Tensor rows) {  // of one element in the mean of its row
  const int64_t width = rows.shape().back();
  return width == 0 ? 0 : 1 / static_cast<double>(width);
}

// What reaches x through 1 / sqrt(variance + eps): -rstd^3 (x - mean) drstd / n. `centred` is x - mean in
// fp32.
Tensor ThroughRstd(Tensor centred, Tensor rstd, Tensor drstd) {
  Tensor weight = mul(drstd, mul(square(rstd), rstd));
  return mul(centred, Column(scale(weight, -ShareOf(centred))));
}

std::vector<Tensor> LayerNormGrad(const GradCall& call) {
  Tensor x = call.in[0], mean = call.out[1], rstd = call.out[2], dmean = call.dout[1], drstd = call.dout[2];
  std::vector<Tensor> din(3);
  if (call.dout[0].defined()) {
    din = Apply(x.graph(), "layer_norm_grad", {call.dout[0], x, call.in[1], mean, rstd});
  }
  if (!call.wanted[0]) return din;
  if (dmean.defined()) {
    Tensor each = scale(Column(dmean), ShareOf(x));
    din[0] = Accumulate(din[0], broadcast_to(each, x.shape()), x);
  }
  if (drstd.defined()) {
    Tensor centred = sub(InType(x, DType::kFloat32), Column(mean));
    din[0] = Accumulate(din[0], ThroughRstd(centred, rstd, drstd), x);
  }
  return din;
}

std::vector<Tensor> RmsNormGrad(const GradCall& call) {
  Tensor x = call.in[0], rstd = call.out[1], drstd = call.dout[1];
  std::vector<Tensor> din(2);
  if (call.dout[0].defined()) din = Apply(x.graph(), "rms_norm_grad", {call.dout[0], x, call.in[1], rstd});
  if (call.wanted[0] && drstd.defined()) {
    din[0] = Accumulate(din[0], ThroughRstd(InType(x, DType::kFloat32), rstd, drstd), x);
  }
  return din;
}

// din of {dy, x, gamma[, mean], rstd[, residual]} from dout of {dx, dgamma[, dbeta]}.
template <bool kCentred>
std::vector<Tensor> NormGradGrad(const GradCall& call) {
  auto wide = [](Tensor t) { return t.defined() ? InType(t, DType::kFloat32) : t; };
  const size_t rstd = kCentred ? 4 : 3;
  NormGradient norm{wide(call.in[0]), wide(call.in[1]), wide(call.in[2]), {}, {}, {-1}};
  if (kCentred) norm.mean = Column(wide(call.in[3]));
  norm.rstd = Column(wide(call.in[rstd]));
  NormCotangents g{wide(call.dout[0]), wide(call.dout[1]), {}};
  if (kCentred) g.dbeta = wide(call.dout[2]);
  const NormSecond second = GradientOf(norm, g);
  std::vector<Tensor> din = {second.dy, second.x, second.gamma};
  if (kCentred) din.push_back(second.mean);
  din.push_back(second.rstd);
  if (HasResidual(call.attrs)) din.push_back(call.dout[0]);
  for (size_t i = 0; i < din.size(); ++i) {
    if (!din[i].defined()) continue;
    if (i == 2) din[i] = sum_to(din[i], call.in[2].shape());
    din[i] = call.wanted[i] ? InType(reshape(din[i], call.in[i].shape()), call.in[i].dtype()) : Tensor();
  }
  return din;
}

// `inputs` floating operands; eps is there and positive when `eps`.
void CheckNorm(const OpCall& call, size_t inputs, bool eps) {
  RequireInputs(call, inputs);
  RequireFloating(call);
  if (!eps) return;
  RequireAttr(call, "eps");
  NeedNumber(call.who, "eps", call.attrs->Float("eps"), Domain::kPositive);
}

// dy, x, gamma, one or two statistics, and perhaps a residual. dy, x and the residual have one shape, and a
// statistic is of a row; they would broadcast otherwise.
void CheckNormGrad(const OpCall& call, size_t inputs) {
  CheckNorm(call, inputs + HasResidual(*call.attrs), false);
  const Dims& x = call.shapes[1];
  if (call.shapes[0] != x) Fail(call.who, ": dy is ", call.shapes[0].str(), " but x is ", x.str());
  if (HasResidual(*call.attrs) && call.shapes[inputs] != x)
    Fail(call.who, ": the residual is ", call.shapes[inputs].str(), " but x is ", x.str());
  if (HasResidual(*call.attrs) && call.dtypes[inputs] != call.dtypes[1])
    Fail(call.who, ": the residual is ", Name(call.dtypes[inputs]), " but x is ", Name(call.dtypes[1]));
  for (size_t i = 3; i < inputs; ++i) {
    if (call.shapes[i].rank() + 1 != x.rank() || call.shapes[i] != Dims(x.begin(), x.end() - 1)) {
      Fail(call.who, ": a statistic is ", call.shapes[i].str(), " but must be x ", x.str(),
           " without its last axis");
    }
  }
}

// The line of a gradient with its residual where it has one. A residual of partial sums goes with a dy of
// partial sums: then so is dx.
auto WithResidual(const std::string& in, const std::string& out) {
  const size_t inputs = std::count(in.begin(), in.end(), '[');
  return [in, out, inputs](const OpCall& call) {
    RequireInputs(call, inputs + HasResidual(*call.attrs));
    return in + (HasResidual(*call.attrs) ? ", residual[.. c]" : "") + " -> " + out;
  };
}
std::vector<std::set<std::string>> LinearOperands(const OpCall& call) {
  if (HasResidual(*call.attrs)) return {{"dy", "residual"}};
  return {{"dy"}};
}

double NormFlops(const BoundRule& rule) { return 8 * rule.Volume(); }

const Attrs kEps = {{"eps", 1e-5}}, kResidual = {{"residual", int64_t{1}}};

void AddLayerNorm(Catalog* catalog) {
  catalog->Add({
      .name = "layer_norm",
      .doc =
          "(x - mean) / sqrt(variance + eps) * gamma + beta over the last axis; also mean and 1 / sqrt(..).",
      .axes = "x[.. c], gamma[c], beta[c] -> y[.. c], mean[..], rstd[..]",
      .whole = {"c"},
      .dtypes = ResultTypes({0, DType::kFloat32, DType::kFloat32}),
      .check = [](const OpCall& call) { CheckNorm(call, 3, true); },
      .grad = LayerNormGrad,
      .flops = NormFlops,
      .reference = NormReference<true>,
      .precision = Precision::kFollow,
      .wide = {"gamma", "beta"},
      .samples = {{.in = {{5, 7}, {7}, {7}}, .attrs = kEps},
                  {.in = {{3, 1, 5}, {5}, {5}}, .attrs = kEps},
                  {.in = {{0, 3}, {3}, {3}}, .attrs = kEps}},
  });
  catalog->Add({
      .name = "layer_norm_grad",
      .doc =
          "Gradients of layer_norm with respect to x, gamma and beta; dx with something of its shape added.",
      .axes_of =
          WithResidual("dy[.. c], x[.. c], gamma[c], mean[..], rstd[..]", "dx[.. c], dgamma[c], dbeta[c]"),
      .folds = {{"..", Reduce::kSum}},
      .linear_of = LinearOperands,
      .whole = {"c"},
      .dtypes = ResultTypes({1, 2, 2}),
      .check = [](const OpCall& call) { CheckNormGrad(call, 5); },
      .grad = NormGradGrad<true>,
      .flops = NormFlops,
      .reference = NormGradReference<true>,
      .precision = Precision::kFollow,
      .wide = {"gamma", "mean", "rstd"},
      .samples = {{.in = {{5, 7}, {5, 7}, {7}, {5}, {5}}},
                  {.in = {{3, 1, 5}, {3, 1, 5}, {5}, {3, 1}, {3, 1}}},
                  {.in = {{0, 3}, {0, 3}, {3}, {0}, {0}}},
                  {.in = {{5, 7}, {5, 7}, {7}, {5}, {5}, {5, 7}}, .attrs = kResidual},
                  {.in = {{3, 1, 5}, {3, 1, 5}, {5}, {3, 1}, {3, 1}, {3, 1, 5}}, .attrs = kResidual},
                  {.in = {{0, 3}, {0, 3}, {3}, {0}, {0}, {0, 3}}, .attrs = kResidual}},
  });
}

void AddRmsNorm(Catalog* catalog) {
  catalog->Add({
      .name = "rms_norm",
      .doc = "x / sqrt(mean(x^2) + eps) * gamma over the last axis; also 1 / sqrt(..).",
      .axes = "x[.. c], gamma[c] -> y[.. c], rstd[..]",
      .whole = {"c"},
      .dtypes = ResultTypes({0, DType::kFloat32}),
      .check = [](const OpCall& call) { CheckNorm(call, 2, true); },
      .grad = RmsNormGrad,
      .flops = NormFlops,
      .reference = NormReference<false>,
      .precision = Precision::kFollow,
      .wide = {"gamma"},
      .samples = {{.in = {{5, 7}, {7}}, .attrs = kEps},
                  {.in = {{3, 1, 5}, {5}}, .attrs = kEps},
                  {.in = {{0, 3}, {3}}, .attrs = kEps}},
  });
  catalog->Add({
      .name = "rms_norm_grad",
      .doc = "Gradients of rms_norm with respect to x and gamma; dx with something of its shape added.",
      .axes_of = WithResidual("dy[.. c], x[.. c], gamma[c], rstd[..]", "dx[.. c], dgamma[c]"),
      .folds = {{"..", Reduce::kSum}},
      .linear_of = LinearOperands,
      .whole = {"c"},
      .dtypes = ResultTypes({1, 2}),
      .check = [](const OpCall& call) { CheckNormGrad(call, 4); },
      .grad = NormGradGrad<false>,
      .flops = NormFlops,
      .reference = NormGradReference<false>,
      .precision = Precision::kFollow,
      .wide = {"gamma", "rstd"},
      .samples = {{.in = {{5, 7}, {5, 7}, {7}, {5}}},
                  {.in = {{3, 1, 5}, {3, 1, 5}, {5}, {3, 1}}},
                  {.in = {{0, 3}, {0, 3}, {3}, {0}}},
                  {.in = {{5, 7}, {5, 7}, {7}, {5}, {5, 7}}, .attrs = kResidual},
                  {.in = {{3, 1, 5}, {3, 1, 5}, {5}, {3, 1}, {3, 1, 5}}, .attrs = kResidual}},
  });
}

}  // namespace

// With P(z) = z - E[z] - n E[z n], which is symmetric: sum(g dx) = sum(d rstd P(g)), and n is reached by
// -rstd (g E[d n] + d E[g n]) and by dy dgamma'.
NormSecond GradientOf(const NormGradient& norm, const NormCotangents& g) {
  const Tensor &dy = norm.dy, &rstd = norm.rstd;
  const bool centred = norm.mean.defined();
  Tensor away = centred ? sub(norm.x, norm.mean) : norm.x, n = mul(away, rstd), d = mul(dy, norm.gamma);
  auto average = [&](Tensor t) { return mean(t, norm.axes, true); };
  auto total = [&](Tensor t) { return sum(t, norm.axes, true); };
  auto plus = [](Tensor a, Tensor b) { return a.defined() ? add(a, b) : b; };
  NormSecond second;
  Tensor to_n;
  if (g.dx.defined()) {
    Tensor of_d = average(mul(d, n)), of_g = average(mul(g.dx, n));
    auto apart = [&](Tensor z, Tensor along) {
      Tensor rest = sub(z, mul(n, along));
      return centred ? sub(rest, average(z)) : rest;
    };
    Tensor back = mul(rstd, apart(g.dx, of_g));
    second.dy = mul(back, norm.gamma);
    second.gamma = mul(back, dy);
    second.rstd = total(mul(g.dx, apart(d, of_d)));
    to_n = neg(mul(rstd, add(mul(g.dx, of_d), mul(d, of_g))));
  }
  if (g.dgamma.defined()) {
    second.dy = plus(second.dy, mul(n, g.dgamma));
    to_n = plus(to_n, mul(dy, g.dgamma));
  }
  if (g.dbeta.defined())
    second.dy = second.dy.defined() ? add(second.dy, g.dbeta) : broadcast_to(g.dbeta, dy.shape());
  if (!to_n.defined()) return second;
  second.x = mul(to_n, rstd);
  if (centred) second.mean = neg(total(second.x));
  second.rstd = plus(second.rstd, total(mul(to_n, away)));
  return second;
}

void AddNorm(Catalog* catalog) {
  AddLayerNorm(catalog);
  AddRmsNorm(catalog);
}

}  // namespace oneflow_like
