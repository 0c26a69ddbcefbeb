// Helpers for gradients through statistics of rows (a mean, a log-sum-exp), which are fp32 and lack the axis
// over which they were taken; and gradients of the gradients of norms and attention.
#pragma once

#include <vector>

#include "ops/language/functional.h"
#include "ops/op.h"

namespace oneflow_like {

// x[..] -> [.. 1], to broadcast against the rows.
inline Tensor Column(Tensor x) {
  Dims shape = x.shape();
  shape.push_back(1);
  return reshape(x, shape);
}

inline Tensor InType(Tensor x, DType dtype) { return x.dtype() == dtype ? x : cast(x, dtype); }

// sum + term in the type of `like`; `sum` may be undefined.
inline Tensor Accumulate(Tensor sum, Tensor term, Tensor like) {
  term = InType(term, like.dtype());
  return sum.defined() ? add(sum, term) : term;
}

// The gradient of a norm: with n = (x - mean) rstd and d = dy gamma it gives
//   dx = rstd (d - E[d] - n E[d n]), dgamma = sum(dy n), dbeta = sum(dy),
// where E is the mean over `axes`; all fp32, in the shape of x or broadcast against it, the statistics with
// axes of extent 1. Without a mean (rms_norm) there is no E[d] and no dbeta.
struct NormGradient {
  Tensor dy, x, gamma, mean, rstd;
  std::vector<int64_t> axes;
};
// What comes to dx, dgamma and dbeta; undefined: nothing.
struct NormCotangents {
  Tensor dx, dgamma, dbeta;
};
// d_gamma is still to be summed to gamma's shape. Undefined where nothing comes.
struct NormSecond {
  Tensor dy, x, gamma, mean, rstd;
};
NormSecond GradientOf(const NormGradient& norm, const NormCotangents& g);  // norm.cc

// OpDef::grad of attention_grad. It stores the scores, [b h s t].
std::vector<Tensor> GradientOfAttentionGrad(const GradCall& call);  // attention_second.cc

}  // namespace oneflow_like
