// The GPT of gpt_model.h: pre-layer-norm blocks, learned positions, the output tied to the embedding table.
#include "examples/gpt_model.h"

#include <cmath>

namespace examples {

void CheckGpt(const GptConfig& c, const Mesh& mesh) {
  for (const char* axis : {"dp", "tp"}) mesh.AxesOrFail(axis, "gpt");
  const int stages = mesh.axis_size(mesh.AxisOrFail("pp", "gpt"));
  if (!c.sequence.empty()) mesh.AxesOrFail(c.sequence, "gpt, whose sequences it is to cut");
  if (c.layers < 1) Fail("gpt: layers is ", c.layers, " but must be at least 1");
  if (c.heads < 1 || c.width < 1 || c.width % c.heads != 0) {
    Fail("gpt: heads is ", c.heads, " and width is ", c.width, ", but heads must divide width");
  }
  if (c.context < 1) Fail("gpt: context is ", c.context, " but must be at least 1");
  if (c.vocabulary < 1) Fail("gpt: vocabulary is ", c.vocabulary, " but must be at least 1");
  if (!(c.dropout >= 0 && c.dropout < 1)) Fail("gpt: dropout is ", c.dropout, " but must lie in [0, 1)");
  if (c.layers < stages) {
    Fail("gpt: mesh axis pp has ", stages, " stages but there are only ", c.layers,
         " layers; every stage needs at least one");
  }
}

namespace {

// What the logits are made of: x[b s w] and table[v w]. With a cache, of the last token alone.
struct GptHead {
  Tensor x, table;
  Tensor logits() const { return einsum("bsw,vw->bsv", x, table); }
};
GptHead GptForward(const Scope& scope, Tensor tokens, const GptConfig& c, const nn::Cache* cache,
                   Tensor positions_of) {
  CheckGpt(c, scope.mesh());
  const int64_t length = tokens.shape().back();
  if (length > c.context && !cache) Fail("gpt: sequences of ", length, " tokens, but context is ", c.context);

  const Initializer init = Normal(0.02);
  // Radford et al. 2019: what is added to the residual stream starts smaller, the more is added to it.
  const Initializer small = Normal(0.02 / std::sqrt(2.0 * c.layers));
  nn::TransformerOptions block;
  block.attention = {.heads = c.heads, .dropout = c.dropout, .init = init, .out_init = small};
  block.mlp = {.init = init, .out_init = small};
  block.dropout = c.dropout;
  block.attention.lora = c.lora;
  block.sequence = c.sequence;
  block.attention.ulysses = c.ulysses;
  if (cache) block.attention.cache = *cache;
  block.attention.masks.query_positions = block.attention.masks.key_positions = positions_of;

  Scope first = scope.Stage("pp", 0);
  Tensor table = first.Weight("embedding", {c.vocabulary, c.width}, init, {{"tp", S(0)}});
  Tensor positions = first.Weight("positions", {c.context, c.width}, init, {.decay = 1});
  if (cache) {
    positions = embedding(positions, cache->positions);
  } else if (positions_of.defined()) {
    positions = take(positions, 0, positions_of);
  } else if (length < c.context) {
    positions = slice(positions, 0, 0, length);
  }
  Tensor x = dropout(embedding(table, tokens) + positions, c.dropout);
  x = nn::layers(scope, x, c.layers,
                 [&](Scope s, Tensor y, int64_t) { return nn::TransformerBlock(s, y, block); });
  if (cache && length > 1) x = slice(x, 1, length - 1, length);
  x = nn::LayerNorm(scope / "norm", x);
  return {x, to_stage_of(table, x)};
}

}  // namespace

Tensor GptLogits(Scope scope, Tensor tokens, const GptConfig& config, Tensor positions) {
  return GptForward(scope, tokens, config, nullptr, positions).logits();
}

Tensor GptNext(Scope scope, Tensor tokens, const GptConfig& config, const nn::Cache& cache) {
  return GptForward(scope, tokens, config, &cache, {}).logits();
}

Tensor GptLosses(Scope scope, Tensor tokens, Tensor targets, const GptConfig& config, Tensor positions) {
  const GptHead head = GptForward(scope, tokens, config, nullptr, positions);
  return nn::HeadLoss(head.x, head.table, targets, config.logits_tile);
}

Tensor GptLoss(Scope scope, Tensor tokens, Tensor targets, const GptConfig& config) {
  return mean(GptLosses(scope, tokens, targets, config));
}

}  // namespace examples
