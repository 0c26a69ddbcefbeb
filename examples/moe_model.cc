#include "examples/moe_model.h"

#include <cmath>

namespace examples {
namespace {

nn::ExpertsOptions OptionsOf(const MoeConfig& c, const Mesh& mesh, const Initializer& small) {
  nn::ExpertsOptions o;
  o.experts = c.experts;
  o.inner = c.inner;
  o.top_k = c.top_k;
  o.capacity = c.capacity;
  o.room = c.room;
  o.overflow = c.overflow;
  o.retry_room = c.retry_room;
  o.order = c.room > 0 ? nn::ExpertOrder::kWeight : nn::ExpertOrder::kChoice;
  o.shared = c.shared;
  o.aux_loss = c.balance;
  o.ep = !mesh.FindAxes("ep").empty() ? "ep" : "dp";
  o.init = Normal(0.02);
  o.out_init = small;
  return o;
}

}  // namespace

void CheckMoe(const MoeConfig& c, const Mesh& mesh) {
  auto positive = [](const char* name, int64_t value) {
    if (value < 1) Fail("moe: ", name, " is ", value, " but must be at least 1");
  };
  positive("layers", c.layers);
  positive("width", c.width);
  positive("heads", c.heads);
  positive("experts", c.experts);
  positive("top_k", c.top_k);
  positive("inner", c.inner);
  if (c.shared < 0) Fail("moe: shared is ", c.shared, " but must not be negative");
  if (c.width % c.heads != 0)
    Fail("moe: heads is ", c.heads, " and the width is ", c.width, ", but heads must divide it");
  if (c.top_k > c.experts) Fail("moe: top_k is ", c.top_k, " but there are only ", c.experts, " experts");
  if (!(c.capacity > 0 && c.capacity <= 1e6))
    Fail("moe: capacity is ", c.capacity, ", must be more than 0, at most 1e6");
  for (const char* axis : {"dp", "tp"}) mesh.AxesOrFail(axis, "moe");
  const int stages = mesh.axis_size(mesh.AxisOrFail("pp", "moe"));
  if (c.layers < stages)
    Fail("moe: mesh axis pp has ", stages, " stages but there are only ", c.layers,
         " layers; every stage needs at least one");
}

Tensor MoeLosses(Scope scope, Tensor tokens, Tensor targets, const MoeConfig& c, Tensor* balance) {
  CheckMoe(c, scope.mesh());
  const int64_t positions = tokens.shape()[1];
  const Initializer init = Normal(0.02),
                    small = Normal(0.02 / std::sqrt(2.0 * static_cast<double>(c.layers)));
  const Dims shape = {c.vocabulary, c.width};
  const nn::AttentionOptions attention = {.heads = c.heads, .init = init, .out_init = small};
  const Scope first = scope.Stage("pp", 0);
  Tensor table = first.Weight("embedding", shape, init, {{"tp", S(0)}});
  Tensor place = first.Weight("positions", {c.context, c.width}, init);
  const nn::ExpertsOptions experts = OptionsOf(c, scope.mesh(), small);
  std::vector<Tensor> spread;
  Tensor x = embedding(table, tokens) + slice(place, 0, 0, positions);
  x = nn::layers(scope, x, c.layers, [&](Scope s, Tensor y, int64_t) {
    y = y + nn::Attention(s / "attention", nn::LayerNorm(s / "norm1", y), attention);
    const nn::ExpertsResult given = nn::Experts(s / "experts", nn::LayerNorm(s / "norm2", y), experts);
    if (given.loss.defined()) spread.push_back(given.loss);
    return y + given.y;
  });
  for (Tensor& one : spread) one = to_stage_of(one, x);
  if (balance && !spread.empty()) *balance = add_n(spread);
  x = nn::LayerNorm(scope / "norm", x);
  return nn::HeadLoss(x, scope.Weight("output", shape, init, {{"tp", S(0)}}), targets);
}

Tensor MoeLoss(Scope scope, Tensor tokens, Tensor targets, const MoeConfig& c) {
  Tensor balance, loss = mean(MoeLosses(scope, tokens, targets, c, &balance));
  return balance.defined() ? loss + balance : loss;
}

}  // namespace examples
