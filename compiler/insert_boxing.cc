// Boxing on every edge whose two ends disagree.
// Needs: signatures. Leaves: every node reads exactly what it wants; one boxing for all readers of a value
// that want the same; each knows why it is there. An update whose result differs from its variable cannot
// arise: its signature is the variable's.
#include <map>

#include "compiler/passes.h"
#include "compiler/text.h"

namespace oneflow_like {

namespace {

std::string Megabytes(double bytes) {
  char text[32];
  snprintf(text, sizeof(text), "%.3g MB", bytes / 1e6);
  return text;
}

}  // namespace

void InsertBoxing(Graph* graph) {
  std::map<std::tuple<int, Slice, std::vector<std::string>>, int> boxed;
  for (int n : graph->Order()) {
    for (size_t i = 0; i < graph->node(n).in.size(); ++i) {
      const Node& reader = graph->node(n);
      int v = reader.in[i];
      const Value value = graph->value(v);
      const Node from = graph->producer(v);
      NdSbp want = reader.want[i];
      if (want == value.sbp && from.slice == reader.slice) continue;
      std::vector<std::string> key;
      for (const Sbp& s : want) key.push_back(s.str());
      auto [it, fresh] = boxed.try_emplace({v, reader.slice, key}, -1);
      if (fresh) {
        Node node;
        node.op = "boxing";
        node.name = graph->UniqueName(value.name + ".b");
        node.in = {v};
        node.want = {value.sbp};
        node.slice = reader.slice;
        node.placed = true;
        // A gradient that is combined for the update belongs to the update; else boxing goes with its reader.
        node.phase = reader.phase;
        node.line = reader.line;
        node.why = Cat("boxing ", value.name, ": ", SbpText(*graph, from.slice, value.sbp), " -> ",
                       SbpText(*graph, reader.slice, want), ", ",
                       Megabytes(value.shape.elements() * double(SizeOf(value.dtype))), ", wanted by ",
                       graph->Describe(n));
        std::string name = node.name;
        int id = graph->AddRaw(std::move(node), {{name, value.dtype, value.shape}});
        it->second = graph->node(id).out[0];
        graph->value(it->second).sbp = want;
        graph->SettleRate(id);
      }
      graph->node(n).in[i] = it->second;
    }
  }
}

}  // namespace oneflow_like
