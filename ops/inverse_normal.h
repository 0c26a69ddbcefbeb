// The inverse of the standard normal distribution function, for host and device.
#pragma once

#include <cmath>

#include "core/host_device.h"

namespace oneflow_like {

template <int N>
OFL_HOST_DEVICE double Polynomial(const double (&coefficients)[N], double x) {
  double value = 0;
  for (int i = 0; i < N; ++i) value = value * x + coefficients[i];
  return value;
}

// In the middle, and in the tail below kInverseNormalTail: quotients of polynomials (P. Acklam's
// coefficients).
constexpr double kInverseNormalTail = 0.02425;

OFL_HOST_DEVICE double InverseNormalMiddle(double u) {
  const double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                      1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  const double b[] = {-5.447609879822406e+01, 1.615858368580409e+02,  -1.556989798598866e+02,
                      6.680131188771972e+01,  -1.328068155288572e+01, 1};
  double q = u - 0.5;
  return q * Polynomial(a, q * q) / Polynomial(b, q * q);
}
OFL_HOST_DEVICE double InverseNormalBelow(double u) {
  const double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                      -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  const double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                      3.754408661907416e+00, 1};
  double q = ::sqrt(-2 * ::log(u));
  return Polynomial(c, q) / Polynomial(d, q);
}

// The number whose distribution function is u, 0 < u < 1; relative error below 1.2e-9.
OFL_HOST_DEVICE double InverseNormalAt(double u) {
  if (u > 1 - kInverseNormalTail) return -InverseNormalBelow(1 - u);
  return u < kInverseNormalTail ? InverseNormalBelow(u) : InverseNormalMiddle(u);
}

}  // namespace oneflow_like
