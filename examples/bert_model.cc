#include "examples/bert_model.h"

namespace examples {

BertConfig BertOfSize(const std::string& size) {
  if (size == "tiny") return {.layers = 2, .width = 128, .heads = 2};
  if (size == "mini") return {.layers = 4, .width = 256, .heads = 4};
  if (size == "small") return {.layers = 4, .width = 512, .heads = 8};
  if (size == "base") return {.layers = 12, .width = 768, .heads = 12};
  Fail("--size=", size, ": must be tiny, mini, small or base");
}

void CheckBert(const BertConfig& c, const Mesh& mesh) {
  for (const char* axis : {"dp", "tp"}) mesh.AxesOrFail(axis, "bert");
  const int stages = mesh.axis_size(mesh.AxisOrFail("pp", "bert"));
  if (c.layers < stages)
    Fail("bert: mesh axis pp has ", stages, " stages but there are only ", c.layers,
         " layers; every stage needs at least one");
  if (c.heads < 1 || c.width % c.heads != 0)
    Fail("bert: heads is ", c.heads, " and the width is ", c.width, ", but heads must divide it");
}

Tensor BertLogits(Scope scope, Tensor tokens, Tensor padding, const BertConfig& c, bool training) {
  CheckBert(c, scope.mesh());
  const double drop = training ? c.dropout : 0, eps = 1e-12;
  const Initializer init = TruncatedNormal(0.02);
  const Scope first = scope.Stage("pp", 0);
  Tensor table = first.Weight("embedding", {c.vocabulary, c.width}, init, {{"tp", S(0)}});
  Tensor place = first.Weight("positions", {c.context, c.width}, init);
  Tensor x = embedding(table, tokens) + slice(place, 0, 0, tokens.shape()[1]);
  x = dropout(nn::LayerNorm(first / "embedding_norm", x, eps), drop);
  nn::TransformerOptions block;
  block.attention = {.heads = c.heads, .causal = false, .dropout = drop, .init = init, .out_init = init};
  block.attention.masks = {.query_documents = padding, .key_documents = padding};
  block.mlp = {.activation = [](Tensor y) { return gelu_erf(y); }, .init = init, .out_init = init};
  block.dropout = drop;
  block.norm_eps = eps;
  block.norm_first = false;
  x = nn::layers(scope, x, c.layers,
                 [&](Scope s, Tensor y, int64_t) { return nn::TransformerBlock(s, y, block); });
  x = gelu_erf(nn::Linear(scope / "transform", x, c.width, {.init = init}));
  x = nn::LayerNorm(scope / "transform_norm", x, eps);
  Tensor bias = scope.Weight("output_bias", {c.vocabulary}, Zeros(), {{"tp", S(0)}});
  return einsum("bsw,vw->bsv", x, to_stage_of(table, x)) + bias;
}

Tensor BertLoss(Tensor logits, Tensor targets) {
  return masked_mean(cross_entropy(logits, targets), greater_equal(targets, 0));
}

}  // namespace examples
