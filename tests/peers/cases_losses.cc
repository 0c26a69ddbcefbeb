// Losses.
#include "ops/language/losses.h"
#include "tests/peers/values.h"

namespace oneflow_like::peers {
namespace {

ValueResults Entropy(ValueIn x, CrossEntropyOptions options) {
  if (x.size() > 2) options.class_weights = x[2];
  return cross_entropy(x[0], x[1], options);
}

}  // namespace

ValueCases LossCases() {
  const ValueInput logits = F({11, 7}, -5, 5), target = I({11}, 7), weights = F({7}, 0.2, 2);
  return {
      {"mse_loss", {F({5, 7}), F({5, 7})}, [](ValueIn x) { return mse_loss(x[0], x[1]); }},
      {"l1_loss", {F({5, 7}), F({5, 7})}, [](ValueIn x) { return l1_loss(x[0], x[1]); }},
      {"huber_loss", {F({5, 7}), F({5, 7})}, [](ValueIn x) { return huber_loss(x[0], x[1], 0.8); }},
      {"smooth_l1_loss", {F({5, 7}), F({5, 7})}, [](ValueIn x) { return smooth_l1_loss(x[0], x[1], 0.8); }},
      {"smooth_l1_loss/zero",
       {F({5, 7}), F({5, 7})},
       [](ValueIn x) { return smooth_l1_loss(x[0], x[1], 0); }},
      {"hinge_loss",
       {F({50}), I({50}, 2)},
       [](ValueIn x) { return hinge_loss(x[0], cast(x[1], DType::kFloat32) * 2 - 1); }},
      {"bce_loss", {F({5, 7}, 0.01, 0.99), F({5, 7}, 0, 1)}, [](ValueIn x) { return bce_loss(x[0], x[1]); }},
      {"bce_with_logits_loss",
       {F({5, 7}, -40, 40), F({5, 7}, 0, 1)},
       [](ValueIn x) { return bce_with_logits_loss(x[0], x[1]); }},
      {"bce_with_logits_loss/weight",
       {F({5, 7}, -9, 9), F({5, 7}, 0, 1), F({7}, 0.5, 3)},
       [](ValueIn x) { return bce_with_logits_loss(x[0], x[1], x[2]); }},
      {"kl_div_loss",
       {F({5, 7}, -3, 0), F({5, 7}, 0.01, 1)},
       [](ValueIn x) { return kl_div_loss(x[0], x[1]); }},
      {"kl_div_loss/zeros",
       {F({5, 7}, -3, 0), F({5, 7})},
       [](ValueIn x) { return kl_div_loss(x[0], stop_gradient(relu(x[1]))); }},
      {"kl_div_loss/log",
       {F({5, 7}, -3, 0), F({5, 7}, -3, 0)},
       [](ValueIn x) { return kl_div_loss(x[0], x[1], true); }},
      {"nll_loss", {F({11, 7}, -3, 0), target}, [](ValueIn x) { return nll_loss(x[0], x[1]); }},
      {"cross_entropy", {logits, target}, [](ValueIn x) { return cross_entropy(x[0], x[1]); }},
      {"cross_entropy/ignored",
       {logits, I({11}, 7, -3)},
       [](ValueIn x) { return cross_entropy(x[0], x[1]); }},
      {"cross_entropy/ignore_index",
       {logits, I({11}, 4)},
       [](ValueIn x) { return Entropy(x, {.ignore_index = 2}); }},
      {"cross_entropy/smooth",
       {logits, target},
       [](ValueIn x) { return Entropy(x, {.label_smoothing = 0.1}); }},
      {"cross_entropy/smooth_ignored",
       {logits, I({11}, 7, -3)},
       [](ValueIn x) { return Entropy(x, {.label_smoothing = 0.1}); }},
      {"cross_entropy/weights", {logits, target, weights}, [](ValueIn x) { return Entropy(x, {}); }},
      {"cross_entropy/smooth_weights",
       {logits, target, weights},
       [](ValueIn x) { return Entropy(x, {.label_smoothing = 0.2}); }},
      {"cross_entropy/z_loss", {logits, target}, [](ValueIn x) { return Entropy(x, {.z_loss = 0.01}); }},
      {"cross_entropy/all",
       {logits, I({11}, 7, -3), weights},
       [](ValueIn x) { return Entropy(x, {.label_smoothing = 0.2, .z_loss = 0.01, .ignore_index = 1}); }},
      {"cosine_similarity", {F({5, 7}), F({5, 7})}, [](ValueIn x) { return cosine_similarity(x[0], x[1]); }},
      {"cosine_similarity/axis",
       {F({5, 7}), F({5, 7})},
       [](ValueIn x) { return cosine_similarity(x[0], x[1], 0); }},
      {"linear_cross_entropy",
       {F({11, 5}), F({7, 5}, -2, 2), target},
       [](ValueIn x) { return linear_cross_entropy(x[0], x[1], x[2]); }},
      {"linear_cross_entropy/all",
       {F({11, 5}), F({7, 5}, -2, 2), target, weights},
       [](ValueIn x) {
         CrossEntropyOptions options{.label_smoothing = 0.2, .z_loss = 0.01, .ignore_index = 1};
         options.class_weights = x[3];
         return linear_cross_entropy(x[0], x[1], x[2], options, 8);
       }},
      {"mean_linear_cross_entropy",
       {F({11, 5}), F({7, 5}, -2, 2), I({11}, 7, -3), weights},
       [](ValueIn x) {
         CrossEntropyOptions options{.ignore_index = 1};
         options.class_weights = x[3];
         return mean_linear_cross_entropy(x[0], x[1], x[2], options, 8);
       }},
      {"sigmoid_focal_loss",
       {F({5, 7}, -9, 9), F({5, 7}, 0, 1)},
       [](ValueIn x) { return sigmoid_focal_loss(x[0], x[1]); }},
      {"sigmoid_focal_loss/root",
       {F({50}, -40, 40), I({50}, 2)},
       [](ValueIn x) {
         return sigmoid_focal_loss(x[0], cast(x[1], DType::kFloat32), {.alpha = -1, .gamma = 0.5});
       }},
      {"focal_loss", {logits, I({11}, 7, -2)}, [](ValueIn x) { return focal_loss(x[0], x[1]); }},
      {"focal_loss/weights",
       {logits, target, weights},
       [](ValueIn x) { return focal_loss(x[0], x[1], {.gamma = 1.5, .class_weights = x[2]}); }},
      {"ctc_loss",  // enough places for any targets
       {F({7, 11, 6}, -5, 5), I({7, 4}, 6, 1), I({7}, 12, 9), I({7}, 5)},
       [](ValueIn x) { return ctc_loss(log_softmax(x[0]), x[1], x[2], x[3]); }},
      {"ctc_loss/blank",
       {F({9, 30, 5}), I({9, 6}, 3, 0, DType::kInt32), I({9}, 31, 13, DType::kInt32), I({9}, 7, 1)},
       [](ValueIn x) { return ctc_loss(log_softmax(x[0]), x[1], x[2], x[3], {.blank = 3}); }},
      {"ctc_loss/too_few_places",
       {F({30, 6, 4}), I({30, 4}, 4, 1), I({30}, 7, 1), I({30}, 5, 1)},
       [](ValueIn x) { return ctc_loss(log_softmax(x[0]), x[1], x[2], x[3], {.zero_infinity = true}); }},
      {"triplet_margin_loss",
       {F({9, 5}), F({9, 5}), F({9, 5})},
       [](ValueIn x) { return triplet_margin_loss(x[0], x[1], x[2]); }},
      {"triplet_margin_loss/swap",
       {F({4, 9, 5}), F({4, 9, 5}), F({4, 9, 5})},
       [](ValueIn x) {
         return triplet_margin_loss(x[0], x[1], x[2], {.margin = 0.4, .p = 1, .eps = 1e-3, .swap = true});
       }},
  };
}

}  // namespace oneflow_like::peers
