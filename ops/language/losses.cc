// Losses as compositions: chains of elementwise operators, which the compiler fuses, around a reduction.
#include "ops/language/losses.h"

#include <algorithm>
#include <cmath>

#include "ops/language/calls.h"
#include "ops/language/expressions.h"
#include "ops/language/numbers.h"

namespace oneflow_like {
namespace {

// Throws Error unless both are of one floating type and of shapes that broadcast.
void NeedAlike(const char* op, const char* first, const Tensor& a, const char* second, const Tensor& b,
               const Here& at) {
  NeedFloating(op, first, a, at);
  NeedFloating(op, second, b, at);
  if (a.dtype() != b.dtype())
    Fail(Who(op, at), ": ", first, " is ", Name(a.dtype()), " but ", second, " is ", Name(b.dtype()),
         "; cast one of them");
  const Dims &x = a.shape(), &y = b.shape();
  for (int i = 1; i <= std::min(x.rank(), y.rank()); ++i) {
    const int64_t m = x[x.rank() - i], n = y[y.rank() - i];
    if (m != n && m != 1 && n != 1)
      Fail(Who(op, at), ": axis ", x.rank() - i, " of ", first, " ", x.str(), " is ", m, " but axis ",
           y.rank() - i, " of ", second, " ", y.str(), " is ", n);
  }
}

// x - target, of floating numbers of one type.
Tensor Apart(const char* op, Tensor x, Tensor target, const Here& at) {
  NeedAlike(op, "x", x, "target", target, at);
  return sub(x, target, at);
}

// d^2 / 2 inside [-bend, bend], and its tangents outside: with c = d held inside, c (d - c / 2).
Tensor Bent(Tensor d, double bend, const Here& at) {
  Tensor c = clamp(d, -bend, bend, at);
  return mul(c, sub(d, scale(c, 0.5, at), at), at);
}

// Of two classes: a probability. Another number fails the step.
Tensor Probability(const char* operand, Tensor p, const Here& at) {
  return Apply(p.graph(), "within", {p}, {{"low", 0.0}, {"high", 1.0}, {"operand", std::string(operand)}},
               at)[0];
}

// log(p), -100 below the least normal number. There no gradient flows.
Tensor HeldLog(Tensor p, const Here& at) {
  constexpr double kLeast = 1.2e-38;
  return where(greater(p, kLeast, at), log(maximum(p, kLeast, at), at), -100, at);
}

}  // namespace

Tensor mse_loss(Tensor x, Tensor target, Here at) {
  at = at.In("mse_loss");
  return square(Apart("mse_loss", x, target, at), at);
}

Tensor l1_loss(Tensor x, Tensor target, Here at) {
  at = at.In("l1_loss");
  return abs(Apart("l1_loss", x, target, at), at);
}

Tensor huber_loss(Tensor x, Tensor target, double delta, Here at) {
  at = at.In("huber_loss");
  NeedNumber(Who("huber_loss", at), "delta", delta, Domain::kPositive);
  return Bent(Apart("huber_loss", x, target, at), delta, at);
}

Tensor smooth_l1_loss(Tensor x, Tensor target, double beta, Here at) {
  at = at.In("smooth_l1_loss");
  NeedNumber(Who("smooth_l1_loss", at), "beta", beta, Domain::kDivisor);
  Tensor d = Apart("smooth_l1_loss", x, target, at);
  return beta == 0 ? abs(d, at) : scale(Bent(d, beta, at), 1 / beta, at);
}

Tensor hinge_loss(Tensor x, Tensor target, Here at) {
  at = at.In("hinge_loss");
  NeedAlike("hinge_loss", "x", x, "target", target, at);
  return relu(shift(neg(mul(x, target, at), at), 1, at), at);
}

Tensor bce_loss(Tensor p, Tensor target, Here at) {
  at = at.In("bce_loss");
  NeedAlike("bce_loss", "p", p, "target", target, at);
  p = Probability("p", p, at);
  target = Probability("target", target, at);
  Tensor other = shift(neg(p, at), 1, at), rest = shift(neg(target, at), 1, at);
  return neg(add(mul(target, HeldLog(p, at), at), mul(rest, HeldLog(other, at), at), at), at);
}

// -log(sigmoid(x)) is softplus(-x), and -log(1 - sigmoid(x)) is softplus(-x) + x.
Tensor bce_with_logits_loss(Tensor x, Tensor target, Tensor pos_weight, Here at) {
  at = at.In("bce_with_logits_loss");
  NeedAlike("bce_with_logits_loss", "x", x, "target", target, at);
  if (pos_weight.defined()) NeedAlike("bce_with_logits_loss", "x", x, "pos_weight", pos_weight, at);
  target = Probability("target", target, at);
  Tensor rest = shift(neg(target, at), 1, at), below = softplus(neg(x, at), at);
  if (pos_weight.defined()) {
    Tensor weight = add(mul(pos_weight, target, at), rest, at);
    below = mul(weight, below, at);
  }
  return add(mul(rest, x, at), below, at);
}

Tensor kl_div_loss(Tensor x, Tensor target, bool log_target, Here at) {
  at = at.In("kl_div_loss");
  NeedAlike("kl_div_loss", "x", x, "target", target, at);
  if (log_target) return mul(exp(target, at), sub(target, x, at), at);
  Tensor some = greater(target, 0, at), logs = log(where(some, target, 1, at), at);
  return where(some, mul(target, sub(logs, x, at), at), 0, at);
}

Tensor nll_loss(Tensor x, Tensor target, Here at) {
  at = InFloating("nll_loss", x, at);
  NeedInteger("nll_loss", "target", target, at);
  if (x.shape().rank() == 0) Fail(Who("nll_loss", at), ": x has no axes but needs one of classes");
  const Dims rows(x.shape().begin(), x.shape().end() - 1);
  if (target.shape() != rows)
    Fail(Who("nll_loss", at), ": target is ", target.shape().str(), " but x ", x.shape().str(),
         " without its classes is ", rows.str());
  return neg(pick(x, target, at), at);
}

namespace {

// The targets, -1 where they are to be ignored.
Tensor Counted(Tensor target, const CrossEntropyOptions& options, const Here& at) {
  if (!options.ignore_index || *options.ignore_index < 0) return target;
  return where(equal(target, static_cast<double>(*options.ignore_index), at), -1, target, at);
}

void NeedClassWeights(const std::string& who, Tensor weights, int64_t classes) {
  if (weights.shape() == Dims{classes} && weights.dtype() == DType::kFloat32) return;
  Fail(who, ": class_weights is ", Name(weights.dtype()), weights.shape().str(), " but must be f32[", classes,
       "]");
}

// What the losses of classes share. `operands`: without the target; `mean_logit(weights)`: the mean over the
// classes of logits times weights, [c] (undefined: 1).
template <typename MeanLogit>
Tensor ClassLoss(const char* op, std::vector<Tensor> operands, const Attrs& attrs, int64_t classes,
                 Tensor target, const CrossEntropyOptions& options, MeanLogit mean_logit, const Here& at) {
  const double smooth = options.label_smoothing;
  const std::string who = Who(op, at);
  NeedInteger(op, "target", target, at);
  NeedNumber(who, "label_smoothing", smooth, Domain::kShare);
  NeedNumber(who, "z_loss", options.z_loss, Domain::kNotNegative);
  target = Counted(target, options, at);
  GraphBuilder* graph = operands[0].graph();
  operands.push_back(target);
  std::vector<Tensor> out = Apply(graph, op, operands, attrs, at);
  Tensor loss = out[0], lse = out[1], weights = options.class_weights;
  if (weights.defined()) {
    NeedClassWeights(who, weights, classes);
    loss = mul(loss, gather(weights, maximum(target, 0, at), at), at);
  }
  if (smooth == 0 && options.z_loss == 0) return loss;
  Tensor more;  // beside the target's own loss, also of targets that are ignored
  if (smooth > 0) {
    Tensor even = lse;
    if (weights.defined()) even = mul(lse, mean(weights, {}, false, at), at);
    even = sub(even, mean_logit(weights), at);
    loss = scale(loss, 1 - smooth, at);
    more = scale(even, smooth, at);
  }
  if (options.z_loss > 0) {
    Tensor z = scale(square(lse, at), options.z_loss, at);
    more = more.defined() ? add(more, z, at) : z;
  }
  return add(loss, where(less(target, 0, at), 0, more, at), at);
}

}  // namespace

Tensor cross_entropy(Tensor logits, Tensor target, const CrossEntropyOptions& options, Here at) {
  at = at.In("cross_entropy");
  NeedGiven("cross_entropy", "logits", logits, at);
  const int64_t classes = logits.shape().rank() > 0 ? logits.shape().back() : 0;
  const auto mean_logit = [&](Tensor weights) {
    Tensor wide = cast(logits, DType::kFloat32, at);
    return mean(weights.defined() ? mul(wide, weights, at) : wide, {-1}, false, at);
  };
  return ClassLoss("cross_entropy", {logits}, {}, classes, target, options, mean_logit, at);
}

Tensor linear_cross_entropy(Tensor x, Tensor w, Tensor target, const CrossEntropyOptions& options,
                            int64_t tile, Here at) {
  at = at.In("linear_cross_entropy");
  NeedGiven("linear_cross_entropy", "x", x, at);
  NeedGiven("linear_cross_entropy", "w", w, at);
  const int64_t classes = w.shape().rank() > 0 ? w.shape()[0] : 0;
  // x times the mean of w over the classes.
  const auto mean_logit = [&](Tensor weights) {
    Tensor wide = cast(w, DType::kFloat32, at);
    Tensor even = weights.defined()
                      ? scale(einsum("c,ck->k", weights, wide, at), 1.0 / static_cast<double>(classes), at)
                      : mean(wide, {0}, false, at);
    std::string rows;
    for (int axis = 0; axis + 1 < x.shape().rank(); ++axis) rows += static_cast<char>('a' + axis);
    return cast(einsum(rows + "k,k->" + rows, x, cast(even, x.dtype(), at), at), DType::kFloat32, at);
  };
  return ClassLoss("linear_cross_entropy", {x, w}, {{"tile", tile}}, classes, target, options, mean_logit,
                   at);
}

Tensor mean_linear_cross_entropy(Tensor x, Tensor w, Tensor target, const CrossEntropyOptions& options,
                                 int64_t tile, Here at) {
  const char* const op = "mean_linear_cross_entropy";
  at = at.In(op);
  const int64_t rows = target.defined() ? target.shape().elements() : 0;
  if (options.label_smoothing != 0 || options.z_loss != 0 || rows == 0)
    return mean(linear_cross_entropy(x, w, target, options, tile, at), {}, false, at);
  NeedGiven(op, "x", x, at);
  NeedGiven(op, "w", w, at);
  NeedInteger(op, "target", target, at);
  target = Counted(target, options, at);
  Tensor weights = options.class_weights, share;
  if (weights.defined()) {
    NeedClassWeights(Who(op, at), weights, w.shape().rank() > 0 ? w.shape()[0] : 0);
    share = scale(gather(weights, maximum(target, 0, at), at), 1.0 / static_cast<double>(rows), at);
  } else {
    share = full(x.graph(), target.shape(), 1.0 / static_cast<double>(rows), DType::kFloat32, at);
  }
  return Apply(x.graph(), "linear_cross_entropy_sum", {x, w, target, share}, {{"tile", tile}}, at)[0];
}

Tensor cosine_similarity(Tensor a, Tensor b, int64_t axis, double eps, Here at) {
  at = at.In("cosine_similarity");
  NeedFloating("cosine_similarity", "a", a, at);
  NeedFloating("cosine_similarity", "b", b, at);
  if (a.shape() != b.shape())
    Fail(Who("cosine_similarity", at), ": a is ", a.shape().str(), " but b is ", b.shape().str());
  NeedNumber(Who("cosine_similarity", at), "eps", eps, Domain::kDivisor);
  axis = NormalAxis("cosine_similarity", axis, a, at);
  Tensor along = sum(mul(a, b, at), {axis}, false, at);
  Tensor lengths = mul(maximum(norm(a, 2, {axis}, false, at), eps, at),
                       maximum(norm(b, 2, {axis}, false, at), eps, at), at);
  return div(along, lengths, at);
}

namespace {

// (1 - p)^gamma, given 1 - p. Held away from 0, where a power below 1 has no slope.
Tensor Focus(Tensor rest, double gamma, const Here& at) { return pow(maximum(rest, 1e-30, at), gamma, at); }

}  // namespace

Tensor sigmoid_focal_loss(Tensor x, Tensor target, const SigmoidFocal& options, Here at) {
  at = at.In("sigmoid_focal_loss");
  NeedAlike("sigmoid_focal_loss", "x", x, "target", target, at);
  NeedNumber(Who("sigmoid_focal_loss", at), "gamma", options.gamma, Domain::kNotNegative);
  if (!(options.alpha < 0)) NeedNumber(Who("sigmoid_focal_loss", at), "alpha", options.alpha, Domain::kShare);
  Tensor loss = bce_with_logits_loss(x, target, {}, at), other = shift(neg(target, at), 1, at);
  if (options.gamma != 0) {
    Tensor rest = add(mul(sigmoid(x, at), other, at), mul(sigmoid(neg(x, at), at), target, at), at);
    loss = mul(loss, Focus(rest, options.gamma, at), at);
  }
  if (options.alpha < 0) return loss;
  return mul(loss, add(scale(target, options.alpha, at), scale(other, 1 - options.alpha, at), at), at);
}

Tensor focal_loss(Tensor logits, Tensor target, const Focal& options, Here at) {
  at = at.In("focal_loss");
  NeedNumber(Who("focal_loss", at), "gamma", options.gamma, Domain::kNotNegative);
  Tensor loss = cross_entropy(logits, target, at);
  Tensor rest = neg(expm1(neg(loss, at), at), at);
  if (options.gamma != 0) loss = mul(loss, Focus(rest, options.gamma, at), at);
  if (!options.class_weights.defined()) return loss;
  Tensor weights = options.class_weights;
  NeedFloating("focal_loss", "class_weights", weights, at);
  if (weights.shape() != Dims{logits.shape().back()})
    Fail(Who("focal_loss", at), ": class_weights is ", weights.shape().str(), " but must be [",
         logits.shape().back(), "], one for each class of logits ", logits.shape().str());
  return mul(loss, gather(cast(weights, DType::kFloat32, at), maximum(target, 0, at), at), at);
}

Tensor ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths,
                const Ctc& options, Here at) {
  at = at.In("ctc_loss");
  Tensor loss =
      One("ctc_loss", {log_probs, targets, input_lengths, target_lengths}, {{"blank", options.blank}}, at);
  return options.zero_infinity ? where(isfinite(loss, at), loss, 0, at) : loss;
}

Tensor triplet_margin_loss(Tensor anchor, Tensor positive, Tensor negative, const TripletMargin& options,
                           Here at) {
  at = at.In("triplet_margin_loss");
  const std::string who = Who("triplet_margin_loss", at);
  NeedAlike("triplet_margin_loss", "anchor", anchor, "positive", positive, at);
  NeedAlike("triplet_margin_loss", "anchor", anchor, "negative", negative, at);
  NormalAxis("triplet_margin_loss", -1, anchor, at);
  NeedNumber(who, "margin", options.margin, Domain::kFinite);
  NeedNumber(who, "eps", options.eps, Domain::kNotNegative);
  const auto apart = [&](Tensor a, Tensor b) {
    return norm(shift(sub(a, b, at), options.eps, at), options.p, {-1}, false, at);
  };
  Tensor far = apart(anchor, negative);
  if (options.swap) far = minimum(far, apart(positive, negative), at);
  return relu(shift(sub(apart(anchor, positive), far, at), options.margin, at), at);
}

}  // namespace oneflow_like
