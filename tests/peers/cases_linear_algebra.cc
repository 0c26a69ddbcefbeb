// Fourier transforms.
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

}  // namespace

ValueCases LinearAlgebraCases() {
  ValueCases cases;
  AddTransforms(&cases);
  return cases;
}

}  // namespace oneflow_like::peers
