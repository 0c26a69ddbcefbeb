// Optimizers written with assigns only; those with kernels of their own are in ops/language/optimizer.h. Each
// is a value that Train takes. All of them scale weight decay by WeightUpdate::Decay.
#pragma once

#include <string>
#include <vector>

#include "ops/language/optimizer.h"

namespace oneflow_like {

// Tieleman and Hinton 2012, PyTorch's form: s = alpha s + (1 - alpha) g^2, v = momentum v + g / (sqrt(s) +
// eps), w -= lr v; weight decay adds to g.
struct RmsProp {
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, momentum = 0, weight_decay = 0;
  operator Optimizer() const;  // NOLINT: implicit on purpose
};

// Duchi et al. 2011: s += g^2, w -= lr g / (sqrt(s) + eps); weight decay adds to g. `by_rows`: one number of
// state for each row of a weight, to which the mean of g^2 over the row is added; for tables of embeddings,
// which then cost only the rows that the batch touches.
struct Adagrad {
  double lr = 1e-2, eps = 1e-10, initial = 0, weight_decay = 0;
  bool by_rows = false;
  operator Optimizer() const;  // NOLINT
};

// You et al. 2020: Adam's step u (with bias correction, plus weight_decay w), w -= lr |w| / |u| u, norms of
// the whole weight; the quotient is 1 where either is 0.
struct Lamb {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0.01;
  operator Optimizer() const;  // NOLINT
};

// Chen et al. 2023: w -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay w), m = beta2 m + (1 - beta2) g.
struct Lion {
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  operator Optimizer() const;  // NOLINT
};

// Jordan et al. 2024: momentum whose matrix is made nearly orthogonal by `iterations` of Newton-Schulz, times
// sqrt(max(1, columns / rows)). A weight of more than two axes is the matrix that is nearest to square when
// neighbouring axes are merged. `others` updates weights that are not matrices or match a pattern of `except`
// ('*' is any characters): the authors advise embeddings and the last layer.
struct Muon {
  double lr = 0.02, momentum = 0.95, weight_decay = 0.1;
  bool nesterov = true;
  int iterations = 5;
  Optimizer others = AdamW{};
  std::vector<std::string> except = {"*embedding*", "*head*"};
  operator Optimizer() const;  // NOLINT
};

}  // namespace oneflow_like
