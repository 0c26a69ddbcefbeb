// Dynamic loss scaling, for gradients in fp16, whose smallest numbers are large.
// Needs: a built forward graph. Leaves: two variables on the loss's slice, the scale that autograd multiplies
// the loss's gradient by, and the number of finite steps since it last changed. AddUpdates divides by it
// again, and skips the step and lowers the scale when a gradient is not finite (operators unscale and
// update_loss_scale).
#include "compiler/passes.h"

namespace oneflow_like {

namespace {

int AddScalar(Graph* graph, int loss, const std::string& name, double value) {
  const Node from = graph->producer(loss);
  Node node;
  node.op = "variable";
  node.name = name;
  node.line = from.line;
  node.slice = from.slice;
  node.placed = from.placed;
  node.attrs.Set("init", std::string("full"));
  node.attrs.Set("value", value);
  int id = graph->AddRaw(std::move(node), {{name, DType::kFloat32, Dims{}}});
  return graph->node(id).out[0];
}

}  // namespace

LossScale AddLossScale(Graph* graph, int loss) {
  constexpr double kFirst = 65536;  // halves quickly where it is too much
  int scale = AddScalar(graph, loss, "loss_scale", kFirst);
  return {scale, AddScalar(graph, loss, "loss_scale_finite_steps", 0)};
}

}  // namespace oneflow_like
