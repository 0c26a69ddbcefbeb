#include "ops/language/optimizers.h"

#include <cmath>

#include "core/glob.h"

namespace oneflow_like {

namespace {

// g + decay w, where the weight decays at all.
Tensor WithDecay(WeightUpdate& u, double weight_decay) {
  const double decay = weight_decay * u.Decay();
  return decay > 0 ? u.gradient() + scale(u.weight(), decay) : u.gradient();
}

// by old + (1 - by) now
Tensor Mixed(Tensor old, Tensor now, double by) { return scale(old, by) + scale(now, 1 - by); }

// 1 - beta^t, t the updates made when this one is: the correction of an average that began at 0.
Tensor Correction(Tensor updates, double beta) {
  if (beta == 0) return shift(scale(updates, 0), 1);
  return shift(neg(exp(scale(shift(updates, 1), std::log(beta)))), 1);
}

Tensor Norm(Tensor x) { return sqrt(sum(square(x))); }

// How many leading axes make the rows of the most square matrix.
int RowAxes(const Dims& shape) {
  int best = 1;
  double least = -1;
  for (int axes = 1; axes < shape.rank(); ++axes) {
    double rows = 1, columns = 1;
    for (int i = 0; i < shape.rank(); ++i) (i < axes ? rows : columns) *= static_cast<double>(shape[i]);
    const double skew = std::abs(std::log(std::max(1.0, rows)) - std::log(std::max(1.0, columns)));
    if (least >= 0 && skew >= least) continue;
    best = axes;
    least = skew;
  }
  return best;
}

// The orthogonal matrix next to x, nearly: singular values come to lie between 0.7 and 1.2 (the authors'
// quintic).
Tensor NewtonSchulz(Tensor x, int iterations) {
  const bool tall = x.shape()[0] > x.shape()[1];
  if (tall) x = transpose(x, {1, 0});
  x = x / shift(Norm(x), 1e-7);
  for (int i = 0; i < iterations; ++i) {
    Tensor a = einsum("ik,jk->ij", x, x);
    Tensor b = scale(a, -4.7750) + scale(matmul(a, a), 2.0315);
    x = scale(x, 3.4445) + matmul(b, x);
  }
  return tall ? transpose(x, {1, 0}) : x;
}

bool MatchesAny(const std::vector<std::string>& patterns, const std::string& path) {
  for (const std::string& pattern : patterns)
    if (MatchesGlob(pattern, path)) return true;
  return false;
}

}  // namespace

RmsProp::operator Optimizer() const {
  Optimizer optimizer("rmsprop", [rule = *this](WeightUpdate& u) {
    Tensor w = u.weight(), g = WithDecay(u, rule.weight_decay), s = u.State("rmsprop_s");
    Tensor squares = Mixed(s, square(g), rule.alpha);
    Tensor step = g / shift(sqrt(squares), rule.eps);
    if (rule.momentum > 0) {
      Tensor v = u.State("rmsprop_v");
      step = scale(v, rule.momentum) + step;
      u.Assign(v, step);
    }
    u.Assign(s, squares);
    u.Assign(w, w - step * u.Rate(rule.lr));
  });
  optimizer.numbers = {
      {"lr", lr}, {"alpha", alpha}, {"eps", eps}, {"momentum", momentum}, {"weight_decay", weight_decay}};
  return optimizer;
}

namespace {

// state[v] of the rows of a list, which ends with -1: there it is what some row has, or 0.
Tensor TouchedIn(Tensor state, const TouchedRows& touched) {
  const int64_t places = touched.rows.shape()[0], rows = state.shape()[0];
  if (touched.parts == 0) return take(state, 0, maximum(touched.rows, zeros_like(touched.rows)));
  Tensor list = reshape(touched.rows, {touched.parts, places / touched.parts});
  return reshape(embedding_in_parts(reshape(state, {rows, 1}), list), {places});
}

}  // namespace

Adagrad::operator Optimizer() const {
  Optimizer optimizer("adagrad", [rule = *this](WeightUpdate& u) {
    Tensor w = u.weight();
    if (const TouchedRows touched = u.Rows(); touched.rows.defined()) {
      Tensor state = u.RowState("adagrad_s", rule.initial), squares = mean(square(touched.values), {1});
      Tensor by = shift(sqrt(TouchedIn(state, touched) + squares), rule.eps);
      u.FusedRows("add_squares_to_rows", state, squares, {{"lr", rule.lr}});
      return u.FusedRows("sgd_rows", w, touched.values / unsqueeze(by, 1), {{"lr", rule.lr}});
    }
    Tensor g = WithDecay(u, rule.weight_decay), squares = square(g);
    const bool rows = rule.by_rows && w.shape().rank() > 1;
    Tensor s = rows ? u.RowState("adagrad_s", rule.initial) : u.State("adagrad_s", rule.initial);
    if (rows) {
      std::vector<int64_t> columns;
      for (int i = 1; i < w.shape().rank(); ++i) columns.push_back(i);
      squares = mean(squares, columns);
    }
    Tensor total = s + squares, by = shift(sqrt(total), rule.eps);
    if (rows) {
      Dims column(w.shape().rank(), 1);
      column[0] = w.shape()[0];
      by = reshape(by, column);
    }
    u.Assign(s, total);
    u.Assign(w, w - g / by * u.Rate(rule.lr));
  });
  optimizer.numbers = {{"lr", lr}, {"eps", eps}, {"initial", initial}, {"weight_decay", weight_decay}};
  optimizer.by_rows = by_rows && weight_decay == 0;
  return optimizer;
}

Lamb::operator Optimizer() const {
  Optimizer optimizer("lamb", [rule = *this](WeightUpdate& u) {
    Tensor w = u.weight(), g = u.gradient(), m = u.State("lamb_m"), v = u.State("lamb_v");
    Tensor mean_g = Mixed(m, g, rule.beta1), squares = Mixed(v, square(g), rule.beta2);
    Tensor root = sqrt(squares / Correction(u.Updates(), rule.beta2));
    Tensor step = mean_g / Correction(u.Updates(), rule.beta1) / shift(root, rule.eps);
    const double decay = rule.weight_decay * u.Decay();
    if (decay > 0) step = step + scale(w, decay);
    Tensor of_w = Norm(w), of_step = Norm(step), zero = scale(of_w, 0), one = shift(zero, 1);
    Tensor both = of_w * of_step;
    Tensor trust = where(greater(both, zero), of_w / where(greater(of_step, zero), of_step, one), one);
    u.Assign(m, mean_g);
    u.Assign(v, squares);
    u.Assign(w, w - step * (trust * u.Rate(rule.lr)));
  });
  optimizer.numbers = {
      {"lr", lr}, {"beta1", beta1}, {"beta2", beta2}, {"eps", eps}, {"weight_decay", weight_decay}};
  return optimizer;
}

Lion::operator Optimizer() const {
  Optimizer optimizer("lion", [rule = *this](WeightUpdate& u) {
    Tensor w = u.weight(), g = u.gradient(), m = u.State("lion_m");
    Tensor direction = sign(Mixed(m, g, rule.beta1));
    const double decay = rule.weight_decay * u.Decay();
    if (decay > 0) direction = direction + scale(w, decay);
    u.Assign(m, Mixed(m, g, rule.beta2));
    u.Assign(w, w - direction * u.Rate(rule.lr));
  });
  optimizer.numbers = {{"lr", lr}, {"beta1", beta1}, {"beta2", beta2}, {"weight_decay", weight_decay}};
  return optimizer;
}

Muon::operator Optimizer() const {
  Optimizer optimizer("muon", [rule = *this](WeightUpdate& u) {
    Tensor w = u.weight();
    if (w.shape().rank() < 2 || MatchesAny(rule.except, u.path())) return rule.others.update(u);
    const int axes = RowAxes(w.shape());
    int64_t rows = 1, columns = 1;
    for (int i = 0; i < w.shape().rank(); ++i) (i < axes ? rows : columns) *= w.shape()[i];
    Tensor g = u.gradient(), m = u.State("muon_m");
    Tensor average = Mixed(m, g, rule.momentum);
    Tensor matrix = rule.nesterov ? Mixed(average, g, rule.momentum) : average;
    if (w.shape().rank() > 2) matrix = reshape(matrix, {rows, columns});
    Tensor step = NewtonSchulz(matrix, rule.iterations);
    if (w.shape().rank() > 2) step = reshape(step, w.shape());
    step = scale(step, std::sqrt(std::max(1.0, static_cast<double>(columns) / std::max<double>(1, rows))));
    const double decay = rule.weight_decay * u.Decay();
    if (decay > 0) step = step + scale(w, decay);
    u.Assign(m, average);
    u.Assign(w, w - step * u.Rate(rule.lr));
  });
  optimizer.numbers = {{"lr", lr},
                       {"momentum", momentum},
                       {"weight_decay", weight_decay},
                       {"iterations", int64_t{iterations}}};
  optimizer.others = {others};
  return optimizer;
}

}  // namespace oneflow_like
