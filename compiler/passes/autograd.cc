// Reverse-mode differentiation.
// Needs: a train node of the loss, one element (and of the scale of its gradient). Leaves: the train node
// with the weights that the loss depends on, and their gradients; gradient nodes (phase backward), each on
// the slice and with the source line of the operator it belongs to; a value read several times has its
// gradients summed on its own slice: those of slices by one concat, all others by one add_n (sum_parts.h).
#include <algorithm>

#include "compiler/graph/training.h"
#include "compiler/passes/passes.h"
#include "ops/language/functional.h"
#include "ops/language/sum_parts.h"

namespace oneflow_like {

namespace {

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
[[noreturn]] void FailWithoutGradients(const Graph& graph, int loss, int stopped_at, bool frozen) {
  const std::string what = Cat("the loss '", graph.value(loss).name, "'");
  if (frozen) Fail("nothing is left to train: all weights that ", what, " depends on are frozen");
  if (stopped_at < 0) Fail(what, " depends on no weight of the model");
  Fail("no gradient of ", what, " reaches a weight: it stops at ", graph.DescribeForUser(stopped_at),
       ", through which none flows; build the loss from operators that have a gradient");
}

bool Frozen(const Node& variable) { return variable.attrs.Int("frozen", 0) != 0; }

// The variables that may be trained: all but frozen ones and those that training keeps.
std::vector<int> Weights(const Graph& graph, int train) {
  std::vector<int> weights;
  const std::vector<int>& own = graph.node(train).in;
  for (int n = 0; n < graph.num_nodes(); ++n) {
    if (!graph.alive(n) || graph.node(n).kind != NodeKind::kVariable) continue;
    int w = graph.node(n).out[0];
    if (Frozen(graph.node(n))) continue;
    if (std::find(own.begin(), own.end(), w) == own.end()) weights.push_back(w);
  }
  std::sort(weights.begin(), weights.end());
  return weights;
}

// From the loss back to the weights, one operator after the other.
class Differentiator {
 public:
  // With respect to values `weights`; `factor`: on the gradient, a value, or -1.
  Differentiator(Graph* graph, int loss, int factor, std::vector<int> weights, Phase phase)
      : graph_(*graph),
        loss_(loss),
        factor_(factor),
        weights_(std::move(weights)),
        order_(graph->Order()),
        on_path_(OnPath(*graph, loss_, weights_, order_)),
        parts_(graph->num_values()) {
    origin_.phase = phase;
  }
  ~Differentiator() { graph_.SetOrigin(nullptr); }

  // By weight; undefined where the loss does not depend on it.
  std::vector<Tensor> Run() {
    Begin();
    for (auto it = order_.rbegin(); it != order_.rend(); ++it)
      if (on_path_[*it] && !IsEnd(graph_.node(*it)) && !GoThrough(*it) && stopped_at_ < 0) stopped_at_ = *it;
    std::vector<Tensor> found;
    for (int w : weights_) found.push_back(Total(w));
    return found;
  }
  [[noreturn]] void FailWithout() const {
    FailWithoutGradients(graph_, loss_, stopped_at_, weights_.empty() && AnyFrozen());
  }

 private:
  bool AnyFrozen() const {
    return std::any_of(order_.begin(), order_.end(), [&](int n) {
      return graph_.node(n).kind == NodeKind::kVariable && Frozen(graph_.node(n));
    });
  }

  // Nodes added from here on belong to that node.
  void Enter(int node) {
    const Node& n = graph_.node(node);
    origin_.line = n.line;
    origin_.scope = ScopeOf(n.name);
    slice_ = n.slice;
    origin_.slice = n.placed ? &slice_ : nullptr;
    graph_.SetOrigin(&origin_);
  }

  // The gradient of a value, all of whose readers have been gone through; undefined: none.
  Tensor Total(int value) {
    std::vector<Tensor>& p = parts_[value];
    if (p.empty()) return Tensor();
    if (p.size() > 1) {
      Enter(graph_.value(value).producer);
      p = {SumOfParts(p)};
    }
    return p[0];
  }

  void Begin() {
    const Value& loss = graph_.value(loss_);
    if (loss.shape.elements() != 1 || !IsFloating(loss.dtype))
      Fail(graph_.DescribeForUser(loss.producer), ": the loss must be one floating point number, but it is ",
           Name(loss.dtype), loss.shape.str());
    Enter(loss.producer);
    Tensor one = full(&graph_, loss.shape, 1.0, loss.dtype);
    if (factor_ >= 0) one = mul(one, Tensor(&graph_, factor_));
    parts_[loss_].push_back(one);
  }

