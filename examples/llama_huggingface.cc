#include "examples/llama_huggingface.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "oneflow_like/program/huggingface_config.h"

namespace examples {
namespace {

using nlohmann::json;

// Positions: older versions of transformers have them as rope_theta and rope_scaling, newer ones as
// rope_parameters. Where both scale, the newer ones, too, take rope_scaling.
RopeOptions ReadRope(const HuggingFaceConfig& file, double usual) {
  const HuggingFaceConfig parameters = file.Part("rope_parameters"), old = file.Part("rope_scaling");
  const HuggingFaceConfig& part = file.Says("rope_scaling") ? old : parameters;
  for (const HuggingFaceConfig* place : {&file, &parameters, &old})
    place->Require("partial_rotary_factor", {1.0, nullptr});
  RopeOptions rope;
  rope.base = part.Real("rope_theta", parameters.Real("rope_theta", file.Real("rope_theta", usual)));
  const char* type = part.Says("rope_type") ? "rope_type" : "type";
  part.Require(type, {"default", "linear", "llama3"});
  if (part.Is(type, "linear")) rope.scale = part.Real("factor");
  if (part.Is(type, "llama3")) {
    rope.factor = part.Real("factor");
    rope.low_turns = part.Real("low_freq_factor");
    rope.high_turns = part.Real("high_freq_factor");
    rope.trained_length = part.Number("original_max_position_embeddings", int64_t{1} << 40);
  }
  return rope;
}

json RopeScaling(const RopeOptions& rope) {
  if (rope.trained_length > 0)
    return {{"rope_type", "llama3"},
            {"factor", rope.factor},
            {"low_freq_factor", rope.low_turns},
            {"high_freq_factor", rope.high_turns},
            {"original_max_position_embeddings", rope.trained_length}};
  if (rope.scale != 1) return {{"rope_type", "linear"}, {"factor", rope.scale}};
  return nullptr;
}

bool IsQwenMoe(const LlamaConfig& c) { return c.experts.shared_inner > 0; }

const char* ModelTypeOf(const LlamaConfig& c) {
  if (c.experts.experts > 0) return IsQwenMoe(c) ? "qwen2_moe" : "mixtral";
  return c.qkv_bias ? "qwen2" : "llama";
}

const char* ArchitectureOf(const LlamaConfig& c) {
  if (c.experts.experts > 0) return IsQwenMoe(c) ? "Qwen2MoeForCausalLM" : "MixtralForCausalLM";
  return c.qkv_bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM";
}

// Their experts are tensors each, ours lie in one variable.
void AddExpertNames(const LlamaConfig& c, NameTable* table) {
  const int64_t w = c.width, count = c.experts.experts;
  const std::string layer = "model.layers.{i}.", ours = "block{i}/experts/";
  const std::string place = layer + (IsQwenMoe(c) ? "mlp." : "block_sparse_moe.");
  auto repeat = [&](const std::string& theirs, const NameRow::Variable& variable) {
    table->Repeat(c.layers, {.theirs = place + theirs + ".weight", .ours = {variable}, .order = {1, 0}});
  };
  repeat("gate", {ours + "gate", {w, count}});
  for (int64_t e = 0; e < count; ++e) {
    const std::string expert = Cat("experts.", e, ".");
    repeat(expert + (IsQwenMoe(c) ? "gate_proj" : "w1"), {ours + "up_gate", {w, c.inner}, e, count});
    repeat(expert + (IsQwenMoe(c) ? "up_proj" : "w3"), {ours + "up", {w, c.inner}, e, count});
    repeat(expert + (IsQwenMoe(c) ? "down_proj" : "w2"), {ours + "down", {c.inner, w}, e, count});
  }
  if (!IsQwenMoe(c)) return;
  const int64_t inner = c.experts.shared_inner;
  repeat("shared_expert.gate_proj", {ours + "shared/gate", {w, inner}});
  repeat("shared_expert.up_proj", {ours + "shared/up", {w, inner}});
  repeat("shared_expert.down_proj", {ours + "shared/down", {inner, w}});
  repeat("shared_expert_gate", {ours + "shared_gate", {w, 1}});
}

LlamaExperts ReadExperts(const HuggingFaceConfig& file) {
  constexpr int64_t kMany = 1 << 16;
  LlamaExperts e;
  const bool qwen = file.Is("model_type", "qwen2_moe");
  e.experts = file.Number(qwen ? "num_experts" : "num_local_experts", kMany);
  e.top_k = file.Number("num_experts_per_tok", kMany);
  if (e.top_k > e.experts)
    Fail(file.path(), ": num_experts_per_tok is ", e.top_k, ", but there are only ", e.experts, " experts");
  e.aux_loss = file.RealOrZero("router_aux_loss_coef", 1e-3);
  if (qwen) {
    e.shared_inner = file.Number("shared_expert_intermediate_size", 1 << 20);
    e.normalise = file.Flag("norm_topk_prob", false);
    file.Require("decoder_sparse_step", {1});
    file.Require("mlp_only_layers", {ConfigValue::EmptyList(), nullptr});
  } else {
    file.Require("sliding_window", {nullptr});
  }
  return e;
}

// What config.json says of experts, beside what it says of every model.
void WriteExperts(const LlamaConfig& c, json* config) {
  const LlamaExperts& e = c.experts;
  if (e.experts == 0) return;
  (*config)["num_experts_per_tok"] = e.top_k;
  (*config)["router_aux_loss_coef"] = e.aux_loss;
  (*config)[IsQwenMoe(c) ? "num_experts" : "num_local_experts"] = e.experts;
  if (!IsQwenMoe(c)) {
    (*config)["sliding_window"] = nullptr;
    return;
  }
  (*config)["moe_intermediate_size"] = c.inner;
  (*config)["shared_expert_intermediate_size"] = e.shared_inner;
  (*config)["norm_topk_prob"] = e.normalise;
  (*config)["decoder_sparse_step"] = 1;
  (*config)["mlp_only_layers"] = json::array();
}

}  // namespace

NameTable LlamaNames(const LlamaConfig& c) {
  const int64_t w = c.width, d = c.head_width;
  const std::string experts = c.experts.experts > 0 ? Cat(", ", c.experts.experts, " experts of") : ",";
  NameTable table{
      .model = Cat("a Llama of ", c.layers, " layers, width ", w, ", ", c.heads, " heads over ", c.kv_heads,
                   experts, " inner width ", c.inner, " and vocabulary ", c.vocabulary),
      .optional_prefix = "model.",
      .ignored = {"*.rotary_emb.inv_freq"}};
  if (c.tied) table.ignored.push_back("lm_head.weight");
  auto repeat = [&](const std::string& theirs, const std::string& ours, const Dims& shape,
                    std::vector<int> axes = {}, std::vector<int> order = {}) {
    table.Repeat(c.layers, {.theirs = "model.layers.{i}." + theirs,
                            .ours = {{"block{i}/" + ours, shape}},
                            .axes = std::move(axes),
                            .order = std::move(order)});
  };
  table.Add({.theirs = "model.embed_tokens.weight", .ours = {{"embedding", {c.vocabulary, w}}}});
  repeat("input_layernorm.weight", "norm1/gamma", {w});
  for (const auto& [name, heads] :
       {std::pair<std::string, int64_t>{"q", c.heads}, {"k", c.kv_heads}, {"v", c.kv_heads}}) {
    repeat("self_attn." + name + "_proj.weight", "attention/" + name, {w, heads, d}, {1, 2}, {1, 0});
    if (c.qkv_bias)
      repeat("self_attn." + name + "_proj.bias", "attention/" + name + "_bias", {heads, d}, {2});
  }
  repeat("self_attn.o_proj.weight", "attention/out", {c.heads, d, w}, {2, 1}, {1, 0});
  repeat("post_attention_layernorm.weight", "norm2/gamma", {w});
  if (c.experts.experts > 0) {
    AddExpertNames(c, &table);
  } else {
    repeat("mlp.gate_proj.weight", "mlp/gate", {w, c.inner}, {}, {1, 0});
    repeat("mlp.up_proj.weight", "mlp/up", {w, c.inner}, {}, {1, 0});
    repeat("mlp.down_proj.weight", "mlp/down", {c.inner, w}, {}, {1, 0});
  }
  table.Add({.theirs = "model.norm.weight", .ours = {{"norm/gamma", {w}}}});
  if (!c.tied) table.Add({.theirs = "lm_head.weight", .ours = {{"output", {c.vocabulary, w}}}});
  return table;
}

LlamaFolder ReadLlamaConfig(const std::string& folder) { return ReadLlamaConfig(HuggingFaceConfig(folder)); }

LlamaFolder ReadLlamaConfig(const HuggingFaceConfig& file) {
  if (!file.Has("model_type")) Fail(file.path(), ": it lacks model_type");
  file.Require("model_type", {"llama", "qwen2", "mixtral", "qwen2_moe"});
  const bool mixtral = file.Is("model_type", "mixtral"), qwen_moe = file.Is("model_type", "qwen2_moe");
  constexpr int64_t kMany = 1 << 20;
  LlamaConfig c;
  c.layers = file.Number("num_hidden_layers", 10'000);
  c.width = file.Number("hidden_size", kMany);
  c.heads = file.Number("num_attention_heads", kMany);
  c.kv_heads = file.Number("num_key_value_heads", kMany, c.heads);
  if (!file.Has("head_dim") && c.width % c.heads != 0)
    Fail(file.path(), ": num_attention_heads is ", c.heads, " and hidden_size is ", c.width,
         ", but the heads must divide it where head_dim is left out");
  c.head_width = file.Number("head_dim", kMany, c.width / c.heads);
  if (c.heads % c.kv_heads != 0)
    Fail(file.path(), ": num_key_value_heads is ", c.kv_heads, ", but must divide num_attention_heads, ",
         c.heads);
  if (c.head_width % 2 != 0) Fail(file.path(), ": heads are ", c.head_width, " wide, but must be even");
  c.inner = file.Number(qwen_moe ? "moe_intermediate_size" : "intermediate_size", kMany);
  if (mixtral || qwen_moe) c.experts = ReadExperts(file);
  c.vocabulary = file.Number("vocab_size", INT32_MAX);
  c.norm_eps = file.Real("rms_norm_eps", mixtral ? 1e-5 : 1e-6);
  c.tied = file.Flag("tie_word_embeddings", false);
  c.qkv_bias = qwen_moe || file.Is("model_type", "qwen2");
  if (qwen_moe) file.Require("qkv_bias", {true, nullptr});
  c.rope = ReadRope(file, mixtral ? 1e6 : 10000.0);
  file.Require("hidden_act", {"silu"});
  file.Require("attention_bias", {false});
  file.Require("mlp_bias", {false});
  file.Require("use_sliding_window", {false, nullptr});
  file.RequireEach("layer_types", "full_attention");
  file.Require("quantization_config", {nullptr});
  return {c, file.Number("max_position_embeddings", int64_t{1} << 40, c.qkv_bias || mixtral ? 32768 : 2048)};
}

std::string LlamaConfigText(const LlamaConfig& c, int64_t context, const HuggingFaceConfig* theirs) {
  if (theirs) {
    const LlamaFolder there = ReadLlamaConfig(*theirs);
    return ChangedConfig(*theirs, LlamaConfigText(there.config, there.context), LlamaConfigText(c, context));
  }
  json config = {{"architectures", json::array({ArchitectureOf(c)})},
                 {"model_type", ModelTypeOf(c)},
                 {"num_hidden_layers", c.layers},
                 {"hidden_size", c.width},
                 {"num_attention_heads", c.heads},
                 {"num_key_value_heads", c.kv_heads},
                 {"head_dim", c.head_width},
                 {"intermediate_size", c.inner},
                 {"vocab_size", c.vocabulary},
                 {"max_position_embeddings", context},
                 {"rms_norm_eps", c.norm_eps},
                 {"rope_theta", c.rope.base},
                 {"rope_scaling", RopeScaling(c.rope)},
                 {"tie_word_embeddings", c.tied},
                 {"hidden_act", "silu"},
                 {"attention_bias", false},
                 {"mlp_bias", false},
                 {"attention_dropout", 0.0},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", nullptr}};
  WriteExperts(c, &config);
  return config.dump(2) + "\n";
}

ModelFormat LlamaFormat(const LlamaConfig& config, int64_t context) {
  return {"llama",
          [](const std::string& folder) {
            return std::make_shared<HuggingFaceReader>(folder, LlamaNames(ReadLlamaConfig(folder).config));
          },
          [=](std::shared_ptr<VariableSource> ours, const FolderFiles& files, const std::string& folder) {
            const auto theirs = ConfigIn(files, ours->where());
            WriteHuggingFace(std::move(ours), LlamaNames(config),
                             LlamaConfigText(config, context, theirs ? &*theirs : nullptr), files, folder);
          }};
}

}  // namespace examples
