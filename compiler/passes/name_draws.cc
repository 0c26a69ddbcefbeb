// What random operators draw.
// Needs: a built forward graph of the nodes that will run, before autograd, which draws again what forward
// drew; what gradients() added before says by attribute "draws_of" which node drew. Leaves: attribute "key"
// on every random operator that has none: a hash of its scope, its name in the catalog and its ordinal among
// those of that name in that scope. So neither what other sessions run nor other operators in between change
// a draw, and clones keep it.
#include <map>

#include "compiler/passes/passes.h"
#include "ops/language/functional.h"

namespace oneflow_like {

void NameDraws(Graph* graph, const CompileOptions&) {
  std::map<std::string, int> ordinals;
  std::map<std::string, int64_t> keys;            // by name of the node that draws
  for (int n = 0; n < graph->num_nodes(); ++n) {  // in the order they were made
    if (!graph->alive(n)) continue;
    Node& node = graph->node(n);
    const OpDef* def = graph->catalog().Find(node.op);
    if (def == nullptr || !def->random || node.attrs.Has("key")) continue;
    const std::string of = node.attrs.Has("draws_of") ? node.attrs.Str("draws_of") : node.name;
    auto [key, first] = keys.try_emplace(of, 0);
    if (first) {
      const size_t slash = of.rfind('/');
      const std::string kind = (slash == std::string::npos ? "" : of.substr(0, slash + 1)) + node.op;
      const int ordinal = ordinals[kind]++;
      key->second = DrawKey(ordinal == 0 ? kind : Cat(kind, ".", ordinal));
    }
    node.attrs.Set("key", key->second);
  }
}

}  // namespace oneflow_like
