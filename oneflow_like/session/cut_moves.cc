#include "oneflow_like/session/cut_moves.h"

#include <algorithm>
#include <utility>

#include "compiler/graph/training.h"

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

// Adds the cuts with these weights, which are alike, cut in each other way along these mesh axes.
void AddCutsOf(const ModelImpl& model, const Roles& roles, const std::vector<std::string>& weights,
               const MeshAxes& axes, const VariableCuts& cuts, std::vector<VariableCuts>* all) {
  const ModelVariable& like = model.variables.at(weights[0]);
  const VariableCut& is = cuts.at(weights[0]);
  FixedSbp annotated = like.node.fixed;  // and as it was chosen, once it was
  for (const auto& [entry, sbp] : is.fixed) annotated.erase(entry);
  // Of an axis of stages a weight lies on one.
  const auto stays = [&](int a) {
    return annotated.count(1 + a) > 0 || like.node.slice.fixed[a] != Slice::kFree;
  };
  if (std::any_of(axes.begin(), axes.end(), stays)) return;
  std::vector<int> sizes = {1};
  for (int a = 0; a < model.mesh.rank(); ++a) sizes.push_back(model.mesh.axis_size(a));
  for (int a = -1; a < like.shape.rank(); ++a) {  // -1: whole
    VariableCut cut = is;
    for (int axis : axes) {
      cut.fixed.erase(1 + axis);
      cut.stored.erase(1 + axis);
      if (a < 0) continue;
      cut.fixed[1 + axis] = S(a);
      const Role role = RoleOf(roles, axis);
      if (role == Role::kBatch || role == Role::kContext) cut.stored.insert(1 + axis);
    }
    FixedSbp nested = annotated;
    nested.insert(cut.fixed.begin(), cut.fixed.end());
    if (cut.fixed == is.fixed || (a >= 0 && NestedParts(nested, a, sizes) > like.shape[a])) continue;
    all->push_back(cuts);
    for (const std::string& weight : weights) all->back()[weight] = cut;
  }
}

}  // namespace

CutMoves::CutMoves(const ModelImpl& model, Graph placed, const CompileOptions& options)
    : model_(model), search_(WithLoadedClosed(model, std::move(placed)), options) {}

VariableCuts CutMoves::At(double price) const {
  if (price > 0) return search_.Cuts(price * search_.HighestPrice());
  VariableCuts found = search_.Cuts();
  const std::optional<VariableCuts> annotated = Annotated();
  return annotated && search_.Seconds(*annotated) < search_.Seconds(found) ? *annotated : found;
}

std::optional<VariableCuts> CutMoves::Annotated() const {
  VariableCuts cuts;
  bool any = false;
  for (const auto& [name, variable] : model_.variables) {
    if (IsTrainingState(name) || !variable.layout.sbp.empty()) continue;
    VariableCut& cut = cuts[name];
    for (const auto& [entry, sbp] : variable.left_out.fixed) {
      if (!sbp.is_split() || variable.node.fixed.count(entry) > 0) continue;
      cut.fixed[entry] = sbp;
      if (variable.left_out.stored.count(entry) > 0) cut.stored.insert(entry);
      any = true;
    }
  }
  return any ? std::optional(std::move(cuts)) : std::nullopt;
}

std::vector<VariableCuts> CutsBeside(const ModelImpl& model, const CompileOptions& options,
                                     const VariableCuts& cuts) {
  std::map<std::string, std::vector<std::string>> kinds;
  for (const auto& [weight, cut] : cuts) {
    const auto known = model.variables.find(weight);
    if (known == model.variables.end() || !known->second.layout.sbp.empty()) continue;
    const NameInBlock at = InBlock(weight);
    kinds[Cat(at.block, at.name, " ", known->second.shape.str())].push_back(weight);
  }
  std::vector<MeshAxes> nests;  // along which a move changes a cut: one axis, or all of a group
  const auto add = [&](MeshAxes axes) {
    std::erase_if(
        axes, [&](int a) { return model.mesh.axis_size(a) == 1 || HasAxis(ZeroAxes(options.decided), a); });
    if (!axes.empty() && std::find(nests.begin(), nests.end(), axes) == nests.end()) nests.push_back(axes);
  };
  for (int axis = 0; axis < model.mesh.rank(); ++axis) add({axis});
  for (const auto& [name, axes] : model.mesh.groups()) add(model.mesh.FindAxes(axes));
  std::vector<VariableCuts> all;
  for (const auto& [kind, weights] : kinds)
    for (const MeshAxes& axes : nests) AddCutsOf(model, options.asked.roles, weights, axes, cuts, &all);
  return all;
}

}  // namespace oneflow_like
