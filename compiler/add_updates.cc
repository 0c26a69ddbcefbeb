// The optimizer as nodes of the graph.
// Needs: gradients of the weights. Leaves: for each weight its state variables and one update node (phase
// update, in place) on the weight's slice; with clipping, one norm for all: per slice the squares are summed,
// the slices' sums are added in slice order, and the factor goes to every update. With a loss scale the
// factor divides by it, and no update is made when the norm is not finite.
#include <map>

#include "compiler/passes.h"
#include "ops/functional.h"

namespace oneflow_like {

namespace {

Tensor StateVariable(Graph* graph, int weight, const std::string& prefix) {
  const Node weight_node = graph->producer(weight);
  Node node;
  node.op = "variable";
  node.name = prefix + "/" + weight_node.name;
  node.line = weight_node.line;
  node.slice = weight_node.slice;
  node.placed = weight_node.placed;
  node.fixed = weight_node.fixed;
  node.stored = weight_node.stored;
  node.phase = Phase::kUpdate;
  node.attrs.Set("init", std::string("full"));
  node.attrs.Set("value", 0.0);
  int id = graph->AddRaw(node, {{node.name, DType::kFloat32, graph->value(weight).shape}});
  return Tensor(graph, graph->node(id).out[0]);
}

// What every update is told of all gradients: the factor on them, and with a loss scale whether they are
// finite.
struct Told {
  Tensor factor, finite;
};

Told FromNorm(Graph* graph, const std::vector<int>& gradients, const UpdateRule& rule,
              const LossScale& loss_scale, Graph::Origin* origin, int* grad_norm) {
  std::map<Slice, std::vector<Tensor>> squares;
  Slice slice;
  for (int g : gradients) {
    const Node& from = graph->producer(g);
    slice = from.slice;
    origin->slice = from.placed ? &slice : nullptr;
    origin->line = from.line;
    Tensor s = Apply(graph, "square_sum", {Tensor(graph, g)})[0];
    squares[slice].push_back(s);
  }
  std::vector<Tensor> sums;
  for (auto& [where, terms] : squares) {
    slice = where;
    if (origin->slice) origin->slice = &slice;
    sums.push_back(terms.size() > 1 ? add_n(terms) : terms[0]);
  }
  slice = squares.begin()->first;
  Tensor total = sums.size() > 1 ? add_n(sums) : sums[0];
  Attrs attrs = {{"max_norm", rule.clip_norm}};
  bool scaled = loss_scale.scale >= 0;
  std::vector<Tensor> clip = scaled ? Apply(graph, "unscale", {total, Tensor(graph, loss_scale.scale)}, attrs)
                                    : Apply(graph, "clip_factor", {total}, attrs);
  if (rule.clip_norm > 0) *grad_norm = clip[1].id();
  return {clip[0], scaled ? clip[2] : Tensor()};
}

}  // namespace

void AddUpdates(Graph* graph, const std::vector<int>& weights, const std::vector<int>& gradients,
                const UpdateRule& rule, int* grad_norm, const LossScale& loss_scale) {
  Graph::Origin origin;
  origin.phase = Phase::kUpdate;
  origin.scope = "update/";
  graph->SetOrigin(&origin);
  Told told;
  *grad_norm = -1;
  if (rule.clip_norm > 0 || loss_scale.scale >= 0)
    told = FromNorm(graph, gradients, rule, loss_scale, &origin, grad_norm);
  Slice slice;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Node weight = graph->producer(weights[i]);
    slice = weight.slice;
    origin.slice = weight.placed ? &slice : nullptr;
    origin.line = weight.line;
    std::vector<Tensor> in = {Tensor(graph, weights[i]), Tensor(graph, gradients[i])};
    if (rule.op == "sgd") {
      in.push_back(StateVariable(graph, weights[i], "sgd_v"));
    } else {
      in.push_back(StateVariable(graph, weights[i], "adam_m"));
      in.push_back(StateVariable(graph, weights[i], "adam_v"));
    }
    if (told.factor.defined()) in.push_back(told.factor);
    if (told.finite.defined()) in.push_back(told.finite);
    Attrs attrs = rule.attrs;
    if (rule.decay_only_matrices && graph->value(weights[i]).shape.rank() < 2) attrs.Set("weight_decay", 0.0);
    Apply(graph, rule.op, in, attrs);
  }
  if (loss_scale.scale >= 0) {
    const Node variable = graph->producer(loss_scale.scale);
    slice = variable.slice;
    origin.slice = variable.placed ? &slice : nullptr;
    origin.line = variable.line;
    Apply(graph, "update_loss_scale",
          {Tensor(graph, loss_scale.scale), Tensor(graph, loss_scale.finite_steps), told.finite});
  }
  graph->SetOrigin(nullptr);
}

}  // namespace oneflow_like
