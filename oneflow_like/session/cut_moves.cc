#include "oneflow_like/session/cut_moves.h"

#include <algorithm>
#include <utility>

namespace oneflow_like {
namespace {

// Variables that have a place already stay as they are.
Graph WithLoadedClosed(const ModelImpl& model, Graph graph) {
  for (int n = 0; n < graph.num_nodes(); ++n) {
    Node& node = graph.node(n);
    if (!graph.alive(n) || node.kind != NodeKind::kVariable) continue;
    const auto known = model.variables.find(node.name);
    if (known == model.variables.end() || known->second.layout.sbp.empty()) continue;
    for (int axis = 0; axis < graph.mesh().rank(); ++axis) node.fixed.emplace(1 + axis, B());
  }
  return graph;
}

}  // namespace

CutMoves::CutMoves(const ModelImpl& model, Graph placed, const CompileOptions& options)
    : model_(model),
      roles_(options.roles),
      zero_axis_(options.zero_axis),
      search_(WithLoadedClosed(model, std::move(placed)), options) {}

VariableCuts CutMoves::At(double price) const {
  return search_.Cuts(price * (price > 0 ? search_.HighestPrice() : 0));
}

std::vector<VariableCuts> CutMoves::Beside(const VariableCuts& cuts) const {
  std::map<std::string, std::vector<std::string>> kinds;
  for (const auto& [weight, cut] : cuts) {
    const auto known = model_.variables.find(weight);
    if (known == model_.variables.end() || !known->second.layout.sbp.empty()) continue;
    const NameInBlock at = InBlock(weight);
    kinds[Cat(at.block, at.name, " ", known->second.shape.str())].push_back(weight);
  }
  std::vector<VariableCuts> all;
  for (const auto& [kind, weights] : kinds)
    for (int axis = 0; axis < model_.mesh.rank(); ++axis)
      if (model_.mesh.axis_size(axis) > 1 && axis != zero_axis_) AddCutsOf(weights, axis, cuts, &all);
  return all;
}

// The cuts with these weights, which are alike, cut in each other way along a mesh axis.
void CutMoves::AddCutsOf(const std::vector<std::string>& weights, int axis, const VariableCuts& cuts,
                         std::vector<VariableCuts>* all) const {
  const int entry = 1 + axis;
  const Dims& shape = model_.variables.at(weights[0]).shape;
  const FixedSbp& is = cuts.at(weights[0]).fixed;
  const Role role = RoleOf(roles_, axis);
  if (model_.variables.at(weights[0]).node.fixed.count(entry) > 0) return;
  for (int a = -1; a < shape.rank(); ++a) {  // -1: whole
    const bool taken = std::any_of(is.begin(), is.end(), [&](const auto& other) {
      return other.second.is_split() && other.second.axis == a;
    });
    if (a < 0 ? is.count(entry) == 0 : taken || shape[a] < model_.mesh.axis_size(axis)) continue;
    all->push_back(cuts);
    for (const std::string& weight : weights) {
      VariableCut& cut = all->back()[weight];
      cut.fixed.erase(entry);
      cut.stored.erase(entry);
      if (a < 0) continue;
      cut.fixed[entry] = S(a);
      if (role == Role::kBatch || role == Role::kContext) cut.stored.insert(entry);
    }
  }
}

}  // namespace oneflow_like
