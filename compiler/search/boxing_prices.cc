#include "compiler/search/boxing_prices.h"

#include "compiler/graph/training.h"

namespace oneflow_like {

BoxingPrices::BoxingPrices(const Graph& graph, const CompileOptions& options)
    : topology_(options.machine.topology),
      reduce_dtype_(options.decided.reduce_dtype.value_or(DType::kFloat32)),
      reduce_axes_(options.decided.mesh.FindAxes(options.decided.reduce_axis)),
      narrow_(graph.num_values(), false) {
  for (int n = 0; n < graph.num_nodes(); ++n)
    if (graph.alive(n) && IsCastForSum(graph.node(n))) narrow_[graph.node(n).in[0]] = true;
}

double BoxingPrices::Seconds(const Graph& graph, int v, const Layout& from, const Layout& to) const {
  const Value& value = graph.value(v);
  const auto seconds = [&](DType dtype, const Layout& a, const Layout& b) {
    return CostOfBoxing(graph.mesh(), graph.times(), value.shape, SizeOf(dtype), a, b, topology_).seconds;
  };
  if (!narrow_[v]) return seconds(value.dtype, from, to);
  const std::vector<int> sizes = graph.Sizes();
  Layout summed = from;  // along the other axes
  bool any = false;
  for (size_t e = 1; e < from.sbp.size(); ++e) {
    const int axis = static_cast<int>(e) - 1;
    if (!reduce_axes_.empty() && !HasAxis(reduce_axes_, axis))
      summed.sbp[e] = to.sbp[e];
    else if (sizes[e] > 1 && from.slice.fixed[axis] == Slice::kFree)
      any = any || (from.sbp[e].is_partial() && !to.sbp[e].is_partial());
  }
  if (!any) return seconds(value.dtype, from, to);
  return (summed == from ? 0 : seconds(value.dtype, from, summed)) + seconds(reduce_dtype_, summed, to);
}

}  // namespace oneflow_like
