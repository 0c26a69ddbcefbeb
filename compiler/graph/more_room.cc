#include "compiler/graph/more_room.h"

#include <algorithm>

#include "compiler/graph/training.h"

namespace oneflow_like {

namespace {

// Infers the extents of its results again. Gives whether any changed.
bool InferAgain(int n, Graph* graph) {
  const Node& node = graph->node(n);
  const Inferred inferred = Infer(graph->catalog().Get(node.op), graph->CallOf(node));
  bool changed = false;
  for (size_t o = 0; o < node.out.size(); ++o) {
    Dims& shape = graph->value(node.out[o]).shape;
    changed = changed || shape != inferred.rule.out[o].shape;
    shape = inferred.rule.out[o].shape;
  }
  return changed;
}

}  // namespace

void WithMoreRoom(Graph* graph) {
  std::vector<bool> changed(graph->num_values(), false);
  for (int n : graph->Order()) {
    Node& node = graph->node(n);
    const bool more = node.attrs.Has(kRetryRoom);
    const auto first = std::find_if(node.in.begin(), node.in.end(), [&](int v) { return changed[v]; });
    if ((!more && first == node.in.end()) || !graph->catalog().Find(node.op)) continue;
    if (more) node.attrs.Set("room", node.attrs.Int(kRetryRoom));
    if (more && node.attrs.Has("error")) node.attrs.Set("error", int64_t{1});
    const auto elements = [&] { return static_cast<double>(graph->value(node.out[0]).shape.elements()); };
    const double before = elements();
    bool other = false;
    try {
      other = InferAgain(n, graph);
    } catch (const Error& error) {
      Fail(error.what(), "; where experts let steps run again (nn::ExpertOverflow::kRetry) it must take ",
           "any number of their rows, as an activation of elementwise operators does");
    }
    if (!other) continue;
    for (int v : node.out) changed[v] = true;
    // As many rows are expected, of more.
    if (node.attrs.Has("share") && elements() > 0)
      node.attrs.Set("share", std::clamp(node.attrs.Float("share") * before / elements(), 1e-6, 1.0));
  }
}

}  // namespace oneflow_like
