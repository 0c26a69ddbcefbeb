// The groups of a graph's collectives as participants that exchange messages, and what each algorithm takes
// them (sbp/collective_cost.h): for the pass that chooses algorithms, and for who simulates or explains the
// choice.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/graph/graph.h"
#include "sbp/collective_cost.h"

namespace oneflow_like {

// `graph` must outlive it. `nodes`: of each rank, the first of the ranks that reach its memory by address;
// empty: all ranks reach each other's, and there is nothing to choose.
class CollectiveCosts {
 public:
  CollectiveCosts(const Graph& graph, std::vector<int> nodes, LinkLevels levels)
      : graph_(graph), nodes_(std::move(nodes)), levels_(std::move(levels)) {}

  // All algorithms of the collective, by node; empty: there is nothing to choose. Groups that lie alike in
  // the mesh share the result.
  const std::vector<AlgorithmCost>& Of(int n);
  // Of the tensors that one of its groups has together, in one act.
  double BytesOf(int n) const;
  // The algorithm that the node names; nullptr: it names none.
  const AlgorithmCost* Named(int n);

 private:
  std::vector<int64_t> MembersOf(const Node& node) const;  // ranks, of one of its groups
  std::vector<double> BesideOf(const Node& node, const std::vector<int64_t>& members) const;

  const Graph& graph_;
  const std::vector<int> nodes_;
  const LinkLevels levels_;
  std::map<std::string, std::vector<AlgorithmCost>> known_;
};

// The algorithm that a node names.
struct NamedAlgorithm {
  CollectiveAlgorithm algorithm;
  int unit = 0;  // AlgorithmCost
};
std::optional<NamedAlgorithm> AlgorithmOf(const Node& node);
void SetAlgorithm(const AlgorithmCost& cost, Node* node);
// For people: "ring", "two levels, of 8"; empty where the node names none.
std::string AlgorithmText(const Node& node);

}  // namespace oneflow_like
