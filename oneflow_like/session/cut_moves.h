// Cuts of weights to choose from: those that are estimated fastest at a price of a byte, and neighbours of
// others.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/search/choose_weights.h"
#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

class CutMoves {
 public:
  // `placed` has come through place_stages. Weights of the model that lie somewhere already stay as they are.
  CutMoves(const ModelImpl& model, Graph placed, const CompileOptions& options);

  // At this price of a byte. Between 0 and 1: of the highest. At 0 no slower by estimate than Annotated().
  VariableCuts At(double price) const;
  // As annotations in code say that AutoCuts::kAll does not follow, other weights whole; nothing without any.
  std::optional<VariableCuts> Annotated() const;
  // These cuts, but for one kind of weights: cut in another way along one axis of the mesh, or along all
  // axes of a group.
  std::vector<VariableCuts> Beside(const VariableCuts& cuts) const;
  const WeightSearch& search() const { return search_; }

 private:
  void AddCutsOf(const std::vector<std::string>& weights, const MeshAxes& axes, const VariableCuts& cuts,
                 std::vector<VariableCuts>* all) const;

  const ModelImpl& model_;
  const Roles roles_;
  const MeshAxes zero_axes_;
  const WeightSearch search_;
};

}  // namespace oneflow_like
