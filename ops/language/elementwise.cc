// Elementwise functions of functional.h that are composed of other operators, which the compiler fuses into
// one loop.
#include <numbers>

#include "ops/language/calls.h"
#include "ops/language/functional.h"

namespace oneflow_like {
namespace {

// sqrt(1 - x^2), without cancellation near 1.
Tensor Beside(Tensor x, const Here& at) {
  return sqrt(mul(shift(neg(x, at), 1, at), shift(x, 1, at), at), at);
}

}  // namespace

Tensor log10(Tensor x, Here at) {
  at = InFloating("log10", x, at);
  return scale(log(x, at), 1 / std::numbers::ln10, at);
}

Tensor asin(Tensor x, Here at) {
  at = InFloating("asin", x, at);
  return atan2(x, Beside(x, at), at);
}

Tensor acos(Tensor x, Here at) {
  at = InFloating("acos", x, at);
  return atan2(Beside(x, at), x, at);
}

Tensor atan(Tensor x, Here at) {
  at = InFloating("atan", x, at);
  return atan2(x, full(x, {}, 1, at), at);
}

Tensor sinh(Tensor x, Here at) {
  at = InFloating("sinh", x, at);
  return scale(sub(expm1(x, at), expm1(neg(x, at), at), at), 0.5, at);
}

Tensor cosh(Tensor x, Here at) {
  at = InFloating("cosh", x, at);
  return scale(add(exp(x, at), exp(neg(x, at), at), at), 0.5, at);
}

Tensor atanh(Tensor x, Here at) {
  at = InFloating("atanh", x, at);
  return scale(sub(log1p(x, at), log1p(neg(x, at), at), at), 0.5, at);
}

Tensor logit(Tensor x, Here at) {
  at = InFloating("logit", x, at);
  return sub(log(x, at), log1p(neg(x, at), at), at);
}

Tensor trunc(Tensor x, Here at) {
  at = InFloating("trunc", x, at);
  return where(less(x, 0, at), ceil(x, at), floor(x, at), at);
}

Tensor frac(Tensor x, Here at) {
  at = InFloating("frac", x, at);
  return sub(x, trunc(x, at), at);
}

}  // namespace oneflow_like
