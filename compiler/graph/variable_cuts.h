// How variables are cut over the mesh, by their names.
#pragma once

#include <map>
#include <set>
#include <string>

#include "compiler/graph/graph.h"

namespace oneflow_like {

// How a variable is cut: entries of Node::fixed and Node::stored.
struct VariableCut {
  FixedSbp fixed;
  std::set<int> stored;
  bool operator==(const VariableCut& o) const { return fixed == o.fixed && stored == o.stored; }
  bool operator!=(const VariableCut& o) const { return !(*this == o); }
};
using VariableCuts = std::map<std::string, VariableCut>;  // by the variable's name

// The name of a variable with that of its block apart: "layer12/mlp/up" is of block "layer#", number "12",
// and called "/mlp/up" there. A name without a number has an empty block.
struct NameInBlock {
  std::string block, number, name;
};
NameInBlock InBlock(const std::string& variable);

}  // namespace oneflow_like
