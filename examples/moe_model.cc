#include "examples/moe_model.h"

#include <algorithm>
#include <cmath>

namespace oneflow_like {
namespace {

int64_t RoomOf(const MoeConfig& c, int64_t tokens) {
  const double share = c.capacity * static_cast<double>(c.top_k * tokens) / static_cast<double>(c.experts);
  return std::min(tokens, std::max<int64_t>(1, static_cast<int64_t>(std::ceil(share))));
}

// Of tokens x[b t w]: which place of which expert each goes to (`sent`), and with what weight the expert's
// result counts (`weight`), both [b t e room]; and the loss that spreads tokens.
struct Routes {
  Tensor sent, weight, balance;
};
Routes Route(Scope s, Tensor x, const MoeConfig& c) {
  const Dims shape = x.shape();
  const int64_t b = shape[0], t = shape[1], k = c.top_k, e = c.experts, room = RoomOf(c, t);
  Tensor gate = softmax(matmul(x, s.Weight("gate", {shape[2], e}, Normal(0.02))));
  const Sorted best = top_k(gate, k);
  // First choices of all tokens, then second ones: their order is the queue of each expert.
  Tensor chosen = one_hot(transpose(best.indices, {0, 2, 1}), e);
  Tensor queue = reshape(chosen, {b, k * t, e});
  Tensor place = sum(cumsum(queue, 1, {.exclusive = true}) * queue, {2});
  const Tensor fitting = where(less(place, static_cast<double>(room)), place, -1);
  Tensor held = one_hot(cast(fitting, DType::kInt32), room);  // of -1: zeros
  Tensor sent = reshape(einsum("bne,bnc->bnec", queue, held), {b, k, t, e, room});
  Tensor share = transpose(best.values / sum(best.values, {2}, true), {0, 2, 1});
  Tensor used = mean(chosen, {1, 2}), likely = mean(gate, {1});  // [b e]
  return {sum(sent, {1}), einsum("bktec,bkt->btec", sent, share),
          scale(mean(sum(used * likely, {1})), static_cast<double>(e))};
}

Tensor Experts(Scope s, Tensor x, const MoeConfig& c, Tensor* balance) {
  const int64_t width = x.shape().back();
  const Routes routes = Route(s, x, c);
  *balance = routes.balance;
  Annotation up_cut = {{"tp", S(2)}}, down_cut = {{"tp", S(1)}};
  if (s.mesh().FindAxis("ep") >= 0)
    for (Annotation* cut : {&up_cut, &down_cut}) cut->push_back({"ep", S(0)});
  const Initializer init = Normal(0.02),
                    small = Normal(0.02 / std::sqrt(2.0 * static_cast<double>(c.layers)));
  Tensor up = s.Weight("up", {c.experts, width, c.inner}, init, up_cut),
         down = s.Weight("down", {c.experts, c.inner, width}, small, down_cut);
  Tensor taken = einsum("btec,btw->ebcw", routes.sent, x);
  Tensor given = einsum("ebcf,efw->ebcw", gelu(einsum("ebcw,ewf->ebcf", taken, up)), down);
  return einsum("btec,ebcw->btw", routes.weight, given);
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
  if (c.width % c.heads != 0)
    Fail("moe: heads is ", c.heads, " and the width is ", c.width, ", but heads must divide it");
  if (c.top_k > c.experts) Fail("moe: top_k is ", c.top_k, " but there are only ", c.experts, " experts");
  if (!(c.capacity > 0 && c.capacity <= 1e6))
    Fail("moe: capacity is ", c.capacity, ", must be more than 0, at most 1e6");
  for (const char* axis : {"dp", "tp"}) mesh.AxisOrFail(axis, "moe");
  const int stages = mesh.axis_size(mesh.AxisOrFail("pp", "moe"));
  if (c.layers < stages)
    Fail("moe: mesh axis pp has ", stages, " stages but there are only ", c.layers,
         " layers; every stage needs at least one");
}

Tensor MoeLogits(Scope scope, Tensor tokens, const MoeConfig& c, Tensor* balance) {
  CheckMoe(c, scope.mesh());
  const int64_t positions = tokens.shape()[1];
  const Initializer init = Normal(0.02),
                    small = Normal(0.02 / std::sqrt(2.0 * static_cast<double>(c.layers)));
  const Dims shape = {c.vocabulary, c.width};
  const nn::AttentionOptions attention = {.heads = c.heads, .init = init, .out_init = small};
  const Scope first = scope.Stage("pp", 0);
  Tensor table = first.Weight("embedding", shape, init, {{"tp", S(0)}});
  Tensor place = first.Weight("positions", {c.context, c.width}, init);
  std::vector<Tensor> spread;
  Tensor x = embedding(table, tokens) + slice(place, 0, 0, positions);
  x = nn::layers(scope, x, c.layers, [&](Scope s, Tensor y, int64_t) {
    y = y + nn::Attention(s / "attention", nn::LayerNorm(s / "norm1", y), attention);
    spread.emplace_back();
    return y + Experts(s / "experts", nn::LayerNorm(s / "norm2", y), c, &spread.back());
  });
  for (Tensor& one : spread) one = to_stage_of(one, x);
  if (balance) *balance = add_n(spread);
  return einsum("bsw,vw->bsv", nn::LayerNorm(scope / "norm", x),
                scope.Weight("output", shape, init, {{"tp", S(0)}}));
}

Tensor MoeLoss(Scope scope, Tensor tokens, Tensor targets, const MoeConfig& c) {
  Tensor balance, loss = mean(cross_entropy(MoeLogits(scope, tokens, c, &balance), targets));
  return c.balance > 0 ? loss + scale(balance, c.balance) : loss;
}

}  // namespace oneflow_like
