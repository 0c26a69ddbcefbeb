// Writes after reads.
// Needs: lowered boxing, fused operators: the readers named must be nodes that stay. Leaves: an update comes
// after every other reader of the variables it replaces (Node::after). Between steps the loop-carried edges
// of the plan do the same.
#include <algorithm>

#include "compiler/passes.h"

namespace oneflow_like {

void OrderWrites(Graph* graph) {
  std::vector<std::vector<int>> readers = graph->Readers();
  auto is_view = [&](int n) {
    const OpDef* def = graph->catalog().Find(graph->node(n).op);
    return def && def->view;
  };
  for (int n : graph->Order()) {
    const OpDef* def = graph->catalog().Find(graph->node(n).op);
    if (!def) continue;
    for (auto [out, in] : def->inplace) {
      std::vector<int> look = {graph->node(n).in[in]};
      while (!look.empty()) {  // through views: they have the variable's bytes
        int v = look.back();
        look.pop_back();
        for (int r : readers[v]) {
          std::vector<int>& after = graph->node(n).after;
          if (r != n && std::find(after.begin(), after.end(), r) == after.end()) after.push_back(r);
          if (is_view(r)) look.push_back(graph->node(r).out[0]);
        }
      }
    }
  }
}

}  // namespace oneflow_like
