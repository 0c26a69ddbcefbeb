// Products that share an operand, side by side.
// Needs: fused operators; a mesh of GPUs. Leaves: products of one kind and shape that read the same first, or
// second, operand, in one region, phase and slice, as those that make queries, keys and values, and the
// gradients of their weights, at the place of the first in the order (Graph::Renumber), if all that they read
// is there by then, with attribute "together" (ops/equation.h): their number. A GPU may do them in one call
// (ops/cuda/products_together.h), for which operands and results must lie in a row: they come in the order of
// what made their other operand, so that what is made in a row is used in a row. Views go along. Whether one
// call does them may depend on where they lie, and changes last bits. So none is a product that ranks repeat,
// nor one whose operands, other than the shared one, lie outside of arenas.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "compiler/passes/passes.h"
#include "ops/equation.h"

namespace oneflow_like {

namespace {

constexpr size_t kMost = 4;

class Liner {
 public:
  explicit Liner(Graph* graph) : graph_(*graph), order_(graph->Order()), position_(graph->num_nodes(), -1) {
    for (size_t i = 0; i < order_.size(); ++i) position_[order_[i]] = static_cast<int>(i);
  }

  void Run() {
    std::map<int, Group> several;  // by position of the first node
    std::set<int> joined;
    for (const int shared : {0, 1}) {
      std::map<int, std::vector<Group>> groups;  // by the value they share
      for (int n : order_)
        if (MayJoin(n, shared) && joined.count(n) == 0) Join(n, shared, &groups[graph_.node(n).in[shared]]);
      for (auto& [value, of_value] : groups)
        for (Group& group : of_value) {
          if (group.nodes.size() < 2) continue;
          joined.insert(group.nodes.begin(), group.nodes.end());
          several[position_[group.nodes[0]]] = std::move(group);
        }
    }
    if (several.empty()) return;
    std::map<int, std::vector<int>> at;  // by a group's first node: what comes there
    std::set<int> moved;
    for (auto& [position, group] : several) LineUp(group.shared, group.nodes, &at[group.nodes[0]], &moved);
    // By id, as whatever does not move keeps its place among what comes when both could.
    std::vector<int> by_id = order_, order;
    std::sort(by_id.begin(), by_id.end());
    for (int n : by_id) {
      if (const auto here = at.find(n); here != at.end())
        order.insert(order.end(), here->second.begin(), here->second.end());
      if (moved.count(n) == 0) order.push_back(n);
    }
    graph_.Renumber(order);
  }

 private:
  struct Group {
    int shared = 0;          // the operand
    std::vector<int> nodes;  // in order
  };

  bool MayJoin(int n, int shared) const {
    const Node& node = graph_.node(n);
    static const auto* const products =
        new std::set<std::string>{"einsum", "matmul", "linear", "linear_grad_weight"};
    if (node.kind != NodeKind::kOperator || products->count(node.op) == 0) return false;
    if (node.attrs.Int("gelu", 0) != 0 || node.attrs.Int("residual", 0) != 0) return false;
    return DiffersOnEachRank(node) && LiesInArena(node, shared);
  }

  // One call may add in another order, and memory may look otherwise on another rank, where pieces are
  // larger: what ranks compute alike must have the same bits there.
  bool DiffersOnEachRank(const Node& node) const {
    const std::vector<int> sizes = graph_.Sizes();
    for (int v : node.out) {
      const NdSbp& result = graph_.value(v).sbp;
      for (size_t i = 1; i < result.size(); ++i)
        if (sizes[i] > 1 && node.slice.fixed[i - 1] == Slice::kFree && result[i].is_broadcast()) return false;
    }
    return true;
  }

  // Where the plan says, in every run: variables have memory of their own.
  bool LiesInArena(const Node& node, int shared) const {
    for (size_t i = 0; i < node.in.size(); ++i)
      if (static_cast<int>(i) != shared &&
          graph_.producer(graph_.BehindViews(node.in[i])).kind == NodeKind::kVariable)
        return false;
    return true;
  }

  bool AlikeValues(const std::vector<int>& a, const std::vector<int>& b) const {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](int v, int w) {
      const Value &x = graph_.value(v), &y = graph_.value(w);
      return x.dtype == y.dtype && x.shape == y.shape && x.sbp == y.sbp;
    });
  }
  bool Alike(int n, int m) const {
    const Node &a = graph_.node(n), &b = graph_.node(m);
    return a.op == b.op && a.attrs == b.attrs && a.slice == b.slice && a.phase == b.phase &&
           a.rate == b.rate && a.part == b.part && a.want == b.want && AlikeValues(a.in, b.in) &&
           AlikeValues(a.out, b.out) && graph_.regions().Of(a.name) == graph_.regions().Of(b.name);
  }

  // Whether all that the node waits for can come before position `at`; adds the views that must move there.
  bool Ready(int n, int at, std::vector<int>* views) const {
    const Node& node = graph_.node(n);
    for (int before : node.after)
      if (position_[before] >= at) return false;
    for (int v : node.in) {
      const int producer = graph_.value(v).producer;
      if (position_[producer] < at) continue;
      if (!graph_.IsView(producer) || !Ready(producer, at, views)) return false;
      views->push_back(producer);
    }
    return true;
  }

  void Join(int n, int shared, std::vector<Group>* groups) const {
    for (Group& group : *groups) {
      const int first = group.nodes[0];
      std::vector<int> views;
      if (group.nodes.size() >= kMost || !Alike(n, first) || !Ready(n, position_[first], &views)) continue;
      group.nodes.push_back(n);
      return;
    }
    groups->push_back({shared, {n}});
  }

  void LineUp(int shared, std::vector<int> nodes, std::vector<int>* here, std::set<int>* moved) {
    const int at = position_[nodes[0]];
    const auto made = [&](int n) {
      const Value& other = graph_.value(graph_.BehindViews(graph_.node(n).in[1 - shared]));
      return std::tuple(position_[other.producer], other.output, position_[n]);
    };
    std::sort(nodes.begin(), nodes.end(), [&](int n, int m) { return made(n) < made(m); });
    for (int n : nodes) {
      std::vector<int> views;
      Ready(n, at, &views);
      for (int view : views)
        if (moved->insert(view).second) here->push_back(view);
    }
    for (int n : nodes) {
      graph_.node(n).attrs.Set(kTogether, std::vector<int64_t>{static_cast<int64_t>(nodes.size()), shared});
      moved->insert(n);
      here->push_back(n);
    }
  }

  Graph& graph_;
  const std::vector<int> order_;
  std::vector<int> position_;
};

}  // namespace

void LineUpProducts(Graph* graph, const CompileOptions& options) {
  if (options.asked.fuse && graph->mesh().Has("cuda")) Liner(graph).Run();
}

}  // namespace oneflow_like
