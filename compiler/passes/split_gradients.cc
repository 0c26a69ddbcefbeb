// The zero-bubble schedule's second half of the backward pass (Qi et al. 2023).
// Needs: lowered boxing. Leaves: in phase weight_gradient what only updates wait for: products that make
// weights' gradients, what follows them and, where nothing is kept longer for it, what else nobody but them
// and updates reads: a bias's sum over the rows that its product keeps anyway. A norm's sums stay with the
// gradient that comes past it, as what they read is kept by nobody else.
#include <algorithm>
#include <vector>

#include "compiler/graph/training.h"
#include "compiler/passes/passes.h"

namespace oneflow_like {

namespace {

class Splitter {
 public:
  explicit Splitter(Graph* graph)
      : graph_(*graph),
        order_(graph->Order()),
        readers_(graph->Readers()),
        for_updates_(ForUpdates(*graph)) {}

  void Run() {
    std::vector<bool> kept(graph_.num_values(), false);
    for (int n : order_)
      if (for_updates_[n] && (graph_.IsHeavy(n) || FollowsOne(n)))
        graph_.node(n).phase = Phase::kWeightGradient;
    for (auto it = order_.rbegin(); it != order_.rend(); ++it)
      if (LeadsToThemAlone(*it)) graph_.node(*it).phase = Phase::kWeightGradient;
    for (int n : order_)
      if (Apart(n))
        for (int v : graph_.node(n).in) kept[graph_.BehindViews(v)] = true;
    for (int n : order_) {
      const std::vector<int>& in = graph_.node(n).in;
      if (for_updates_[n] && !Apart(n) && std::all_of(in.begin(), in.end(), [&](int v) {
            return kept[graph_.BehindViews(v)] || Apart(graph_.value(v).producer);
          }))
        graph_.node(n).phase = Phase::kWeightGradient;
    }
  }

 private:
  bool Apart(int n) const { return graph_.node(n).phase == Phase::kWeightGradient; }

  bool FollowsOne(int n) const {
    const std::vector<int>& in = graph_.node(n).in;
    return std::any_of(in.begin(), in.end(), [&](int v) { return Apart(graph_.value(v).producer); });
  }

  // Casts, views and gathers for the products.
  bool LeadsToThemAlone(int n) const {
    const Node& node = graph_.node(n);
    bool any = false, all = true;
    for (int v : node.out)
      for (int r : readers_[v]) any = true, all = all && Apart(r);
    return any && all && node.phase == Phase::kBackward && node.in.size() == 1;
  }

  Graph& graph_;
  const std::vector<int> order_;
  const std::vector<std::vector<int>> readers_;  // by value
  const std::vector<bool> for_updates_;          // by node: nobody else waits for it
};

}  // namespace

// All lead to updates in the end, but other gradients by way of a product.
std::vector<bool> ForUpdates(const Graph& graph) {
  std::vector<bool> for_updates(graph.num_nodes(), false);
  const std::vector<std::vector<int>> readers = graph.Readers();
  const std::vector<int> order = graph.Order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const Node& node = graph.node(*it);
    bool all = node.phase == Phase::kBackward && !IsEnd(node);
    for (int v : node.out)
      for (int r : readers[v])
        all = all && (graph.node(r).phase == Phase::kUpdate || (for_updates[r] && !graph.IsHeavy(r)));
    for_updates[*it] = all;
  }
  return for_updates;
}

void SplitGradients(Graph* graph, const CompileOptions& options) {
  if (options.decided.schedule == PipelineSchedule::kZeroBubble) Splitter(graph).Run();
}

}  // namespace oneflow_like
