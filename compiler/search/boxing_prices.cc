#include "compiler/search/boxing_prices.h"

#include "compiler/graph/training.h"

namespace oneflow_like {

BoxingPrices::BoxingPrices(const Graph& graph, const CompileOptions& options)
    : options_(options), narrow_(graph.num_values(), false) {
  for (int n = 0; n < graph.num_nodes(); ++n)
    if (graph.alive(n) && IsCastForSum(graph.node(n))) narrow_[graph.node(n).in[0]] = true;
}

double BoxingPrices::Seconds(const Graph& graph, int v, const Layout& from, const Layout& to) const {
  const Value& value = graph.value(v);
  const auto seconds = [&](DType dtype, const Layout& a, const Layout& b) {
    return CostOfBoxing(graph.mesh(), graph.times(), value.shape, SizeOf(dtype), a, b,
                        options_.machine.topology)
        .seconds;
  };
  if (!narrow_[v]) return seconds(value.dtype, from, to);
  const Training& training = *options_.training;
  const std::vector<int> sizes = graph.Sizes();
  Layout summed = from;  // along the other axes
  bool any = false;
  for (size_t e = 1; e < from.sbp.size(); ++e) {
    const int axis = static_cast<int>(e) - 1;
    if (!training.reduce_axes.empty() && !HasAxis(training.reduce_axes, axis))
      summed.sbp[e] = to.sbp[e];
    else if (sizes[e] > 1 && from.slice.fixed[axis] == Slice::kFree)
      any = any || (from.sbp[e].is_partial() && !to.sbp[e].is_partial());
  }
  if (!any) return seconds(value.dtype, from, to);
  return (summed == from ? 0 : seconds(value.dtype, from, summed)) +
         seconds(training.reduce_dtype, summed, to);
}

}  // namespace oneflow_like
