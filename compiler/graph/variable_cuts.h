// How variables are cut over the mesh, by their names.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "compiler/graph/graph.h"

namespace oneflow_like {

// How a variable is cut: entries of Node::fixed and Node::stored.
struct VariableCut {
  FixedSbp fixed;
  std::set<int> stored;
  bool operator==(const VariableCut& o) const { return fixed == o.fixed && stored == o.stored; }
  bool operator!=(const VariableCut& o) const { return !(*this == o); }
};
// The parts into which cuts along all entries but time's, nested where there are several, cut a tensor axis.
// `sizes`: Graph::Sizes.
inline int64_t NestedParts(const FixedSbp& fixed, int64_t axis, const std::vector<int>& sizes) {
  int64_t parts = 1;
  for (const auto& [entry, sbp] : fixed)
    if (entry > 0 && sbp.is_split() && sbp.axis == axis) parts *= sizes[entry];
  return parts;
}

using VariableCuts = std::map<std::string, VariableCut>;  // by the variable's name

// The name of a variable with that of its block apart: "layer12/mlp/up" is of block "layer#", number "12",
// and called "/mlp/up" there. A name without a number has an empty block.
struct NameInBlock {
  std::string block, number, name;
};
NameInBlock InBlock(const std::string& variable);

}  // namespace oneflow_like
