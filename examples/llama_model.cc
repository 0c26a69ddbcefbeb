// The decoder of llama_model.h, of the layers of oneflow_like/nn.h.
#include "examples/llama_model.h"

#include <cmath>

namespace oneflow_like {

LlamaConfig LlamaOfSize(const std::string& size) {
  if (size == "tiny") return {};
  if (size == "160m")
    return {.layers = 12,
            .width = 768,
            .heads = 12,
            .kv_heads = 4,
            .head_width = 64,
            .inner = 3328,
            .vocabulary = 32000};
  if (size == "1b")
    return {.layers = 16,
            .width = 2048,
            .heads = 32,
            .kv_heads = 8,
            .head_width = 64,
            .inner = 8192,
            .vocabulary = 128256,
            .rope = {.base = 500000, .trained_length = 8192, .factor = 32},
            .tied = true};
  if (size == "8b")
    return {.layers = 32,
            .width = 4096,
            .heads = 32,
            .kv_heads = 8,
            .head_width = 128,
            .inner = 14336,
            .vocabulary = 128256};
  Fail("--size=", size, ": must be tiny, 160m, 1b or 8b");
}

int64_t LlamaWeights(const LlamaConfig& c) {
  const int64_t projected = (c.heads + 2 * c.kv_heads) * c.head_width;
  const int64_t layer = 2 * c.width + c.width * projected + (c.qkv_bias ? projected : 0) +
                        c.heads * c.head_width * c.width + 3 * c.width * c.inner;
  return c.layers * layer + c.width + (c.tied ? 1 : 2) * c.vocabulary * c.width;
}

void CheckLlama(const LlamaConfig& c, const Mesh& mesh) {
  for (const char* axis : {"dp", "tp"}) mesh.AxisOrFail(axis, "llama");
  const int stages = mesh.axis_size(mesh.AxisOrFail("pp", "llama"));
  if (!c.sequence.empty()) mesh.AxisOrFail(c.sequence, "llama, whose sequences it is to cut");
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"layers", c.layers},
                                    {"width", c.width},
                                    {"heads", c.heads},
                                    {"kv_heads", c.kv_heads},
                                    {"head_width", c.head_width},
                                    {"inner", c.inner},
                                    {"vocabulary", c.vocabulary}})
    if (value < 1) Fail("llama: ", name, " is ", value, " but must be at least 1");
  if (c.heads % c.kv_heads != 0)
    Fail("llama: kv_heads is ", c.kv_heads, " and does not divide the ", c.heads, " heads");
  if (c.head_width % 2 != 0)
    Fail("llama: head_width is ", c.head_width, " but rotary positions turn pairs; make it even");
  if (c.layers < stages)
    Fail("llama: mesh axis pp has ", stages, " stages but there are only ", c.layers,
         " layers; every stage needs at least one");
}

namespace {

// With a cache, logits of the last token alone.
Tensor LlamaForward(const Scope& scope, Tensor tokens, const LlamaConfig& c, const nn::Cache* cache,
                    Tensor positions) {
  CheckLlama(c, scope.mesh());
  const Initializer init = Normal(0.02);
  // As in GPT-2: what is added to the residual stream starts smaller, the more is added to it.
  const Initializer small = Normal(0.02 / std::sqrt(2.0 * static_cast<double>(c.layers)));
  nn::TransformerOptions block;
  block.attention = {.heads = c.heads,
                     .kv_heads = c.kv_heads,
                     .head_width = c.head_width,
                     .bias = c.qkv_bias,
                     .out_bias = false,
                     .rope = c.rope,
                     .init = init,
                     .out_init = small};
  if (c.ulysses) block.attention.ulysses = c.sequence;
  block.attention.masks.query_positions = block.attention.masks.key_positions = positions;
  block.mlp = {.inner = c.inner, .init = init, .out_init = small};
  block.rms_norm = block.swiglu = true;
  block.norm_eps = c.norm_eps;
  block.sequence = c.sequence;
  if (cache) block.attention.cache = *cache;

  const Dims shape = {c.vocabulary, c.width};
  Tensor table = scope.Stage("pp", 0).Weight("embedding", shape, init, {{"tp", S(0)}});
  Tensor x = nn::layers(scope, embedding(table, tokens), c.layers,
                        [&](Scope s, Tensor y, int64_t) { return nn::TransformerBlock(s, y, block); });
  if (const int64_t length = x.shape()[1]; cache && length > 1) x = slice(x, 1, length - 1, length);
  x = nn::RmsNorm(scope / "norm", x, c.norm_eps);
  Tensor output = c.tied ? to_stage_of(table, x) : scope.Weight("output", shape, init, {{"tp", S(0)}});
  return einsum("bsw,vw->bsv", x, output);
}

}  // namespace

Tensor LlamaLogits(Scope scope, Tensor tokens, const LlamaConfig& config, Tensor positions) {
  return LlamaForward(scope, tokens, config, nullptr, positions);
}

Tensor LlamaNext(Scope scope, Tensor tokens, const LlamaConfig& config, const nn::Cache& cache) {
  return LlamaForward(scope, tokens, config, &cache, {});
}

Tensor LlamaLoss(Scope scope, Tensor tokens, Tensor targets, const LlamaConfig& config) {
  return mean(cross_entropy(LlamaLogits(scope, tokens, config), targets));
}

}  // namespace oneflow_like
