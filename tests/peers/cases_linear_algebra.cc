// Fourier transforms and factorisations of matrices.
#include "ops/language/linear_algebra.h"
#include "tests/peers/values.h"

namespace oneflow_like::peers {
namespace {

void AddTransforms(ValueCases* cases) {
  const ValueCases more = {
      {"fft", {F({3, 8, 2})}, [](ValueIn x) { return fft(x[0]); }},
      {"fft/axis", {F({3, 5, 4, 2})}, [](ValueIn x) { return fft(x[0], 0); }},
      {"fft/factors", {F({2, 360, 3, 2})}, [](ValueIn x) { return fft(x[0], 1); }},
      {"fft/long", {F({8192, 2})}, [](ValueIn x) { return fft(x[0]); }},
      {"fft/prime", {F({2, 97, 2})}, [](ValueIn x) { return fft(x[0]); }},
      {"fft/primes", {F({67 * 71, 2})}, [](ValueIn x) { return fft(x[0]); }},
      {"ifft", {F({3, 150, 2})}, [](ValueIn x) { return ifft(x[0]); }},
      {"ifft/axis", {F({6, 5, 4, 2})}, [](ValueIn x) { return ifft(x[0], -2); }},
      {"rfft", {F({3, 9})}, [](ValueIn x) { return rfft(x[0]); }},
      {"rfft/axis", {F({3, 130, 2})}, [](ValueIn x) { return rfft(x[0], 1); }},
      {"irfft", {F({3, 9, 2})}, [](ValueIn x) { return irfft(x[0]); }},
      {"irfft/odd", {F({76, 3, 2})}, [](ValueIn x) { return irfft(x[0], 0, 151); }},
      {"irfft/one", {F({3, 1, 2})}, [](ValueIn x) { return irfft(x[0], -1, 1); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddMatrices(ValueCases* cases) {
  const ValueInput a = F({3, 2, 5, 5}), b = F({3, 2, 5, 4}), triangle = F({3, 6, 6}, 1, 2),
                   sides = F({3, 6, 2});
  const auto both = [](const Qr& qr) { return std::vector{qr.q, qr.r}; };
  const ValueCases more = {
      {"cholesky", {a}, [](ValueIn x) { return cholesky(x[0], 9); }},
      {"cholesky/product", {F({7, 9})}, [](ValueIn x) { return cholesky(einsum("ik,jk->ij", x[0], x[0])); }},
      {"triangular_solve", {triangle, sides}, [](ValueIn x) { return triangular_solve(x[0], x[1]); }},
      {"triangular_solve/upper",
       {triangle, sides},
       [](ValueIn x) { return triangular_solve(x[0], x[1], {.upper = true}); }},
      {"triangular_solve/transposed",
       {triangle, sides},
       [](ValueIn x) { return triangular_solve(x[0], x[1], {.transposed = true}); }},
      {"triangular_solve/both",
       {triangle, sides},
       [](ValueIn x) { return triangular_solve(x[0], x[1], {.upper = true, .transposed = true}); }},
      {"solve", {a, b}, [](ValueIn x) { return solve(x[0], x[1]); }},
      {"solve/shift", {F({40, 40}), F({40, 1})}, [](ValueIn x) { return solve(x[0], x[1], 20); }},
      {"qr", {F({3, 7, 4})}, [both](ValueIn x) { return both(qr(x[0])); }},
      {"qr/square", {F({2, 3, 4, 4})}, [both](ValueIn x) { return both(qr(x[0])); }},
      {"qr/r_alone", {F({6, 3})}, [](ValueIn x) { return qr(x[0]).r; }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

}  // namespace

ValueCases LinearAlgebraCases() {
  ValueCases cases;
  AddTransforms(&cases);
  AddMatrices(&cases);
  return cases;
}

}  // namespace oneflow_like::peers
