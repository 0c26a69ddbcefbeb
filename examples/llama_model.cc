// The decoder of llama_model.h, of the layers of oneflow_like/nn.h.
#include "examples/llama_model.h"

#include <cmath>
#include <vector>

namespace examples {

LlamaConfig LlamaOfSize(const std::string& size) {
  if (size == "tiny") return {};
  // Layers, width, heads, kv_heads, head_width, inner, vocabulary.
  if (size == "160m") return {12, 768, 12, 4, 64, 3328, 32000};
  if (size == "1b") {
    LlamaConfig c = {16, 2048, 32, 8, 64, 8192, 128256};
    c.rope = {.base = 500000, .trained_length = 8192, .factor = 32};
    c.tied = true;
    return c;
  }
  if (size == "8b") return {32, 4096, 32, 8, 128, 14336, 128256};
  if (size == "70b") return {80, 8192, 64, 8, 128, 28672, 128256};
  if (size == "mixtral_tiny") return {.inner = 256, .rope = {.base = 1e6}, .experts = {.experts = 8}};
  if (size == "qwen_moe_tiny")
    return {.kv_heads = 4,
            .inner = 96,
            .rope = {.base = 1e6},
            .norm_eps = 1e-6,
            .qkv_bias = true,
            .experts = {.experts = 8, .top_k = 4, .shared_inner = 192, .normalise = false, .aux_loss = 1e-3}};
  if (size == "mixtral_8x7b") {
    LlamaConfig c = {32, 4096, 32, 8, 128, 14336, 32000, {.base = 1e6}};
    c.experts.experts = 8;
    return c;
  }
  Fail("--size=", size, ": must be tiny, 160m, 1b, 8b, 70b, mixtral_tiny, qwen_moe_tiny or mixtral_8x7b");
}

int64_t LlamaWeights(const LlamaConfig& c) {
  const int64_t projected = (c.heads + 2 * c.kv_heads) * c.head_width;
  const int64_t layer =
      2 * c.width + c.width * projected + (c.qkv_bias ? projected : 0) + c.heads * c.head_width * c.width;
  const LlamaExperts& e = c.experts;
  int64_t network = 3 * c.width * c.inner;
  if (e.experts > 0) network = e.experts * (network + c.width);
  if (e.shared_inner > 0) network += 3 * c.width * e.shared_inner + c.width;
  return c.layers * (layer + network) + c.width + (c.tied ? 1 : 2) * c.vocabulary * c.width;
}

void CheckLlama(const LlamaConfig& c, const Mesh& mesh, const std::string& who) {
  for (const char* axis : {"dp", "tp"}) mesh.AxesOrFail(axis, who);
  const int stages = mesh.axis_size(mesh.AxisOrFail("pp", who));
  if (!c.sequence.empty()) mesh.AxesOrFail(c.sequence, who + ", whose sequences it is to cut");
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"layers", c.layers},
                                    {"width", c.width},
                                    {"heads", c.heads},
                                    {"kv_heads", c.kv_heads},
                                    {"head_width", c.head_width},
                                    {"inner", c.inner},
                                    {"vocabulary", c.vocabulary}})
    if (value < 1) Fail(who, ": ", name, " is ", value, " but must be at least 1");
  if (c.experts.experts < 0 || c.experts.shared_inner < 0)
    Fail(who, ": experts are ", c.experts.experts, " with a shared one of ", c.experts.shared_inner,
         ", but neither may be negative");
  if (c.experts.experts > 0 && (c.experts.top_k < 1 || c.experts.top_k > c.experts.experts))
    Fail(who, ": top_k is ", c.experts.top_k, ", must be at least 1, and at most the ", c.experts.experts,
         " experts");
  if (c.experts.experts > 0 && !c.sequence.empty())
    Fail(who, ": sequences cannot be cut over ", c.sequence,
         ", as the room of experts is of whole sequences");
  if (c.heads % c.kv_heads != 0)
    Fail(who, ": kv_heads is ", c.kv_heads, " and does not divide the ", c.heads, " heads");
  if (c.head_width % 2 != 0)
    Fail(who, ": head_width is ", c.head_width, " but rotary positions turn pairs; make it even");
  if (c.layers < stages)
    Fail(who, ": mesh axis pp has ", stages, " stages but there are only ", c.layers,
         " layers; every stage needs at least one");
}

