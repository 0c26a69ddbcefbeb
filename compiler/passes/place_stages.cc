// Pipeline stages.
// Needs: a built graph; weights carry the slices the user gave. Leaves: every node on a slice. Inputs and
// constants that stand nowhere go where they are read, an input once for each slice that reads it. What is
// placed and fixed along no axis is on all stages (Scope::Everywhere). Refuses a stage without work.
#include <map>
#include <set>

#include "compiler/graph/training.h"
#include "compiler/passes/passes.h"

namespace oneflow_like {

namespace {

std::vector<bool> StageAxes(const Graph& graph) {
  std::vector<bool> stage(graph.mesh().rank(), false);
  for (int n = 0; n < graph.num_nodes(); ++n)
    if (graph.alive(n))
      for (int a = 0; a < graph.mesh().rank(); ++a)
        if (graph.node(n).slice.fixed[a] != Slice::kFree) stage[a] = true;
  return stage;
}

// Gives each reader on another slice an input node of its own.
void CloneInput(Graph* graph, int id, const std::vector<int>& readers) {
  std::map<Slice, int> clones;
  int value = graph->node(id).out[0];
  for (int r : readers) {
    const Slice where = graph->node(r).slice;
    auto [it, fresh] = clones.try_emplace(where, value);
    if (fresh && clones.size() > 1) {
      Node copy = graph->node(id);
      copy.out.clear();
      copy.slice = where;
      const Value v = graph->value(value);
      int clone = graph->AddRaw(copy, {{Cat(v.name, "@", where.str(graph->mesh())), v.dtype, v.shape}});
      it->second = graph->node(clone).out[0];
      graph->node(clone).placed = true;
    } else if (fresh) {
      graph->node(id).slice = where;
      graph->node(id).placed = true;
    }
    for (int& v : graph->node(r).in)
      if (v == value) v = it->second;
  }
}

}  // namespace

void PlaceStages(Graph* graph, const CompileOptions&) {
  std::vector<bool> stage = StageAxes(*graph);
  bool any = false;
  for (bool s : stage) any = any || s;
  std::vector<int> order = graph->Order();
  if (any) {
    // What stands nowhere follows the first of its readers.
    std::vector<std::vector<int>> readers = graph->Readers();
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      Node& n = graph->node(*it);
      if (n.placed || n.kind == NodeKind::kInput) continue;
      for (int v : n.out)
        for (int r : readers[v])
          if (graph->node(r).placed && (!n.placed || graph->node(r).slice < n.slice)) {
            n.slice = graph->node(r).slice;
            n.placed = true;
          }
      if (!n.placed)
        for (int a = 0; a < graph->mesh().rank(); ++a)
          if (stage[a]) n.slice.fixed[a] = 0;
      n.placed = true;
    }
    readers = graph->Readers();
    for (int n : order)
      if (graph->node(n).kind == NodeKind::kInput) CloneInput(graph, n, readers[graph->node(n).out[0]]);
  }
  bool training = false;
  for (int n : order) training = training || graph->node(n).phase == Phase::kUpdate;
  for (int a = 0; a < graph->mesh().rank(); ++a) {
    if (!stage[a]) continue;
    std::set<int> used;
    for (int n : order) {
      const Node& node = graph->node(n);
      if (IsEnd(node) || node.slice == WholeMesh(graph->mesh()))
        continue;  // on all of them: Scope::Everywhere
      if (node.slice.fixed[a] == Slice::kFree)
        Fail(graph->DescribeForUser(n), ": it stands on no stage of mesh axis ", graph->mesh().axis_name(a),
             ", but other nodes do; make its weights in a Scope::Stage");
      used.insert(node.slice.fixed[a]);
    }
    // An evaluation may well look at a part of the model.
    for (int c = 0; training && c < graph->mesh().axis_size(a); ++c)
      if (!used.count(c))
        Fail("stage ", graph->mesh().axis_name(a), "=", c, " has no work: mesh ", graph->mesh().str(),
             " has ", graph->mesh().axis_size(a), " stages on axis ", graph->mesh().axis_name(a),
             " but the model uses ", used.size(), "; assign layers to it, or use fewer stages");
  }
}

namespace {

void ShardAlongZero(Graph* graph, const CompileOptions& options) {
  const MeshAxes zero_axes = ZeroAxes(options.decided);
  for (int n : graph->Order()) {
    Node& node = graph->node(n);
    if (node.kind != NodeKind::kVariable && !IsCastForSum(node)) continue;
    MeshAxes open;
    for (int axis : zero_axes)
      if (!node.fixed.count(1 + axis)) open.push_back(axis);
    if (open.empty()) continue;
    const Dims& shape = graph->value(node.out[0]).shape;
    std::set<int> taken;
    for (const auto& [entry, sbp] : node.fixed)
      if (sbp.is_split()) taken.insert(sbp.axis);
    int best = -1;
    for (int a = 0; a < shape.rank(); ++a)
      if (!taken.count(a) && (best < 0 || shape[a] > shape[best])) best = a;
    if (best < 0) continue;
    for (int axis : open) {
      node.fixed[1 + axis] = S(best);
      node.stored.insert(1 + axis);
    }
  }
}

}  // namespace

// Needs: variables with their annotations. Leaves: variables that nothing cuts along an axis of ZeRO cut
// along their longest free axis there, by all of these in turn, state variables like their weights. That is
// how they are stored: who computes with them may have them whole. A gradient that is summed in another type
// (IsCastForSum) lies as its weight does.
void ShardVariables(Graph* graph, const CompileOptions& options) {
  ShardAlongZero(graph, options);
  for (int n : graph->Order())
    if (IsCastForSum(graph->node(n)))
      for (int a = 0; a < graph->mesh().rank(); ++a) graph->node(n).fixed.try_emplace(1 + a, B());
}

}  // namespace oneflow_like
