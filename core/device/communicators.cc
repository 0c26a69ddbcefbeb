#include "core/device/communicators.h"

namespace oneflow_like {

size_t ParentOf(const std::vector<std::vector<int>>& groups, size_t g) {
  for (size_t p = 0; p < g; ++p)
    if (std::all_of(groups[g].begin(), groups[g].end(), [&](int rank) {
          return std::find(groups[p].begin(), groups[p].end(), rank) != groups[p].end();
        }))
      return p;
  return g;
}

}  // namespace oneflow_like
