#include "examples/gpt_huggingface.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "oneflow_like/program/huggingface_config.h"

namespace examples {
namespace {

using nlohmann::json;

constexpr double kEpsilon = 1e-5;  // that layer_norm adds to the variance

}  // namespace

NameTable Gpt2Names(const GptConfig& c) {
  const int64_t w = c.width, heads = c.heads, depth = c.width / c.heads, inner = 4 * c.width;
  NameTable table{.model = Cat("a GPT-2 of ", c.layers, " layers, width ", w, ", ", heads, " heads, context ",
                               c.context, " and vocabulary ", c.vocabulary),
                  .optional_prefix = "transformer.",
                  // Masks that older files have, and the output, which is tied to the embedding.
                  .ignored = {"*.attn.bias", "*.attn.masked_bias", "lm_head.weight"}};
  const std::string theirs = "transformer.h.{i}.", ours = "block{i}/";
  auto repeat = [&](const std::string& name, std::vector<NameRow::Variable> variables,
                    std::vector<int> axes = {}, int joined = 0) {
    for (NameRow::Variable& variable : variables) variable.name = ours + variable.name;
    table.Repeat(
        c.layers,
        {.theirs = theirs + name, .ours = std::move(variables), .axes = std::move(axes), .joined = joined});
  };
  table.Add({.theirs = "transformer.wte.weight", .ours = {{"embedding", {c.vocabulary, w}}}});
  table.Add({.theirs = "transformer.wpe.weight", .ours = {{"positions", {c.context, w}}}});
  repeat("ln_1.weight", {{"norm1/gamma", {w}}});
  repeat("ln_1.bias", {{"norm1/beta", {w}}});
  const Dims weight = {w, heads, depth}, bias = {heads, depth};
  // A Conv1D of theirs is stored [in, out], as a weight of ours.
  repeat("attn.c_attn.weight", {{"attention/q", weight}, {"attention/k", weight}, {"attention/v", weight}},
         {1, 2}, 1);
  repeat("attn.c_attn.bias",
         {{"attention/q_bias", bias}, {"attention/k_bias", bias}, {"attention/v_bias", bias}}, {2});
  repeat("attn.c_proj.weight", {{"attention/out", {heads, depth, w}}}, {2, 1});
  repeat("attn.c_proj.bias", {{"attention/out_bias", {w}}});
  repeat("ln_2.weight", {{"norm2/gamma", {w}}});
  repeat("ln_2.bias", {{"norm2/beta", {w}}});
  repeat("mlp.c_fc.weight", {{"mlp/up", {w, inner}}});
  repeat("mlp.c_fc.bias", {{"mlp/up_bias", {inner}}});
  repeat("mlp.c_proj.weight", {{"mlp/down", {inner, w}}});
  repeat("mlp.c_proj.bias", {{"mlp/down_bias", {w}}});
  table.Add({.theirs = "transformer.ln_f.weight", .ours = {{"norm/gamma", {w}}}});
  table.Add({.theirs = "transformer.ln_f.bias", .ours = {{"norm/beta", {w}}}});
  return table;
}

GptConfig ReadGpt2Config(const std::string& folder) { return ReadGpt2Config(HuggingFaceConfig(folder)); }

GptConfig ReadGpt2Config(const HuggingFaceConfig& file) {
  if (!file.Has("model_type")) Fail(file.path(), ": it lacks model_type");
  file.Require("model_type", {"gpt2"});
  constexpr int64_t kMany = 1 << 20;
  GptConfig config;
  config.layers = file.Number("n_layer", 10'000);
  config.width = file.Number("n_embd", kMany);
  config.heads = file.Number("n_head", kMany);
  config.context = file.Number(file.Has("n_positions") ? "n_positions" : "n_ctx", kMany);
  config.vocabulary = file.Number("vocab_size", INT32_MAX);
  if (config.width % config.heads != 0)
    Fail(file.path(), ": n_head is ", config.heads, " and n_embd is ", config.width,
         ", but n_head must divide n_embd");
  file.Require("n_ctx", {config.context});
  file.Require("n_inner", {nullptr, 4 * config.width});
  file.Require("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  file.Require("layer_norm_epsilon", {kEpsilon});
  file.Require("scale_attn_weights", {true});
  file.Require("scale_attn_by_inverse_layer_idx", {false});
  file.Require("add_cross_attention", {false});
  file.Require("tie_word_embeddings", {true});
  file.Require("quantization_config", {nullptr});
  return config;
}

std::string Gpt2ConfigText(const GptConfig& c, const HuggingFaceConfig* theirs) {
  if (theirs) {
    GptConfig there = ReadGpt2Config(*theirs);
    there.dropout = c.dropout;  // of a training, which says it again
    return ChangedConfig(*theirs, Gpt2ConfigText(there), Gpt2ConfigText(c));
  }
  // GPT-2's end of a text, in vocabularies that are its own, or rounded.
  const json end = c.vocabulary > 50256 && c.vocabulary <= 50304 ? json(50256) : json(nullptr);
  const json config = {{"architectures", json::array({"GPT2LMHeadModel"})},
                       {"model_type", "gpt2"},
                       {"n_layer", c.layers},
                       {"n_embd", c.width},
                       {"n_head", c.heads},
                       {"n_positions", c.context},
                       {"n_ctx", c.context},
                       {"n_inner", nullptr},
                       {"vocab_size", c.vocabulary},
                       {"activation_function", "gelu_new"},
                       {"layer_norm_epsilon", kEpsilon},
                       {"scale_attn_weights", true},
                       {"scale_attn_by_inverse_layer_idx", false},
                       {"tie_word_embeddings", true},
                       {"embd_pdrop", c.dropout},
                       {"attn_pdrop", c.dropout},
                       {"resid_pdrop", c.dropout},
                       {"bos_token_id", end},
                       {"eos_token_id", end}};
  return config.dump(2) + "\n";
}

GptConfig GptConfigOf(const VariableSource& ours) {
  auto shape = [&](const std::string& name, int rank) -> const Dims& {
    auto found = ours.variables().find(name);
    if (found == ours.variables().end()) Fail(ours.where(), ": it is of no GPT, as it lacks '", name, "'");
    const Dims& is = found->second.shape;
    if (is.rank() != rank || is.elements() < 1)
      Fail(ours.where(), ": '", name, "' has shape ", is.str(), ", but that of a GPT has ", rank, " axes");
    return is;
  };
  GptConfig config;
  config.vocabulary = shape("embedding", 2)[0];
  config.width = shape("embedding", 2)[1];
  config.context = shape("positions", 2)[0];
  config.heads = shape("block0/attention/q", 3)[1];
  if (config.width % config.heads != 0)
    Fail(ours.where(), ": 'block0/attention/q' has ", config.heads,
         " heads, which do not divide the width of ", config.width);
  if (ours.variables().count("block0/attention/q_lora_down"))
    config.lora = shape("block0/attention/q_lora_down", 2)[1];
  config.layers = 1;
  while (ours.variables().count(Cat("block", config.layers, "/attention/q"))) ++config.layers;
  return config;
}

ModelFormat Gpt2Format() {
  return {"gpt2",
          [](const std::string& folder) {
            return std::make_shared<HuggingFaceReader>(folder, Gpt2Names(ReadGpt2Config(folder)));
          },
          [](std::shared_ptr<VariableSource> ours, const FolderFiles& files, const std::string& folder) {
            const GptConfig config = GptConfigOf(*ours);
            const auto theirs = ConfigIn(files, ours->where());
            WriteHuggingFace(std::move(ours), Gpt2Names(config),
                             Gpt2ConfigText(config, theirs ? &*theirs : nullptr), files, folder);
          }};
}

}  // namespace examples