namespace {

nn::ExpertsOptions ExpertsOf(const LlamaConfig& c, const Mesh& mesh, const Initializer& init,
                             const Initializer& small) {
  nn::ExpertsOptions o;
  o.experts = c.experts.experts;
  o.top_k = c.experts.top_k;
  o.inner = c.inner;
  o.gated = true;
  o.capacity = c.experts.capacity;
  o.room = c.experts.room;
  o.shared_inner = c.experts.shared_inner;
  o.shared_gate = c.experts.shared_inner > 0;
  o.normalise = c.experts.normalise;
  o.aux_loss = c.experts.aux_loss;
  o.ep = !mesh.FindAxes("ep").empty() ? "ep" : "dp";
  o.init = init;
  o.out_init = small;
  return o;
}

// What the logits are made of: x[b s w] and table[v w]. With a cache, of the last token alone.
struct LlamaHead {
  Tensor x, table;
  Tensor logits() const { return einsum("bsw,vw->bsv", x, table); }
};
LlamaHead LlamaForward(const Scope& scope, Tensor tokens, const LlamaConfig& c, const nn::Cache* cache,
                       Tensor positions, Tensor* router_loss, Tensor before = {}) {
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
  block.attention.ulysses = c.ulysses;
  block.attention.masks.query_positions = block.attention.masks.key_positions = positions;
  block.mlp = {.inner = c.inner, .init = init, .out_init = small};
  block.rms_norm = block.swiglu = true;
  block.norm_eps = c.norm_eps;
  block.sequence = c.sequence;
  if (cache) block.attention.cache = *cache;
  std::vector<Tensor> losses;
  if (c.experts.experts > 0)
    block.feed_forward = [&, o = ExpertsOf(c, scope.mesh(), init, small)](Scope s, Tensor x) {
      const nn::ExpertsResult result = nn::Experts(s / "experts", x, o);
      if (result.loss.defined()) losses.push_back(result.loss);
      return result.y;
    };

  const Dims shape = {c.vocabulary, c.width};
  Tensor table = scope.Stage("pp", 0).Weight("embedding", shape, init, {{"tp", S(0)}});
  Tensor x = embedding(table, tokens);
  if (before.defined()) x = concat({before, x}, 1);
  x = nn::layers(scope, x, c.layers,
                 [&](Scope s, Tensor y, int64_t) { return nn::TransformerBlock(s, y, block); });
  for (Tensor& loss : losses) loss = to_stage_of(loss, x);
  if (router_loss && !losses.empty()) *router_loss = add_n(losses);
  if (const int64_t length = x.shape()[1]; cache && length > 1) x = slice(x, 1, length - 1, length);
  if (before.defined()) x = slice(x, 1, before.shape()[1], x.shape()[1]);
  x = nn::RmsNorm(scope / "norm", x, c.norm_eps);
  return {x, c.tied ? to_stage_of(table, x) : scope.Weight("output", shape, init, {{"tp", S(0)}})};
}

}  // namespace

Tensor LlamaLogits(Scope scope, Tensor tokens, const LlamaConfig& config, Tensor positions,
                   Tensor* router_loss, Tensor before) {
  return LlamaForward(scope, tokens, config, nullptr, positions, router_loss, before).logits();
}

Tensor LlamaLosses(Scope scope, Tensor tokens, Tensor targets, const LlamaConfig& config, Tensor positions,
                   Tensor* router_loss) {
  const LlamaHead head = LlamaForward(scope, tokens, config, nullptr, positions, router_loss);
  return nn::HeadLoss(head.x, head.table, targets, config.logits_tile);
}

Tensor LlamaNext(Scope scope, Tensor tokens, const LlamaConfig& config, const nn::Cache& cache) {
  LlamaConfig roomy = config;
  roomy.experts.capacity = roomy.experts.room =
      0;  // whatever pieces the text is read in, the same tokens come of it
  return LlamaForward(scope, tokens, roomy, &cache, {}, nullptr).logits();
}

Tensor LlamaLoss(Scope scope, Tensor tokens, Tensor targets, const LlamaConfig& config) {
  Tensor of_router, loss = mean(LlamaLosses(scope, tokens, targets, config, {}, &of_router));
  return of_router.defined() ? loss + of_router : loss;
}

}  // namespace examples
