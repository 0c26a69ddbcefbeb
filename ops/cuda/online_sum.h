// The sum of exponentials of a row in one pass over it: the greatest element so far, and the sum relative to
// it.
#pragma once

#include "ops/cuda/rows.h"

namespace oneflow_like::cuda {

struct OnlineSum {
  float greatest = -INFINITY;
  float total = 0.0f;  // of exp(x - greatest)

  template <typename T, int N>
  OFL_DEVICE void Add(const Pack<T, N>& pack) {
    float x[N], most = greatest;
    for (int i = 0; i < N; ++i) {
      x[i] = Load(pack.at[i]);
      most = x[i] > most ? x[i] : most;
    }
    // While there is nothing but -inf the sum is relative to 0: exp(-inf - -inf) would be a NaN.
    float base = most == -INFINITY ? 0.0f : most, sum = 0.0f;
    for (int i = 0; i < N; ++i) sum += expf(x[i] - base);
    total = total * expf(greatest - base) + sum;
    greatest = most;
  }

  // The sum of what all threads of the team have, to all of them; relative to 0 of -inf alone.
  OFL_DEVICE OnlineSum Joined(const Team& team, float* room) const {
    OnlineSum all;
    all.greatest = team.Max(greatest, room);
    float base = all.greatest == -INFINITY ? 0.0f : all.greatest;
    all.total = team.Sum(total * expf(greatest - base), room);
    return all;
  }

  // The whole row's, to all threads of the team. A row of -inf alone has no sum: NaN, as the definition
  // gives.
  OFL_DEVICE OnlineSum Combined(const Team& team, float* room) const {
    OnlineSum all = Joined(team, room);
    if (all.greatest == -INFINITY) all.total = NAN;
    return all;
  }
};

void AddCrossEntropyKernels(KernelRegistry* registry);  // cross_entropy.cu, called by AddSoftmaxKernels

}  // namespace oneflow_like::cuda
