// Facts that follow from an operator's content: identical nodes, as in the layers of a model and in a graph's
// copies, share them.
#pragma once

#include <functional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "sbp/rule.h"

namespace oneflow_like {

class Graph;
struct Node;

// Of a graph and its copies, which may be compiled side by side.
class RuleCache {
 public:
  // REQUIRES: an operator of the catalog. The rule lives as long as the cache.
  const BoundRule& Of(const Graph& graph, const Node& node);
  // Whether the node, or one that is alike in its rule and in its signature, has passed; if none has, what
  // `passes` says, which is kept if it is true.
  bool Passes(const Graph& graph, const Node& node, const std::function<bool()>& passes);

 private:
  std::shared_mutex mutex_;
  std::unordered_map<std::string, BoundRule> rules_;
  std::unordered_set<std::string> passed_;
};

}  // namespace oneflow_like
