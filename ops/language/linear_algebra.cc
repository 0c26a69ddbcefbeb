// Matrices: the functions of ops/language/linear_algebra.h that are operators (ops/solve.cc).
#include "ops/language/linear_algebra.h"

#include "ops/language/calls.h"
#include "ops/language/numbers.h"

namespace oneflow_like {

Tensor cholesky(Tensor a, double shift, Here at) {
  GraphOf("cholesky", a, at);
  NeedNumber(Who("cholesky", at), "shift", shift, Domain::kFinite);
  return One("cholesky", {a}, {{"shift", shift}}, at);
}

Tensor triangular_solve(Tensor t, Tensor b, const Triangle& options, Here at) {
  return One("triangular_solve", {t, b},
             {{"upper", int64_t{options.upper}}, {"transposed", int64_t{options.transposed}}}, at);
}

Tensor solve(Tensor a, Tensor b, double shift, Here at) {
  GraphOf("solve", a, at);
  NeedNumber(Who("solve", at), "shift", shift, Domain::kFinite);
  return One("solve", {a, b}, {{"shift", shift}}, at);
}

Qr qr(Tensor a, Here at) {
  std::vector<Tensor> both = Apply(GraphOf("qr", a, at), "qr", {a}, {}, at);
  return {both[0], both[1]};
}

}  // namespace oneflow_like
