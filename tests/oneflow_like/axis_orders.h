// For tests of the search for a plan.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "oneflow_like/plan_search.h"

namespace oneflow_like {

// The candidate on each order of its axes of more than one device.
inline std::vector<PlanCandidate> InAllOrders(const PlanCandidate& c) {
  std::vector<std::string> axes = {"dp", "pp", "tp"};  // sorted
  std::vector<PlanCandidate> all;
  std::set<std::string> seen;
  do {
    std::vector<std::pair<std::string, int>> extents;
    std::string shape;
    for (const std::string& axis : axes) {
      extents.push_back({axis, c.extent(axis)});
      if (c.extent(axis) > 1) shape += axis;
    }
    all.push_back(c);
    all.back().mesh = Mesh(c.mesh.kind(), extents);
    if (!seen.insert(shape).second) all.pop_back();
  } while (std::next_permutation(axes.begin(), axes.end()));
  return all;
}

}  // namespace oneflow_like
