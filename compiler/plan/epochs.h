// Which nodes of a lowered graph wait for which, and two numbers of each node that follow: its epoch and its
// chunk.
//
// A value that all micro-batches make together (a sum over the batch) is whole after the last of them.
// Whoever reads it within a micro-batch does so in a later *epoch*: another pass over the micro-batches, for
// which what it reads besides is held. A node is in one epoch; so no segment reads what it has not finished
// writing. A *chunk* is the work of a stage on a micro-batch until it goes to another stage.
#pragma once

#include <vector>

#include "compiler/graph/graph.h"

namespace oneflow_like {

// A node waits for `node`; `whole`: for all of its acts of a step, not only for the one of its own
// micro-batch.
struct Dependency {
  int node;
  bool whole;
};

// The graph's order, and by node the nodes that it waits for, views looked through, and those that wait for
// it.
struct Dependencies {
  std::vector<int> order;
  std::vector<std::vector<Dependency>> before, after;
};

// Whether a node runs: variables are there, and views are other shapes of the same bytes.
inline bool Runs(const Graph& graph, int node) {
  return graph.node(node).kind != NodeKind::kVariable && !graph.IsView(node);
}

Dependencies FindDependencies(const Graph& graph);
// By node, whether it waits for no input of the step.
std::vector<bool> FindConstants(const Graph& graph, const Dependencies& waits);
// By node. `root`: LogicalPlan::root. Throws Error for a variable that each micro-batch writes if one of its
// readers waits for the whole batch.
std::vector<int> FindEpochs(const Graph& graph, const Dependencies& waits, const std::vector<int>& root);
// By node: how often what it works on has come back to its stage before.
std::vector<int> FindChunks(const Graph& graph, const Dependencies& waits);

}  // namespace oneflow_like
