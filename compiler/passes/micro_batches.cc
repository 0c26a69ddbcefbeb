// Values that differ between micro-batches although they are not split over time: variables that are written
// in each micro-batch, what is computed from them, and sums over one micro-batch.
#include <algorithm>

#include "compiler/passes/passes.h"

namespace oneflow_like {

std::vector<Signature> SignaturesAlong(const Graph& graph, const Node& node, const BoundRule& rule, int entry,
                                       const std::vector<std::set<int64_t>>& grains) {
  const OpDef& def = graph.catalog().Get(node.op);
  // Over time, which all other cuts lie within, only its own cut points count.
  const int64_t parts = entry == 0 ? graph.times() : graph.Parts();
  std::vector<Signature> all = Signatures(rule, grains, parts);
  if (entry > 0 || !def.turns_of) return all;
  const std::set<std::string> turns = def.turns_of(graph.CallOf(node));
  if (turns.empty()) return all;
  std::erase_if(all, [&](const Signature& s) { return turns.count(s.label) > 0; });
  // As if the outputs lost these labels to a sum; of which each micro-batch has its own term.
  BoundRule lost = rule;
  for (const std::string& label : turns) {
    lost.notes.whole.erase(label);
    lost.notes.folds[label] = Reduce::kSum;
  }
  for (Signature& s : Signatures(lost, grains, parts)) {
    if (turns.count(s.label) == 0) continue;
    std::replace_if(
        s.out.begin(), s.out.end(), [](const Sbp& sbp) { return sbp.is_partial(); }, B());
    all.push_back(std::move(s));
  }
  return all;
}

void MarkWrittenVariables(Graph* graph) {
  for (int n : graph->Order()) {
    if (!graph->WritesEach(n)) continue;
    for (auto [out, in] : graph->catalog().Get(graph->node(n).op).inplace)
      graph->node(graph->value(graph->node(n).in[in]).producer).rate = Rate::kRemade;
  }
}

namespace {

// Where what makes v differ between micro-batches begins.
int SourceOfTurns(const Graph& graph, int v) {
  for (bool found = true; found;) {
    found = false;
    for (int in : graph.producer(v).in)
      if (graph.Remade(in)) {
        v = in;
        found = true;
        break;
      }
  }
  return v;
}

}  // namespace

void RefuseWritesOfParts(const Graph& graph) {
  for (int n : graph.Order()) {
    const OpDef* def = graph.catalog().Find(graph.node(n).op);
    if (!def || def->inplace.empty() || graph.WritesEach(n)) continue;
    for (int v : graph.node(n).in)
      if (graph.Remade(v) && graph.node(n).name.starts_with("update/"))
        Fail("the gradient of weight '", graph.value(graph.node(n).in[def->inplace[0].second]).name,
             "' depends on ", graph.DescribeForUser(graph.value(SourceOfTurns(graph, v)).producer),
             ", which differs between the ", graph.times(),
             " micro-batches; combine that with what is of the batch first ((x * v) * w), or give each part "
             "of per_micro_batch a row of the weight");
      else if (graph.Remade(v))
        Fail(graph.Describe(n), ": '", graph.value(v).name, "' differs between the ", graph.times(),
             " micro-batches, but a variable is written once a step; assign with each_micro_batch, or make "
             "the value of the whole batch");
  }
}

}  // namespace oneflow_like
