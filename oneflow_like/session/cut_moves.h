// Cuts of weights to choose from: those that are estimated fastest at a price of a byte, and neighbours of
// others.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/search/choose_weights.h"
#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

class CutMoves {
 public:
  // `placed` has come through place_stages. Weights of the model that lie somewhere already stay as they are.
  CutMoves(const ModelImpl& model, Graph placed, const CompileOptions& options);

  // At this price of a byte. Between 0 and 1: of the highest.
  VariableCuts At(double price) const;
  // These cuts, but for one kind of weights: cut in another way along one axis of the mesh.
  std::vector<VariableCuts> Beside(const VariableCuts& cuts) const;
  const WeightSearch& search() const { return search_; }

 private:
  void AddCutsOf(const std::vector<std::string>& weights, int axis, const VariableCuts& cuts,
                 std::vector<VariableCuts>* all) const;

  const ModelImpl& model_;
  const Roles roles_;
  const int zero_axis_;
  const WeightSearch search_;
};

}  // namespace oneflow_like
