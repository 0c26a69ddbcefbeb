#include "oneflow_like/session/logit_tiles.h"

#include <algorithm>
#include <string>

#include "ops/language/functional.h"

namespace oneflow_like {
namespace {

struct HeadOfLoss {
  int product = -1, loss = -1;  // nodes
  int x = -1, table = -1;       // values
};

// Whether the equation is of x[.. k] and w[c k], in that order.
bool IsHeadProduct(const std::string& equation) {
  const size_t comma = equation.find(','), arrow = equation.find("->");
  if (comma == std::string::npos || arrow == std::string::npos || comma == 0) return false;
  const std::string x = equation.substr(0, comma), w = equation.substr(comma + 1, arrow - comma - 1);
  return w.size() == 2 && w[1] == x.back() && x.find(w[0]) == std::string::npos &&
         equation.substr(arrow + 2) == x.substr(0, x.size() - 1) + w[0];
}

std::vector<HeadOfLoss> HeadsOf(const Graph& graph) {
  const std::vector<std::vector<int>> readers = graph.Readers();
  std::vector<HeadOfLoss> heads;
  for (int n = 0; n < graph.num_nodes(); ++n) {
    const Node& node = graph.node(n);
    if (!graph.alive(n) || node.op != "cross_entropy") continue;
    const int logits = node.in[0], p = graph.value(logits).producer;
    const Node& product = graph.node(p);
    if (product.op != "einsum" || product.in.size() != 2 || readers[logits].size() != 1) continue;
    if (!product.fixed.empty() || product.slice != node.slice) continue;
    if (!IsHeadProduct(product.attrs.Str("equation"))) continue;
    if (graph.value(product.in[0]).dtype != graph.value(product.in[1]).dtype) continue;
    heads.push_back({p, n, product.in[0], product.in[1]});
  }
  return heads;
}

int64_t RowsOf(const Graph& graph, const HeadOfLoss& head, int64_t parts) {
  const Value& losses = graph.value(graph.node(head.loss).out[0]);
  return (losses.shape.elements() + parts - 1) / parts;
}

// Whether the table is a variable, or a form of one, that is trained and whose rows no device has only some
// of.
bool IsTrainedWhole(const Graph& graph, int table) {
  while (graph.producer(table).in.size() == 1) table = graph.producer(table).in[0];
  const Node& variable = graph.producer(table);
  if (variable.kind != NodeKind::kVariable || variable.attrs.Int("frozen", 0) != 0) return false;
  const std::vector<int> sizes = graph.Sizes();
  return std::none_of(variable.fixed.begin(), variable.fixed.end(), [&](const auto& cut) {
    return cut.second.is_split() && cut.second.axis == 0 && sizes[cut.first] > 1 &&
           variable.stored.count(cut.first) == 0;
  });
}

// Whether something that is trained leads to the value.
bool IsTrained(const Graph& graph, int value) {
  std::vector<bool> seen(graph.num_values(), false);
  std::vector<int> open = {value};
  while (!open.empty()) {
    const int v = open.back();
    open.pop_back();
    if (seen[v]) continue;
    seen[v] = true;
    const Node& from = graph.producer(v);
    if (from.kind == NodeKind::kVariable && from.attrs.Int("frozen", 0) == 0) return true;
    open.insert(open.end(), from.in.begin(), from.in.end());
  }
  return false;
}

// The node that makes the mean of all losses, and alone reads what the head makes; -1: none.
int MeanOf(const Graph& graph, const HeadOfLoss& head, const std::vector<std::vector<int>>& readers) {
  const std::vector<int>& out = graph.node(head.loss).out;
  if (readers[out[0]].size() != 1 || !readers[out[1]].empty()) return -1;
  const int mean = readers[out[0]][0];
  const Node& node = graph.node(mean);
  return node.op == "mean" && node.slice == graph.node(head.loss).slice && node.fixed.empty() &&
                 graph.value(node.out[0]).shape.rank() == 0
             ? mean
             : -1;
}

// The mean takes the head's place: outputs of the operator are the sum, and what the head gave.
void SumInOnePass(Graph* graph, const HeadOfLoss& head, int mean, int64_t tile) {
  const Node loss = graph->node(head.loss);
  const Dims& rows = graph->value(loss.out[0]).shape;
  Graph::Origin origin{graph->node(mean).phase, graph->node(mean).line, &loss.slice,
                       ScopeOf(graph->node(mean).name)};
  graph->SetOrigin(&origin);
  const int share = full(graph, rows, 1.0 / static_cast<double>(rows.elements())).id();
  graph->SetOrigin(nullptr);
  Node& node = graph->node(mean);
  graph->node(graph->value(share).producer).placed = node.placed;
  node.op = "linear_cross_entropy_sum";
  node.attrs = {{"tile", tile}};
  node.in = {head.x, head.table, loss.in[1], share};
  node.out.insert(node.out.end(), loss.out.begin(), loss.out.end());
  for (size_t o = 1; o < node.out.size(); ++o) {
    graph->value(node.out[o]).producer = mean;
    graph->value(node.out[o]).output = static_cast<int>(o);
  }
  graph->Remove(head.loss);
}

}  // namespace

int64_t RowsOfLogits(const Graph& graph, int64_t parts) {
  int64_t most = 0;
  for (const HeadOfLoss& head : HeadsOf(graph)) most = std::max(most, RowsOf(graph, head, parts));
  return most;
}

void TileLogits(Graph* graph, int64_t tile, int64_t parts, bool training, DType type) {
  const std::vector<std::vector<int>> readers = graph->Readers();
  for (const HeadOfLoss& head : HeadsOf(*graph)) {
    const int64_t hidden = graph->value(head.table).shape[1];
    const bool small = hidden * static_cast<int64_t>(sizeof(float)) <=
                       RowsOf(*graph, head, parts) * static_cast<int64_t>(SizeOf(type));
    const int mean = MeanOf(*graph, head, readers);
    if (training && small && mean >= 0 && IsTrainedWhole(*graph, head.table) && IsTrained(*graph, head.x)) {
      SumInOnePass(graph, head, mean, tile);
    } else {
      Node& loss = graph->node(head.loss);
      loss.op = "linear_cross_entropy";
      loss.attrs = {{"tile", tile}};
      loss.in = {head.x, head.table, loss.in[1]};
    }
    graph->Remove(head.product);
  }
}

}  // namespace oneflow_like
