// Reverse-mode differentiation.
// Needs: a train node of the loss, one element (and of the scale of its gradient). Leaves: the train node
// with the weights that the loss depends on, and their gradients; gradient nodes (phase backward), each on
// the slice and with the source line of the operator it belongs to; a value read several times has its
// gradients summed on its own slice by one add_n.
#include <algorithm>

#include "compiler/passes.h"
#include "compiler/training.h"
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

// "'a', 'b' and 3 more": the weights above node `n` whose gradient would come through it.
std::string WeightsAbove(const Graph& graph, int n, const std::vector<int>& weights) {
  std::vector<bool> seen(graph.num_nodes(), false);
  std::vector<int> todo = {n};
  while (!todo.empty()) {
    int at = todo.back();
    todo.pop_back();
    if (seen[at]) continue;
    seen[at] = true;
    const OpDef* def = graph.catalog().Find(graph.node(at).op);
    if (def && def->stops_gradient) continue;
    for (int v : graph.node(at).in)
      if (IsFloating(graph.value(v).dtype)) todo.push_back(graph.value(v).producer);
  }
  std::vector<std::string> names;
  for (int w : weights)
    if (seen[graph.value(w).producer]) names.push_back("'" + graph.value(w).name + "'");
  constexpr size_t kShown = 6;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return names.size() > kShown ? Cat(text, " and ", names.size() - kShown, " more") : text;
}

// What no gradient at all is blamed on: the node nearest to the loss that gives none to its floating
// operands.
[[noreturn]] void FailWithoutGradients(const Graph& graph, int loss, int stopped_at) {
  const std::string what = Cat("the loss '", graph.value(loss).name, "'");
  if (stopped_at < 0) Fail(what, " depends on no weight of the model");
  Fail("no gradient of ", what, " reaches a weight: it stops at ", graph.Describe(stopped_at),
       ", through which none flows; build the loss from operators that have a gradient");
}

// The variables that may be trained: all but those that training keeps.
std::vector<int> Weights(const Graph& graph, int train) {
  std::vector<int> weights;
  const std::vector<int>& own = graph.node(train).in;
  for (int n = 0; n < graph.num_nodes(); ++n) {
    if (!graph.alive(n) || graph.node(n).kind != NodeKind::kVariable) continue;
    int w = graph.node(n).out[0];
    if (std::find(own.begin(), own.end(), w) == own.end()) weights.push_back(w);
  }
  std::sort(weights.begin(), weights.end());
  return weights;
}

}  // namespace

void Autograd(Graph* graph) {
  const int train = TrainNode(*graph);
  if (train < 0) return;
  const int loss = graph->node(train).in[0],
            scale = graph->node(train).attrs.Has("scaled") ? graph->node(train).in[1] : -1;
  const std::vector<int> weights = Weights(*graph, train);
  if (graph->value(loss).shape.elements() != 1 || !IsFloating(graph->value(loss).dtype))
    Fail(graph->Describe(graph->value(loss).producer),
         ": the loss must be one floating point number, but it is ", Name(graph->value(loss).dtype),
         graph->value(loss).shape.str());
  std::vector<int> order = graph->Order();
  std::vector<bool> on_path = OnPath(*graph, loss, weights, order);
  std::vector<std::vector<Tensor>> parts(graph->num_values());
  int stopped_at = -1;  // the first node, from the loss on, that gives no operand a gradient

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
    bool wanted = false, given = false;
    for (int v : node.in) {
      call.in.emplace_back(graph, v);
      call.wanted.push_back(on_path[graph->value(v).producer] && IsFloating(graph->value(v).dtype));
      wanted = wanted || call.wanted.back();
    }
    if (!wanted) continue;
    if (reached && !def.grad && !def.stops_gradient)
      Fail(graph->Describe(*it), ": operator ", node.op, " has no gradient, so weights ",
           WeightsAbove(*graph, *it, weights),
           " would not be trained through it; give its OpDef a `grad`, or set ",
           "`stops_gradient` if none is meant to flow");
    enter(*it);
    std::vector<Tensor> grads;
    if (reached && def.grad) grads = def.grad(call);
    if (reached && def.grad && grads.size() != node.in.size())
      Fail(graph->Describe(*it), ": the gradient of operator ", node.op, " gives ", grads.size(),
           " tensors for its ", node.in.size(), " operands; give an undefined Tensor where none flows");
    for (size_t i = 0; i < grads.size(); ++i)
      if (grads[i].defined() && call.wanted[i]) {
        given = true;
        if (grads[i].shape() != graph->value(node.in[i]).shape)
          Fail(graph->Describe(*it), ": the gradient of operand ", i, " has shape ", grads[i].shape().str(),
               " but the operand has ", graph->value(node.in[i]).shape.str());
        parts[node.in[i]].push_back(grads[i]);
      }
    if (!given && stopped_at < 0) stopped_at = *it;
  }
  std::vector<int> found;
  for (int w : weights) {
    Tensor g = total(w);
    if (g.defined()) found.insert(found.end(), {w, g.id()});
  }
  graph->SetOrigin(nullptr);
  if (found.empty()) FailWithoutGradients(*graph, loss, stopped_at);
  std::vector<int>& in = graph->node(train).in;
  in.insert(in.end(), found.begin(), found.end());
}

}  // namespace oneflow_like
