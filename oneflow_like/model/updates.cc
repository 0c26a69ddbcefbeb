#include "oneflow_like/updates.h"

#include <map>

#include "compiler/graph/graph.h"
#include "oneflow_like/model/model_impl.h"
#include "ops/language/numbers.h"

namespace oneflow_like {

namespace {

// The sum of squares of all: those of each stage are added there, then their sums in the order of stages.
Tensor SquareSum(const std::string& who, const std::vector<Tensor>& gradients, const Here& at) {
  if (gradients.empty()) Fail(who, ": no gradients are given");
  const Graph* graph = GraphOf(gradients[0], who);
  std::map<Slice, std::vector<Tensor>> squares;
  for (const Tensor& g : gradients) {
    if (GraphOf(g, who) != graph) Fail(who, ": '", g.name(), "' belongs to another graph than the first");
    squares[graph->producer(g.id()).slice].push_back(Apply(g.graph(), "square_sum", {g}, {}, at)[0]);
  }
  std::vector<Tensor> sums;
  for (auto& [where, terms] : squares) sums.push_back(terms.size() > 1 ? add_n(terms, at) : terms[0]);
  return sums.size() > 1 ? add_n(sums, at) : sums[0];
}

// Each times the factor, where the gradient is.
std::vector<Tensor> Scaled(const std::vector<Tensor>& gradients, Tensor factor, const Here& at) {
  std::vector<Tensor> scaled;
  for (const Tensor& g : gradients) scaled.push_back(mul(g, to_stage_of(factor, g, at), at));
  return scaled;
}

}  // namespace

Tensor learning_rate(GraphBuilder* graph, double lr, const Schedule& schedule, Here at) {
  if (graph == nullptr) Fail("learning_rate at ", SourceLine(at).str(), ": no graph was given to make it in");
  Attrs attrs = {{"lr", lr}};
  SetSchedule(schedule, &attrs);
  return Apply(graph, "learning_rate", {}, attrs, at)[0];
}

Clipped clip_by_norm(const std::vector<Tensor>& gradients, double most, Here at) {
  const std::string who = Cat("clip_by_norm at ", SourceLine(at).str());
  NeedNumber(who, "most", most, Domain::kPositive);
  const Tensor squares = SquareSum(who, gradients, at);
  const std::vector<Tensor> clip = Apply(squares.graph(), "clip_factor", {squares}, {{"max_norm", most}}, at);
  return {Scaled(gradients, clip[0], at), clip[1]};
}

LossScale::LossScale(Scope scope, Here at)
    : scale_(scope.State("loss_scale", {}, Full(65536), {}, at)),
      steps_(scope.State("finite_steps", {}, Zeros(), {}, at)) {}

Clipped LossScale::Unscale(const std::vector<Tensor>& gradients, double most, Here at) {
  const std::string who = Cat("LossScale::Unscale at ", SourceLine(at).str());
  NeedNumber(who, "most", most, Domain::kDivisor);
  const Tensor squares = SquareSum(who, gradients, at);
  const std::vector<Tensor> found =
      Apply(squares.graph(), "unscale", {squares, scale_}, {{"max_norm", most}}, at);
  finite_ = found[2];
  return {Scaled(gradients, found[0], at), found[1]};
}

Tensor LossScale::Choose(Tensor after, Tensor before, Here at) const {
  if (!finite_.defined()) Fail("LossScale::Choose at ", SourceLine(at).str(), ": call Unscale first");
  return where(to_stage_of(finite_, before, at), after, before, at);
}

Tensor LossScale::Update(Here at) const {
  if (!finite_.defined()) Fail("LossScale::Update at ", SourceLine(at).str(), ": call Unscale first");
  return Apply(finite_.graph(), "update_loss_scale", {scale_, steps_, finite_}, {}, at)[0];
}

}  // namespace oneflow_like
