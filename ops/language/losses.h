// Losses. None is reduced: each returns a loss per element, or per row where it says so; take the mean(), or
// the masked_mean() of the elements that count. `target` broadcasts to x as operands of elementwise operators
// do.
#pragma once

#include <optional>

#include "ops/language/functional.h"

namespace oneflow_like {

// --- Of numbers ---

Tensor mse_loss(Tensor x, Tensor target, OFL_HERE);  // (x - target)^2
Tensor l1_loss(Tensor x, Tensor target, OFL_HERE);   // |x - target|
// d = x - target: d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2) (Huber 1964). delta is above 0.
Tensor huber_loss(Tensor x, Tensor target, double delta = 1, OFL_HERE);
// huber_loss with delta = beta, divided by beta: d^2 / (2 beta) where |d| < beta, else |d| - beta / 2; beta 0
// is l1 (Girshick 2015).
Tensor smooth_l1_loss(Tensor x, Tensor target, double beta = 1, OFL_HERE);
// max(0, 1 - x target), target -1 or 1.
Tensor hinge_loss(Tensor x, Tensor target, OFL_HERE);

// --- Of two classes: target is the probability of the first. One outside [0, 1], or NaN, fails the step, as
// an index out of range does; so does a p outside [0, 1] ---

// -(t log p + (1 - t) log(1 - p)) of probabilities p in [0, 1]; logarithms of less than 10^-38 are -100.
Tensor bce_loss(Tensor p, Tensor target, OFL_HERE);
// The same with p = sigmoid(x), for any x without overflow. pos_weight (an optional Tensor that broadcasts to
// x) multiplies the term of t.
Tensor bce_with_logits_loss(Tensor x, Tensor target, Tensor pos_weight = {}, OFL_HERE);

// bce_with_logits_loss times (1 - p_t)^gamma, where p_t is the probability that p = sigmoid(x) gives to the
// target, and times alpha for the share of t and 1 - alpha for the rest (Lin et al. 2017).
struct SigmoidFocal {
  double alpha = 0.25;  // in [0, 1]; negative: no such factors
  double gamma = 2;     // 0 or more
};
Tensor sigmoid_focal_loss(Tensor x, Tensor target, const SigmoidFocal& options = {}, OFL_HERE);

// --- Of distributions ---

// target (log target - x) for log-probabilities x; 0 where target is 0. log_target: target has logarithms.
Tensor kl_div_loss(Tensor x, Tensor target, bool log_target = false, OFL_HERE);
// -x[target] of log-probabilities x[.. c], target[..] (i32 or i64, negative: ignored, loss 0) -> [..]. The
// class axis may be cut.
Tensor nll_loss(Tensor x, Tensor target, OFL_HERE);

struct CrossEntropyOptions {
  // The share of each target that is spread evenly over all classes (Szegedy et al. 2016): in [0, 1].
  double label_smoothing = 0;
  // Adds z_loss log(sum(exp(logits)))^2, which keeps the normaliser near 1 (Chowdhery et al. 2022).
  double z_loss = 0;
  // Targets of this class have loss 0, like negative ones.
  std::optional<int64_t> ignore_index;
  // [c]: multiplies the loss of each class; with smoothed targets, each class's share of it. The weighted
  // mean is the sum of losses divided by the sum of gather(class_weights, target).
  Tensor class_weights;
};
// logits[.. c], target[..] -> loss[..], fp32. The class axis may be cut.
Tensor cross_entropy(Tensor logits, Tensor target, const CrossEntropyOptions& options, OFL_HERE);

// cross_entropy of logits x[.. k] w[c k]^T -> loss[..], fp32, with the same options. Only `tile` rows of
// logits (rounded to a multiple of 8) exist at a time. They are made once more for the gradients (Wijmans et
// al. 2024), as many of them, of all rows and some classes: one product beside the head's three. The class
// axis may be cut. Label smoothing takes the mean of w over the classes besides. A second gradient stores all
// logits.
inline constexpr int64_t kLogitTile = 512;
Tensor linear_cross_entropy(Tensor x, Tensor w, Tensor target, const CrossEntropyOptions& options = {},
                            int64_t tile = kLogitTile, OFL_HERE);

// mean(linear_cross_entropy(...)), one element. Without smoothing and z_loss its gradients are made of the
// same tiles as the loss where classes are whole, in the forward pass, so logits are made once; each tile
// then reads and writes the gradient of w (on GPUs take 1,024 rows), which waits in fp32 for the backward
// pass.
Tensor mean_linear_cross_entropy(Tensor x, Tensor w, Tensor target, const CrossEntropyOptions& options = {},
                                 int64_t tile = kLogitTile, OFL_HERE);

// For any number of classes: logits[.. c], target[..] (negative: loss 0) -> [..], the cross-entropy
// times (1 - p[target])^gamma, p = softmax(logits), and times class_weights[target], if they are given.
struct Focal {
  double gamma = 2;           // 0 or more
  Tensor class_weights = {};  // [c]
};
Tensor focal_loss(Tensor logits, Tensor target, const Focal& options = {}, OFL_HERE);

// Connectionist temporal classification (Graves et al. 2006): log_probs[n t c] in logarithms (log_softmax of
// what a network gives for each of t places), targets[n s] -> [n], minus the logarithm of the probability
// that the first input_lengths[n] places spell the first target_lengths[n] targets, once runs of a class are
// made one and blanks are left out. Integers are i32 or i64; targets behind their length may be anything.
// Infinite where there are too few places; no gradient flows then. It has no second gradient.
struct Ctc {
  int64_t blank = 0;           // the class that spells nothing; no target is it
  bool zero_infinity = false;  // 0 in place of an infinite loss
};
Tensor ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths,
                const Ctc& options = {}, OFL_HERE);

// --- Of vectors ---

// sum(a b) / (|a| |b|) along one axis, which is removed; lengths below eps count as eps. a and b have the
// same shape.
Tensor cosine_similarity(Tensor a, Tensor b, int64_t axis = -1, double eps = 1e-8, OFL_HERE);

// max(0, d(anchor, positive) - d(anchor, negative) + margin) -> without the last axis, where d(a, b) = |a - b
// + eps| in the norm p, 1, 2 or infinity, over the last axis. swap: the negative's distance is the lesser of
// those to the anchor and to the positive (Balntas et al. 2016).
struct TripletMargin {
  double margin = 1, p = 2, eps = 1e-6;
  bool swap = false;
};
Tensor triplet_margin_loss(Tensor anchor, Tensor positive, Tensor negative, const TripletMargin& options = {},
                           OFL_HERE);

}  // namespace oneflow_like
