// Cuts of weights to choose from: those that are estimated fastest at a price of a byte, and neighbours of
// others.
#pragma once

#include <optional>
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
  const WeightSearch& search() const { return search_; }

 private:
  const ModelImpl& model_;
  const WeightSearch search_;
};

// These cuts, but for one kind of weights: cut in another way along one axis of the mesh, or along all axes
// of a group. What annotations in code fix and ZeRO's axes stay.
std::vector<VariableCuts> CutsBeside(const ModelImpl& model, const CompileOptions& options,
                                     const VariableCuts& cuts);

}  // namespace oneflow_like
