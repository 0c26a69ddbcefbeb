// Shared by kernels of grouped products on the host: the rows of each expert.
#pragma once

#include <algorithm>

#include "core/device/kernel.h"
#include "ops/reference.h"

namespace oneflow_like {

// counts[e] is whole on every rank; rows and experts may be cut.
inline Status CheckCounts(const TensorArg& counts, int64_t rows) {
  int64_t sum = 0;
  for (int64_t e = 0; e < counts.elements(); ++e) {
    int64_t count = LoadInt(counts, e);
    if (count < 0) return Status(Cat("expert ", e, " has a count of ", count));
    sum += std::min(count, rows + 1);  // no overflow
    if (sum > rows) return Status(Cat("counts add up to more than the ", rows, " rows of x"));
  }
  return Status();
}

// Calls body(expert, begin, end) for the experts [first, first + experts) with the expert's rows among the
// rows of `x` held here, counted from the first of these; begin <= end.
template <typename F>
void ForGroups(const TensorArg& counts, const TensorArg& x, int64_t first, int64_t experts, F&& body) {
  int64_t at = 0;
  for (int64_t e = 0; e < first + experts; ++e) {
    int64_t end = at + LoadInt(counts, e), low = x.begin[0], high = low + x.extent[0];
    if (e >= first) body(e - first, std::clamp(at, low, high) - low, std::clamp(end, low, high) - low);
    at = end;
  }
}

}  // namespace oneflow_like
