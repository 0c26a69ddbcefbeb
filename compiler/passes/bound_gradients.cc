// Whole gradients of few layers at a time.
// Needs: buckets. Leaves, where a step has one micro-batch, products of the backward pass that come after
// sums of gradients (Node::after): a unit, the backward pass of a region, begins when the sums of the unit
// before the last kUnits ones have ended. Otherwise nothing but the updates would wait for sums, and each
// gradient would be held twice until then, before its sum and after it, whole or in parts. With more
// micro-batches the sums that are made in each of them are waited for by adding up.
//
// The gradient of a table of tokens comes behind the last unit and may be larger than all that is under way,
// but takes next to no time, so that it hides none of their sums: it begins when these have ended.
//
// The messages of a line that is slower than the computation follow each other as before, so nothing is lost
// but the room that they would have had to fall behind.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "compiler/graph/training.h"
#include "compiler/passes/passes.h"

namespace oneflow_like {

namespace {

constexpr int kUnits = 2;  // under way, beside the one that is computed

class GradientBounder {
 public:
  explicit GradientBounder(Graph* graph) : graph_(*graph), order_(graph->Order()) {}

  void Run() {
    FindChain();
    std::map<Slice, std::vector<Unit>> units;
    std::map<Slice, std::string> last;
    std::map<Slice, std::vector<Unit>> ends;  // behind the last unit
    std::vector<int> position(graph_.num_nodes(),
                              0);  // in the order, of what a node, or a message, is made by
    for (size_t i = 0; i < order_.size(); ++i) {
      const int n = order_[i];
      const Node& node = graph_.node(n);
      position[n] = IsCollective(node) || graph_.IsView(n) || IsCastForSum(node) ? 0 : static_cast<int>(i);
      if (position[n] == 0)
        for (int v : node.in) position[n] = std::max(position[n], position[graph_.value(v).producer]);
      if (!IsGradient(node.phase)) continue;
      const std::string region = graph_.regions().Of(node.name);
      if (chain_[n] && graph_.IsHeavy(n)) {
        const auto [at, fresh] = last.try_emplace(node.slice, region);
        if (fresh || at->second != region) units[node.slice].push_back({n, static_cast<int>(i)});
        at->second = region;
        ends.erase(node.slice);
      } else if (const auto at = last.find(node.slice);
                 at != last.end() && at->second != region && IsLightSummand(n)) {
        ends[node.slice].push_back({n, static_cast<int>(i)});
      }
    }
    for (int n : order_) {
      const Node& node = graph_.node(n);
      if (!IsCollective(node) || chain_[n] || !IsGradient(graph_.node(order_[position[n]]).phase)) continue;
      const std::vector<Unit>& of = units[node.slice];
      const auto next = std::upper_bound(of.begin(), of.end(), position[n],
                                         [](int at, const Unit& unit) { return at < unit.position; });
      if (of.end() - next > kUnits) graph_.node(next[kUnits].first).after.push_back(n);
      for (const Unit& end : ends[node.slice])
        if (position[n] < end.position) graph_.node(end.first).after.push_back(n);
    }
  }

 private:
  struct Unit {
    int first = -1, position = 0;
  };

  // Whether n makes what is still to be summed over ranks, without a product, and no product waits for it.
  bool IsLightSummand(int n) const {
    const Node& node = graph_.node(n);
    if (chain_[n] || graph_.IsHeavy(n) || graph_.IsView(n) || IsCollective(node) || IsCastForSum(node) ||
        node.out.empty())
      return false;
    const NdSbp& sbp = graph_.value(node.out[0]).sbp;
    return std::any_of(sbp.begin(), sbp.end(), [](const Sbp& s) { return s.is_partial(); });
  }

  // Marks nodes that products wait for.
  void FindChain() {
    chain_.assign(graph_.num_nodes(), false);
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      const bool tell = chain_[*it] || graph_.IsHeavy(*it);
      for (int v : graph_.node(*it).in) {
        const int before = graph_.value(v).producer;
        chain_[before] = chain_[before] || tell;
      }
    }
  }

  Graph& graph_;
  const std::vector<int> order_;
  std::vector<bool> chain_;
};

}  // namespace

void BoundGradients(Graph* graph, const CompileOptions&) {
  if (graph->times() == 1) GradientBounder(graph).Run();
}

}  // namespace oneflow_like
