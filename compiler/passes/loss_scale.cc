// Dynamic loss scaling, for gradients in fp16, whose smallest numbers are large.
// Needs: a train node of the loss; does nothing but in fp16. Leaves: two variables on the loss's slice, which
// the train node reads: the scale that autograd multiplies the loss's gradient by, and the number of finite
// steps since it last changed. add_updates divides by it again, and skips the step and lowers the scale when
// a gradient is not finite (operators unscale and update_loss_scale).
#include "compiler/graph/training.h"
#include "compiler/passes/passes.h"

namespace oneflow_like {

void AddLossScale(Graph* graph, const CompileOptions& options) {
  constexpr double kFirst = 65536;  // halves quickly where it is too much
  int train = TrainNode(*graph);
  if (train < 0 || options.asked.dtype != DType::kFloat16) return;
  const Node loss = graph->producer(graph->node(train).in[0]);
  Tensor scale = AddState(graph, options.asked.name + ":loss_scale", Dims{}, kFirst, loss);
  Tensor steps = AddState(graph, options.asked.name + ":loss_scale_finite_steps", Dims{}, 0, loss);
  Node& node = graph->node(train);
  node.in.push_back(scale.id());
  node.in.push_back(steps.id());
  node.attrs.Set("scaled", int64_t{1});
}

}  // namespace oneflow_like
