// Estimated time of boxing as insert_boxing will make it, for the searches for signatures.
#pragma once

#include <vector>

#include "compiler/passes/passes.h"

namespace oneflow_like {

class BoxingPrices {
 public:
  // `options` must outlive this object. Nodes that are added to the graph later are not known.
  BoxingPrices(const Graph& graph, const CompileOptions& options);

  // Whether terms of the value are sent in Decisions::reduce_dtype: of a gradient that is summed in it.
  bool Narrow(int value) const { return narrow_[value]; }
  // Seconds of boxing the value between these layouts; the time entries of both are as they are after sums
  // over micro-batches. Terms along Decisions::reduce_axis are sent in reduce_dtype, after those along other
  // axes.
  double Seconds(const Graph& graph, int value, const Layout& from, const Layout& to) const;

 private:
  const Topology& topology_;
  const DType reduce_dtype_;
  const MeshAxes reduce_axes_;
  std::vector<bool> narrow_;
};

}  // namespace oneflow_like
