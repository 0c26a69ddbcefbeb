// The search for cuts of variables that nobody annotated: which of them are cut along which axes of the mesh,
// such that the plan that choose_signatures then makes is fast, and small enough.
#pragma once

#include <utility>
#include <vector>

#include "compiler/search/signature_problem.h"

namespace oneflow_like {

class WeightSearch {
 public:
  // `graph` is one after place_stages; annotations stay. Throws Error as ChooseSignatures does.
  WeightSearch(Graph graph, const CompileOptions& options);

  // The cuts of weights of least estimated seconds if each byte that a device keeps (SignatureProblem::Adds)
  // costs `price` seconds; an optimizer's state lies as its weight does. Weights of repeated blocks, whose
  // names differ in one number alone, are cut alike.
  VariableCuts Cuts(double price = 0) const;
  // Estimated seconds of a step with these cuts, as choose_signatures makes the plan: work of the busiest
  // rank and boxing, one after another.
  double Seconds(const VariableCuts& cuts) const;
  // Bytes of all variables on a device.
  double BytesOf(const VariableCuts& cuts) const;
  // A price at which bytes count for more than all else.
  double HighestPrice() const;

 private:
  CompileOptions options_;
  Graph graph_;
  SignatureProblem problem_;
  mutable std::vector<std::pair<VariableCuts, double>> seconds_;  // that are known
};

}  // namespace oneflow_like
