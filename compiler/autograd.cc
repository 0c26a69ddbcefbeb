// Reverse-mode differentiation.
// Needs: a built graph, a loss of one element. Leaves: gradient nodes (phase backward), each on the slice and
// with the source line of the operator it belongs to; a value read several times has its gradients summed on
// its own slice by one add_n.
#include "compiler/passes.h"
#include "ops/functional.h"

namespace oneflow_like {

namespace {

std::string Scope(const std::string& name) {
  size_t slash = name.rfind('/');
  return slash == std::string::npos ? "" : name.substr(0, slash + 1);
}

// Nodes on a path from one of `weights` to the loss.
std::vector<bool> OnPath(const Graph& graph, int loss, const std::vector<int>& weights,
                         const std::vector<int>& order) {
  std::vector<bool> down(graph.num_nodes(), false), up(graph.num_nodes(), false);
  for (int w : weights) down[graph.value(w).producer] = true;
  for (int n : order)
    for (int v : graph.node(n).in)
      if (down[graph.value(v).producer]) down[n] = true;
  up[graph.value(loss).producer] = true;
  for (auto it = order.rbegin(); it != order.rend(); ++it)
    if (up[*it])
      for (int v : graph.node(*it).in) up[graph.value(v).producer] = true;
  for (int n = 0; n < graph.num_nodes(); ++n) down[n] = down[n] && up[n];
  return down;
}

}  // namespace

std::vector<int> Autograd(Graph* graph, int loss, const std::vector<int>& weights, int scale) {
  if (graph->value(loss).shape.elements() != 1 || !IsFloating(graph->value(loss).dtype))
    Fail(graph->Describe(graph->value(loss).producer),
         ": the loss must be one floating point number, but it is ", Name(graph->value(loss).dtype),
         graph->value(loss).shape.str());
  std::vector<int> order = graph->Order();
  std::vector<bool> on_path = OnPath(*graph, loss, weights, order);
  std::vector<std::vector<Tensor>> parts(graph->num_values());

  Graph::Origin origin;
  origin.phase = Phase::kBackward;
  Slice slice;
  auto enter = [&](int node) {
    const Node& n = graph->node(node);
    origin.line = n.line;
    origin.scope = Scope(n.name);
    slice = n.slice;
    origin.slice = n.placed ? &slice : nullptr;
    graph->SetOrigin(&origin);
  };
  auto total = [&](int value) -> Tensor {
    std::vector<Tensor>& p = parts[value];
    if (p.empty()) return Tensor();
    if (p.size() > 1) {
      enter(graph->value(value).producer);
      p = {add_n(p)};
    }
    return p[0];
  };

  enter(graph->value(loss).producer);
  parts[loss].push_back(full(graph, graph->value(loss).shape, 1.0, graph->value(loss).dtype));
  if (scale >= 0) parts[loss][0] = mul(parts[loss][0], Tensor(graph, scale));
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    if (!on_path[*it] || IsEnd(graph->node(*it))) continue;
    const Node node = graph->node(*it);  // a copy: the graph grows below
    const OpDef& def = graph->catalog().Get(node.op);
    GradCall call{node.attrs, {}, {}, {}, {}};
    bool reached = false;
    for (int v : node.out) {
      call.out.emplace_back(graph, v);
      call.dout.push_back(total(v));
      reached = reached || call.dout.back().defined();
    }
    if (!reached || !def.grad) continue;
    for (int v : node.in) {
      call.in.emplace_back(graph, v);
      call.wanted.push_back(on_path[graph->value(v).producer] && IsFloating(graph->value(v).dtype));
    }
    enter(*it);
    std::vector<Tensor> grads = def.grad(call);
    for (size_t i = 0; i < grads.size() && i < node.in.size(); ++i)
      if (grads[i].defined() && call.wanted[i]) {
        if (grads[i].shape() != graph->value(node.in[i]).shape)
          Fail(graph->Describe(*it), ": the gradient of operand ", i, " has shape ", grads[i].shape().str(),
               " but the operand has ", graph->value(node.in[i]).shape.str());
        parts[node.in[i]].push_back(grads[i]);
      }
  }
  std::vector<int> gradients;
  for (int w : weights) {
    Tensor g = total(w);
    gradients.push_back(g.defined() ? g.id() : -1);
  }
  graph->SetOrigin(nullptr);
  return gradients;
}

}  // namespace oneflow_like
