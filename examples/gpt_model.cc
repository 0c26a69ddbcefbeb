// The GPT of gpt_model.h: pre-layer-norm blocks, learned positions, the output tied to the embedding table.
#include "examples/gpt_model.h"

#include <cmath>
#include <string>

namespace oneflow_like {
namespace {

constexpr double kStddev = 0.02;

// Radford et al. 2019: what is added to the residual stream starts smaller, the more is added to it.
double ResidualStddev(const GptConfig& config) { return kStddev / std::sqrt(2.0 * config.layers); }

Tensor LayerNorm(Scope s, Tensor x, int64_t width) {
  return layer_norm(x, s.Weight("gamma", {width}, Ones()), s.Weight("beta", {width}, Zeros()));
}

Tensor Attention(Scope s, Tensor x, const GptConfig& c) {
  const int64_t depth = c.width / c.heads;
  auto project = [&](const std::string& name) {
    Tensor weight = s.Weight(name, {c.width, c.heads, depth}, Normal(kStddev), {{"tp", S(1)}});
    Tensor bias = s.Weight(name + "_bias", {c.heads, depth}, Zeros(), {{"tp", S(0)}});
    return einsum("bsw,whd->bshd", x, weight) + bias;
  };
  Tensor q = project("q"), k = project("k"), v = project("v");
  Tensor mixed = attention(q, k, v, {.causal = true, .dropout = c.dropout});
  Tensor out = s.Weight("out", {c.heads, depth, c.width}, Normal(ResidualStddev(c)), {{"tp", S(0)}});
  return einsum("bshd,hdw->bsw", mixed, out) + s.Weight("out_bias", {c.width}, Zeros());
}

Tensor Mlp(Scope s, Tensor x, const GptConfig& c) {
  const int64_t inner = 4 * c.width;
  Tensor up = s.Weight("up", {c.width, inner}, Normal(kStddev), {{"tp", S(1)}});
  Tensor up_bias = s.Weight("up_bias", {inner}, Zeros(), {{"tp", S(0)}});
  Tensor down = s.Weight("down", {inner, c.width}, Normal(ResidualStddev(c)), {{"tp", S(0)}});
  Tensor hidden = gelu(matmul(x, up) + up_bias);
  return matmul(hidden, down) + s.Weight("down_bias", {c.width}, Zeros());
}

Tensor Block(Scope s, Tensor x, const GptConfig& c) {
  x = x + dropout(Attention(s / "attention", LayerNorm(s / "norm1", x, c.width), c), c.dropout);
  return x + dropout(Mlp(s / "mlp", LayerNorm(s / "norm2", x, c.width), c), c.dropout);
}

}  // namespace

int StageOfLayer(const GptConfig& config, const Mesh& mesh, int64_t layer) {
  const int stages = mesh.axis_size(mesh.AxisOrFail("pp", "gpt"));
  return static_cast<int>(layer * stages / config.layers);
}

void CheckGpt(const GptConfig& c, const Mesh& mesh) {
  for (const char* axis : {"dp", "tp"}) mesh.AxisOrFail(axis, "gpt");
  const int stages = mesh.axis_size(mesh.AxisOrFail("pp", "gpt"));
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

Tensor GptLogits(Scope scope, Tensor tokens, const GptConfig& c) {
  const Mesh& mesh = scope.mesh();
  CheckGpt(c, mesh);
  const int64_t length = tokens.shape().back();
  if (length > c.context) Fail("gpt: sequences of ", length, " tokens, but context is ", c.context);

  Scope first = scope.Stage("pp", 0);
  Tensor table = first.Weight("embedding", {c.vocabulary, c.width}, Normal(kStddev), {{"tp", S(0)}});
  Tensor positions = first.Weight("positions", {c.context, c.width}, Normal(kStddev), {.decay = 1});
  if (length < c.context) positions = slice(positions, 0, 0, length);
  Tensor x = dropout(embedding(table, tokens) + positions, c.dropout);

  int stage = 0;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const int next = StageOfLayer(c, mesh, layer);
    if (next != stage) x = to_stage(x, "pp", stage = next);
    x = Block(scope.Stage("pp", stage) / ("block" + std::to_string(layer)), x, c);
  }
  x = LayerNorm(scope.Stage("pp", stage) / "norm", x, c.width);
  return einsum("bsw,vw->bsv", x, stage == 0 ? table : to_stage(table, "pp", stage));
}

Tensor GptLoss(Scope scope, Tensor tokens, Tensor targets, const GptConfig& config) {
  return mean(cross_entropy(GptLogits(scope, tokens, config), targets));
}

}  // namespace oneflow_like
