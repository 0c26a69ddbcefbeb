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

class Inserter {
 public:
  Inserter(Graph* graph, const CompileOptions& options) : graph_(*graph), options_(options) {}

  void Run() {
    for (int n : graph_.Order())
      for (size_t i = 0; i < graph_.node(n).in.size(); ++i) {
        int v = graph_.node(n).in[i];
        if (const NdSbp part = ScatteredFirst(v, n, i); !part.empty())
          v = Boxed(v, n, graph_.producer(v).slice, part, graph_.producer(v).phase);
        // A gradient that is combined for the update belongs to the update; else boxing goes with its reader.
        const Node& reader = graph_.node(n);
        v = Boxed(v, n, reader.slice, reader.want[i], reader.phase);
        graph_.node(n).in[i] = v;
      }
  }

 private:
  // With ZeRO's second stage the signature in which each micro-batch's part of a gradient is added up, cut
  // before it is; empty for other values.
  NdSbp ScatteredFirst(int v, int n, size_t i) const {
    const Value& value = graph_.value(v);
    const NdSbp& want = graph_.node(n).want[i];
    const int entry = 1 + options_.zero_axis;
    if (options_.zero_axis < 0 || options_.zero_stage < 2 || graph_.times() == 1) return {};
    if (!value.sbp[0].is_partial() || !want[0].is_broadcast() || !value.sbp[entry].is_partial() ||
        !want[entry].is_split())
      return {};
    NdSbp part = value.sbp;
    part[entry] = want[entry];
    return part;
  }

  int Boxed(int v, int n, const Slice& slice, const NdSbp& want, Phase phase) {
    const Value value = graph_.value(v);
    const Slice from = graph_.producer(v).slice;
    if (want == value.sbp && from == slice) return v;
    std::vector<std::string> key;
    for (const Sbp& s : want) key.push_back(s.str());
    auto [it, fresh] = boxed_.try_emplace({v, slice, key}, -1);
    if (!fresh) return it->second;
    Node node;
    node.op = "boxing";
    node.name = graph_.UniqueName(value.name + ".b");
    node.in = {v};
    node.want = {value.sbp};
    node.slice = slice;
    node.placed = true;
    node.phase = phase;
    node.line = graph_.node(n).line;
    node.why = Cat("boxing ", value.name, ": ", SbpText(graph_, from, value.sbp), " -> ",
                   SbpText(graph_, slice, want), ", ",
                   Megabytes(value.shape.elements() * double(SizeOf(value.dtype))), ", wanted by ",
                   graph_.Describe(n));
    std::string name = node.name;
    const int id = graph_.AddRaw(std::move(node), {{name, value.dtype, value.shape}});
    it->second = graph_.node(id).out[0];
    graph_.value(it->second).sbp = want;
    graph_.SettleRate(id);
    return it->second;
  }

  Graph& graph_;
  const CompileOptions& options_;
  std::map<std::tuple<int, Slice, std::vector<std::string>>, int> boxed_;
};

}  // namespace

void InsertBoxing(Graph* graph, const CompileOptions& options) { Inserter(graph, options).Run(); }

}  // namespace oneflow_like
