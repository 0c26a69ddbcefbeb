// Helpers for gradients through statistics of rows (a mean, a log-sum-exp): statistics are fp32 and lack the
// axis over which they were taken.
#pragma once

#include "ops/functional.h"

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

}  // namespace oneflow_like