  // Gives the operands of node `n` their parts. False: none is wanted that the operator could give.
  bool GoThrough(int n) {
    Node node = graph_.node(n);  // a copy, as the graph grows below
    // The new value of a variable is no function of its old one that this step could differentiate.
    if (node.kind == NodeKind::kUpdated) return false;
    const OpDef& def = graph_.catalog().Get(node.op);
    // Random operators have no key yet (name_draws) where the user asks for gradients.
    if (def.random && !node.attrs.Has("key") && !node.attrs.Has("draws_of"))
      node.attrs.Set("draws_of", node.name);
    GradCall call{node.attrs, {}, {}, {}, {}};
    bool reached = false, wanted = false, given = false;
    for (int v : node.out) {
      call.out.emplace_back(&graph_, v);
      call.dout.push_back(Total(v));
      reached = reached || call.dout.back().defined();
    }
    for (int v : node.in) {
      call.in.emplace_back(&graph_, v);
      call.wanted.push_back(on_path_[graph_.value(v).producer] && IsFloating(graph_.value(v).dtype));
      wanted = wanted || call.wanted.back();
    }
    if (!wanted) return true;
    if (!reached) return false;
    const bool turns = def.turns_of && !def.turns_of(graph_.CallOf(node)).empty();
    if (turns || (!def.grad && !def.stops_gradient)) {
      const std::string above = WeightsAbove(graph_, n, weights_);
      if (above.empty()) return true;  // none is lost: operators above it stop gradients by definition
      if (!turns)
        Fail(graph_.DescribeForUser(n), ": operator ", node.op, " has no gradient, so none reaches ", above,
             " through it; give its OpDef a `grad`, or set `stops_gradient` if none is meant to flow");
      Fail(graph_.DescribeForUser(n), ": it gives each micro-batch a value of its own, and no gradient of ",
           above, " goes through that; keep the loss apart from it");
    }
    if (!def.grad) return false;
    if (!def.keep.empty() && !node.attrs.Has(def.keep)) {
      graph_.Keep(n);
      for (size_t i = node.out.size(); i < graph_.node(n).out.size(); ++i) {
        call.out.emplace_back(&graph_, graph_.node(n).out[i]);
        call.dout.emplace_back();
      }
      parts_.resize(graph_.num_values());
      node.attrs = graph_.node(n).attrs;
    }
    Enter(n);
    if (!node.gradient.empty()) {  // held where it comes in
      call.dout[0] = graph_.AddNode("identity", {call.dout[0]}, {}, node.line)[0];
      graph_.node(graph_.value(call.dout[0].id()).producer).fixed = node.gradient;
    }
    const std::vector<Tensor> grads = def.grad(call);
    if (grads.size() != node.in.size())
      Fail(graph_.DescribeForUser(n), ": the gradient of operator ", node.op, " gives ", grads.size(),
           " tensors for its ", node.in.size(), " operands; give an undefined Tensor where none flows");
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined() || !call.wanted[i]) continue;
      given = true;
      if (grads[i].shape() != graph_.value(node.in[i]).shape)
        Fail(graph_.DescribeForUser(n), ": the gradient of operand ", i, " has shape ",
             grads[i].shape().str(), " but the operand has ", graph_.value(node.in[i]).shape.str());
      parts_[node.in[i]].push_back(grads[i]);
    }
    return given;
  }

  Graph& graph_;
  const int loss_, factor_;
  const std::vector<int> weights_, order_;
  const std::vector<bool> on_path_;
  std::vector<std::vector<Tensor>> parts_;  // by value: the gradients that its readers gave
  int stopped_at_ = -1;  // the first node, from the loss on, that gives no operand a gradient
  Graph::Origin origin_;
  Slice slice_;
};

}  // namespace

void Autograd(Graph* graph, const CompileOptions&) {
  const int train = TrainNode(*graph);
  if (train < 0) return;
  const Node ends = graph->node(train);
  const std::vector<int> weights = Weights(*graph, train);
  Differentiator differentiator(graph, ends.in[0], ends.attrs.Has("scaled") ? ends.in[1] : -1, weights,
                                Phase::kBackward);
  const std::vector<Tensor> gradients = differentiator.Run();
  std::vector<int>& in = graph->node(train).in;
  for (size_t i = 0; i < weights.size(); ++i)
    if (gradients[i].defined()) in.insert(in.end(), {weights[i], gradients[i].id()});
  if (in.size() == ends.in.size()) differentiator.FailWithout();
}

std::vector<Tensor> GradientsOf(Graph* graph, int loss, const std::vector<int>& values) {
  return Differentiator(graph, loss, -1, values, Phase::kForward).Run();
}

}  // namespace oneflow_like
