// The queue of choices for room, as kernels on the host walk it. A choice is number token * k + j of a pool.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/device/kernel.h"
#include "ops/reference.h"

namespace oneflow_like {

struct ChoiceQueue {
  const TensorArg* weights;  // [p n k]; nullptr: the first of the queue stay
  int64_t first;             // of this pool's choices among all
  int64_t k;

  // First choices of all tokens come before second ones, each in the order of tokens.
  bool Earlier(int64_t a, int64_t b) const { return a % k != b % k ? a % k < b % k : a < b; }
  // Where there is no room for all: the choice of the greater weight stays, of equal ones the earlier. A NaN
  // is the least.
  bool StaysBefore(int64_t a, int64_t b) const {
    if (weights != nullptr && Weight(a) != Weight(b)) return Weight(a) > Weight(b);
    return Earlier(a, b);
  }
  double Weight(int64_t i) const {
    const double w = LoadFloat(*weights, first + i);
    return std::isnan(w) ? -INFINITY : w;
  }
};

}  // namespace oneflow_like
