// Boxing on every edge whose two ends disagree.
// Needs: signatures. Leaves: every node reads exactly what it wants; one boxing for all readers of a value
// that want the same; each knows why it is there. An update whose result differs from its variable cannot
// arise: its signature is the variable's. A fetch of what differs between micro-batches reads a copy of the
// last one's.
#include <map>

#include "compiler/graph/text.h"
#include "compiler/passes/passes.h"

namespace oneflow_like {

namespace {

std::string Megabytes(double bytes) {
  char text[32];
  snprintf(text, sizeof(text), "%.3g MB", bytes / 1e6);
  return text;
}

class Inserter {
 public:
  Inserter(Graph* graph, const CompileOptions& options)
      : graph_(*graph), options_(options), sizes_(graph->Sizes()) {}

  void Run() {
    for (int n : graph_.Order())
      for (size_t i = 0; i < graph_.node(n).in.size(); ++i) {
        int v = graph_.node(n).in[i];
        if (const NdSbp part = ScatteredFirst(v, n, i); !part.empty())
          v = Boxed(v, n, graph_.producer(v).slice, part, graph_.producer(v).phase);
        // A gradient that is combined for the update belongs to the update; else boxing goes with its reader.
        if (graph_.node(n).kind == NodeKind::kFetch && graph_.Remade(v)) v = LastOf(v);
        const Node& reader = graph_.node(n);
        v = Boxed(v, n, reader.slice, reader.want[i], reader.phase);
        graph_.node(n).in[i] = v;
      }
  }

 private:
  // The last micro-batch's of a value that each has its own of.
  int LastOf(int v) {
    auto [it, fresh] = last_.try_emplace(v, -1);
    if (!fresh) return it->second;
    const Value value = graph_.value(v);
    const Node from = graph_.producer(v);
    Node node;
    node.op = "copy";
    node.attrs.Set("last", int64_t{1});
    node.name = graph_.UniqueName(value.name + ".last");
    node.in = {v};
    node.want = {value.sbp};
    node.slice = from.slice;
    node.placed = true;
    node.phase = from.kind == NodeKind::kVariable ? Phase::kForward : from.phase;
    node.line = from.line;
    node.why = Cat(value.name, " of the last micro-batch, for an output");
    const std::string name = node.name;
    const int id = graph_.AddRaw(std::move(node), {{name, value.dtype, value.shape}});
    it->second = graph_.node(id).out[0];
    graph_.value(it->second).sbp = value.sbp;
    graph_.SettleRate(id);
    return it->second;
  }

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

  // The signature that a value gets for a reader that wants `want`. Where grains change no cut point, as
  // between the axis of a view and what it was merged of, it keeps its own.
  NdSbp Target(const Value& value, const NdSbp& want) const {
    const NdSbp have = Plain(value.shape, value.sbp, sizes_), plain = Plain(value.shape, want, sizes_);
    NdSbp target = plain;
    if (have[0] == plain[0]) target[0] = value.sbp[0];
    NdSbp all = target;
    for (size_t e = 1; e < all.size(); ++e)
      if (have[e] == plain[e]) all[e] = value.sbp[e];
    return Plain(value.shape, all, sizes_) == plain ? all : target;
  }

  int Boxed(int v, int n, const Slice& slice, NdSbp want, Phase phase) {
    const Value value = graph_.value(v);
    const Slice from = graph_.producer(v).slice;
    if (want != value.sbp) want = Target(value, want);
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
  const std::vector<int> sizes_;
  std::map<int, int> last_;  // of values
  std::map<std::tuple<int, Slice, std::vector<std::string>>, int> boxed_;
};

}  // namespace

void InsertBoxing(Graph* graph, const CompileOptions& options) { Inserter(graph, options).Run(); }

}  // namespace oneflow_like
