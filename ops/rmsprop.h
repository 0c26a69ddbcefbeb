// RMSProp (Tieleman and Hinton 2012, PyTorch's form), made of assigns alone.
#pragma once

#include "ops/optimizer.h"

namespace oneflow_like {

// s = alpha s + (1 - alpha) g^2, v = momentum v + g / (sqrt(s) + eps), w -= lr v; weight decay adds to g.
struct RmsProp {
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, momentum = 0, weight_decay = 0;

  operator Optimizer() const {  // NOLINT: implicit on purpose
    Optimizer optimizer("rmsprop", [rule = *this](WeightUpdate& u) {
      Tensor w = u.weight(), g = u.gradient(), s = u.State("rmsprop_s");
      if (rule.weight_decay > 0) g = g + scale(w, rule.weight_decay);
      Tensor squares = scale(s, rule.alpha) + scale(square(g), 1 - rule.alpha);
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
};

}  // namespace oneflow_like
