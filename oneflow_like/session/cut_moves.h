// Cuts of weights to choose from: those that are estimated fastest at some price of a byte, and neighbours of
// given cuts.
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

  // Returns the cuts that are estimated fastest at a price of a byte, from 0 to 1 times the highest. At 0
  // they are estimated no slower than Annotated().
  VariableCuts At(double price) const;
  // Returns the cuts that annotations in code ask for and AutoCuts::kAll ignores, with other weights whole;
  // nothing if there are none.
  std::optional<VariableCuts> Annotated() const;
  const WeightSearch& search() const { return search_; }

 private:
  const ModelImpl& model_;
  const WeightSearch search_;
};

// Returns the neighbours of these cuts. In each, one kind of weights is cut in another way along one mesh
// axis, or along all axes of a group. Cuts that annotations in code fix stay, as do ZeRO's axes.
std::vector<VariableCuts> CutsBeside(const ModelImpl& model, const CompileOptions& options,
                                     const VariableCuts& cuts);

}  // namespace oneflow_like
