// Boxing to primitives.
// Needs: boxing nodes. Leaves: in their place the cheapest sequence of primitives (sbp/boxing.h): local ones
// are kernels of their rank, the others move data between ranks. Sequences that begin alike share their
// beginning: a gradient is accumulated once, whatever its readers want then. Work on each
// micro-batch up to an accumulation, or to a gathering of their parts, goes to the phase of the value. Counts
// of rows are read by every step that moves data between ranks.
#include <map>
#include <tuple>

#include "compiler/passes/passes.h"

namespace oneflow_like {

namespace {

// How many of the steps make the whole of what comes in micro-batches.
size_t StepsOfMicroBatches(const std::vector<BoxingStep>& steps) {
  size_t count = steps.size();
  while (count > 0 && steps[count - 1].primitive != Primitive::kAccumulate &&
         steps[count - 1].primitive != Primitive::kTimeGather)
    --count;
  return count;
}

}  // namespace

void LowerBoxing(Graph* graph, const CompileOptions& options) {
  std::vector<std::vector<int>> readers = graph->Readers();
  std::map<std::tuple<int, Slice, NdSbp>, int>
      known;  // (value, where and how it is wanted) -> the value there
  for (int id : graph->Order()) {
    if (graph->node(id).kind != NodeKind::kBoxing) continue;
    const Node box = graph->node(id);
    int v = box.in[0];
    const Value result = graph->value(box.out[0]);
    std::vector<BoxingStep> steps;
    try {
      steps = PlanBoxing(graph->mesh(), graph->times(), result.shape, graph->LayoutOf(v),
                         {box.slice, result.sbp}, options.machine.topology);
    } catch (const Error& e) {
      Fail(box.why, ": ", e.what());
    }
    const size_t of_micro_batches = StepsOfMicroBatches(steps);
    for (size_t s = 0; s < steps.size(); ++s) {
      const BoxingStep& step = steps[s];
      auto [it, fresh] = known.try_emplace({v, step.to.slice, step.to.sbp}, -1);
      if (!fresh) {
        v = it->second;
        continue;
      }
      Node node;
      node.op = Name(step.primitive);
      node.name = s + 1 == steps.size() ? result.name : graph->UniqueName(result.name + "_");
      node.in = {v};
      node.want = {graph->value(v).sbp};
      if (box.in.size() > 1 && !IsLocal(step.primitive)) {
        node.in.push_back(box.in[1]);
        node.want.push_back(graph->value(box.in[1]).sbp);
        node.attrs.Set("share", ShareMoved(box));
      }
      node.slice = step.to.slice;
      node.placed = true;
      node.phase = s < of_micro_batches ? graph->producer(v).phase : box.phase;
      node.line = box.line;
      node.why = box.why;
      if (!step.axes.empty()) {
        std::vector<int64_t> axes(step.axes.begin(), step.axes.end());
        node.attrs.Set("axes", axes);
      }
      std::string name = node.name;
      int n = graph->AddRaw(std::move(node), {{name, result.dtype, result.shape}});
      v = graph->node(n).out[0];
      graph->value(v).sbp = step.to.sbp;
      graph->SettleRate(n);
      it->second = v;
    }
    for (int r : readers[box.out[0]])
      for (int& in : graph->node(r).in)
        if (in == box.out[0]) in = v;
    graph->Remove(id);
  }
}

}  // namespace oneflow_like
