// How the ranks of each collective exchange messages.
// Needs: collectives that no pass joins or cuts any more. Leaves: on each whose members do not all reach one
// another's memory the algorithm that is wanted for its kind, else the cheapest over the links of its group.
// On GPUs NCCL chooses by itself.
#include "compiler/cost/collective_costs.h"
#include "compiler/passes/passes.h"

namespace oneflow_like {

void ChooseAlgorithms(Graph* graph, const CompileOptions& options) {
  if (options.machine.nodes.empty() || graph->mesh().kind() != "cpu") return;
  CollectiveCosts costs(*graph, options.machine.nodes, {options.machine.topology, options.machine.shared});
  const WantedAlgorithms given = options.decided.algorithms.value_or(WantedAlgorithms());
  for (int n : graph->Order()) {
    const std::vector<AlgorithmCost>& all = costs.Of(n);
    if (all.empty()) continue;
    std::optional<CollectiveAlgorithm> wanted;
    if (const auto at = given.find(graph->node(n).primitive); at != given.end()) wanted = at->second;
    SetAlgorithm(Choose(all, costs.BytesOf(n), wanted), &graph->node(n));
  }
}

}  // namespace oneflow_like
