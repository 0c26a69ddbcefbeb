// Factorisations of one matrix, for kernels of every device. A team of lanes works on it: one on the host,
// the threads of a block on a GPU. All numbers are double, matrices are row-major in memory that the team
// shares.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace oneflow_like {

// What a team is on the host.
struct OneLane {
  int64_t lane = 0, lanes = 1;
  void Sync() const {}
};

// w[n n] becomes the Cholesky factor of (a + a^T) / 2 + shift I, on and below the diagonal. Returns the first
// pivot that is not above 0, or -1.
template <typename Team, typename A>
OFL_HOST_DEVICE int64_t CholeskyFactor(const Team& team, int64_t n, const A& a, double shift, double* w) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = j + team.lane; i < n; i += team.lanes) {
      double rest = 0.5 * (a(i, j) + a(j, i)) + (i == j ? shift : 0);
      for (int64_t k = 0; k < j; ++k) rest -= w[i * n + k] * w[j * n + k];
      w[i * n + j] = rest;
    }
    team.Sync();
    const double pivot = w[j * n + j];
    if (!(pivot > 0)) return j;
    const double root = ::sqrt(pivot);
    team.Sync();
    for (int64_t i = j + team.lane; i < n; i += team.lanes)
      w[i * n + j] = i == j ? root : w[i * n + j] / root;
    team.Sync();
  }
  return -1;
}

// x[n k] becomes t^-1 x; of t only the part on and below (lower) or above the diagonal is read. A lane has
// columns of its own.
template <typename Team, typename T>
OFL_HOST_DEVICE void SolveTriangle(const Team& team, int64_t n, int64_t k, const T& t, bool lower,
                                   double* x) {
  for (int64_t step = 0; step < n; ++step) {
    const int64_t i = lower ? step : n - 1 - step, begin = lower ? 0 : i + 1, end = lower ? i : n;
    double* row = x + i * k;
    for (int64_t j = begin; j < end; ++j) {
      const double factor = t(i, j), *other = x + j * k;
      for (int64_t c = team.lane; c < k; c += team.lanes) row[c] -= factor * other[c];
    }
    const double pivot = t(i, i);
    for (int64_t c = team.lane; c < k; c += team.lanes) row[c] /= pivot;
  }
}

// x[n k] becomes w^-1 x, by elimination with the greatest of a column as the pivot; w[n n] is lost. Returns
// the first column without a pivot, or -1.
template <typename Team>
OFL_HOST_DEVICE int64_t SolveSystem(const Team& team, int64_t n, int64_t k, double* w, double* x) {
  for (int64_t j = 0; j < n; ++j) {
    int64_t best = j;
    for (int64_t i = j + 1; i < n; ++i)
      if (::fabs(w[i * n + j]) > ::fabs(w[best * n + j])) best = i;
    const double pivot = w[best * n + j];
    team.Sync();
    if (!(::fabs(pivot) > 0)) return j;
    for (int64_t c = team.lane; c < n + k && best != j; c += team.lanes) {
      double* rows = c < n ? w + c : x + (c - n);
      const int64_t width = c < n ? n : k;
      const double other = rows[j * width];
      rows[j * width] = rows[best * width];
      rows[best * width] = other;
    }
    team.Sync();
    for (int64_t i = j + 1 + team.lane; i < n; i += team.lanes) {
      const double factor = w[i * n + j] / pivot;
      for (int64_t c = j + 1; c < n; ++c) w[i * n + c] -= factor * w[j * n + c];
      for (int64_t c = 0; c < k; ++c) x[i * k + c] -= factor * x[j * k + c];
    }
    team.Sync();
  }
  struct Row {
    const double* w;
    int64_t n;
    OFL_HOST_DEVICE double operator()(int64_t i, int64_t j) const { return w[i * n + j]; }
  };
  SolveTriangle(team, n, k, Row{w, n}, false, x);
  team.Sync();
  return -1;
}

// Householder reflections (Householder 1958) with LAPACK's signs: w[m n], m >= n, becomes r on and above its
// diagonal, and q[m n] the orthonormal columns with q r = w. tau[n] is room. Below the diagonal of w are the
// reflections.
template <typename Team>
OFL_HOST_DEVICE void FactorQr(const Team& team, int64_t m, int64_t n, double* w, double* tau, double* q) {
  for (int64_t j = 0; j < n; ++j) {
    double below = 0;
    for (int64_t i = j + 1; i < m; ++i) below += w[i * n + j] * w[i * n + j];
    const double alpha = w[j * n + j], length = ::sqrt(alpha * alpha + below),
                 beta = alpha >= 0 ? -length : length;
    team.Sync();
    if (below > 0) {
      for (int64_t i = j + 1 + team.lane; i < m; i += team.lanes) w[i * n + j] /= alpha - beta;
      if (team.lane == 0) w[j * n + j] = beta;
    }
    if (team.lane == 0) tau[j] = below > 0 ? (beta - alpha) / beta : 0;
    team.Sync();
    for (int64_t c = j + 1 + team.lane; c < n; c += team.lanes) {
      double along = w[j * n + c];
      for (int64_t i = j + 1; i < m; ++i) along += w[i * n + j] * w[i * n + c];
      along *= tau[j];
      w[j * n + c] -= along;
      for (int64_t i = j + 1; i < m; ++i) w[i * n + c] -= along * w[i * n + j];
    }
    team.Sync();
  }
  for (int64_t c = team.lane; c < n; c += team.lanes) {
    for (int64_t i = 0; i < m; ++i) q[i * n + c] = i == c ? 1 : 0;
    for (int64_t j = c; j >= 0; --j) {
      double along = q[j * n + c];
      for (int64_t i = j + 1; i < m; ++i) along += w[i * n + j] * q[i * n + c];
      along *= tau[j];
      q[j * n + c] -= along;
      for (int64_t i = j + 1; i < m; ++i) q[i * n + c] -= along * w[i * n + j];
    }
  }
  team.Sync();
}

}  // namespace oneflow_like
