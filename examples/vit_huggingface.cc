#include "examples/vit_huggingface.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "oneflow_like/text/utf8.h"

namespace examples {
namespace {

using nlohmann::json;

constexpr int64_t kMany = 1 << 20;

}  // namespace

NameTable VitNames(const VitFolder& vit) {
  const VitConfig& c = vit.config;
  const int64_t w = c.width, heads = c.heads, depth = c.width / c.heads,
                inner = c.inner > 0 ? c.inner : 4 * c.width;
  const int64_t patches = (vit.side / c.patch) * (vit.side / c.patch);
  NameTable table{.model = Cat("a ViT of ", c.layers, " layers, width ", w, ", ", heads,
                               " heads, inner width ", inner, ", ", patches, " patches of ", c.patch, " x ",
                               c.patch, " x ", vit.channels, " and ", c.classes, " classes"),
                  .optional_prefix = "vit.",
                  .ignored = {"vit.pooler.*", "pooler.*"}};
  auto repeat = [&](const std::string& theirs, const std::string& ours, const Dims& shape,
                    std::vector<int> axes = {}, std::vector<int> order = {}) {
    table.Repeat(c.layers, {.theirs = "vit.encoder.layer.{i}." + theirs,
                            .ours = {{"block{i}/" + ours, shape}},
                            .axes = std::move(axes),
                            .order = std::move(order)});
  };
  auto norm = [&](const std::string& theirs, const std::string& ours) {
    repeat(theirs + ".weight", ours + "/gamma", {w});
    repeat(theirs + ".bias", ours + "/beta", {w});
  };
  table.Add({.theirs = "vit.embeddings.cls_token", .ours = {{"class_token", {1, 1, w}}}});
  table.Add({.theirs = "vit.embeddings.position_embeddings",
             .ours = {{"positions", {patches + 1, w}}},
             .axes = {0, 1, 1}});
  const std::string projection = "vit.embeddings.patch_embeddings.projection.";
  table.Add({.theirs = projection + "weight",
             .ours = {{"patches/weight", {w, c.patch, c.patch, vit.channels}}},
             .order = {0, 3, 1, 2}});
  table.Add({.theirs = projection + "bias", .ours = {{"patches/bias", {w}}}});
  norm("layernorm_before", "norm1");
  for (const auto& [theirs, ours] :
       {std::pair<std::string, std::string>{"query", "q"}, {"key", "k"}, {"value", "v"}}) {
    repeat("attention.attention." + theirs + ".weight", "attention/" + ours, {w, heads, depth}, {1, 2},
           {1, 0});
    repeat("attention.attention." + theirs + ".bias", "attention/" + ours + "_bias", {heads, depth}, {2});
  }
  repeat("attention.output.dense.weight", "attention/out", {heads, depth, w}, {2, 1}, {1, 0});
  repeat("attention.output.dense.bias", "attention/out_bias", {w});
  norm("layernorm_after", "norm2");
  repeat("intermediate.dense.weight", "mlp/up", {w, inner}, {}, {1, 0});
  repeat("intermediate.dense.bias", "mlp/up_bias", {inner});
  repeat("output.dense.weight", "mlp/down", {inner, w}, {}, {1, 0});
  repeat("output.dense.bias", "mlp/down_bias", {w});
  table.Add({.theirs = "vit.layernorm.weight", .ours = {{"norm/gamma", {w}}}});
  table.Add({.theirs = "vit.layernorm.bias", .ours = {{"norm/beta", {w}}}});
  if (c.classes == 0) {
    table.ignored.push_back("classifier.*");
    return table;
  }
  table.Add({.theirs = "classifier.weight", .ours = {{"classes/weight", {w, c.classes}}}, .order = {1, 0}});
  table.Add({.theirs = "classifier.bias", .ours = {{"classes/bias", {c.classes}}}});
  return table;
}

VitFolder ReadVitConfig(const std::string& folder) { return ReadVitConfig(HuggingFaceConfig(folder)); }

VitFolder ReadVitConfig(const HuggingFaceConfig& file) {
  if (!file.Has("model_type")) Fail(file.path(), ": it lacks model_type");
  file.Require("model_type", {"vit"});
  VitFolder vit;
  VitConfig& c = vit.config;
  c.layers = file.Number("num_hidden_layers", 10'000, 12);
  c.width = file.Number("hidden_size", kMany, 768);
  c.heads = file.Number("num_attention_heads", kMany, 12);
  c.inner = file.Number("intermediate_size", kMany, 3072);
  c.patch = file.Number("patch_size", kMany, 16);
  c.norm_eps = file.Real("layer_norm_eps", 1e-12);
  vit.side = file.Number("image_size", kMany, 224);
  vit.channels = file.Number("num_channels", kMany, 3);
  c.classes = file.Entries("id2label", file.Number("num_labels", kMany, 2));
  if (c.width % c.heads != 0)
    Fail(file.path(), ": num_attention_heads is ", c.heads, ", but must divide hidden_size, ", c.width);
  if (vit.side % c.patch != 0)
    Fail(file.path(), ": patch_size is ", c.patch, ", but must divide image_size, ", vit.side);
  file.Require("hidden_act", {"gelu"});
  file.Require("qkv_bias", {true});
  file.Require("quantization_config", {nullptr});
  return vit;
}

std::string VitConfigText(const VitFolder& vit, const HuggingFaceConfig* theirs) {
  const VitConfig& c = vit.config;
  if (theirs) {
    json now = json::parse(VitConfigText(vit));
    const VitFolder there = ReadVitConfig(*theirs);
    if (theirs->Says("num_labels") && there.config.classes != c.classes) now["num_labels"] = c.classes;
    return ChangedConfig(*theirs, VitConfigText(there), now.dump());
  }
  json names = json::object(), numbers = json::object();
  for (int64_t i = 0; i < c.classes; ++i) {
    const std::string label = vit.labels.empty() ? Cat("LABEL_", i) : ValidUtf8(vit.labels[i]);
    names[std::to_string(i)] = label;
    numbers[label] = i;
  }
  const json config = {{"architectures", json::array({"ViTForImageClassification"})},
                       {"model_type", "vit"},
                       {"num_hidden_layers", c.layers},
                       {"hidden_size", c.width},
                       {"num_attention_heads", c.heads},
                       {"intermediate_size", c.inner > 0 ? c.inner : 4 * c.width},
                       {"patch_size", c.patch},
                       {"image_size", vit.side},
                       {"num_channels", vit.channels},
                       {"layer_norm_eps", c.norm_eps},
                       {"hidden_act", "gelu"},
                       {"qkv_bias", true},
                       {"hidden_dropout_prob", 0.0},
                       {"attention_probs_dropout_prob", 0.0},
                       {"id2label", names},
                       {"label2id", numbers}};
  return config.dump(2) + "\n";
}

std::vector<std::string> VitLabels(const HuggingFaceConfig& file) {
  const HuggingFaceConfig names = file.Part("id2label");
  std::vector<std::string> labels;
  bool named = false;
  for (const int64_t classes = file.Entries("id2label", 0); std::ssize(labels) < classes;) {
    const std::string number = std::to_string(labels.size());
    const std::optional<std::string> label = names.Text(number);
    if (!label) return {};
    named = named || *label != "LABEL_" + number;
    labels.push_back(*label);
  }
  return named ? labels : std::vector<std::string>();
}

ModelFormat VitFormat(const VitFolder& vit) {
  return {"vit",
          [bare = vit.config.classes == 0](const std::string& folder) {
            VitFolder there = ReadVitConfig(folder);
            if (bare) there.config.classes = 0;
            return std::make_shared<HuggingFaceReader>(folder, VitNames(there));
          },
          [=](std::shared_ptr<VariableSource> ours, const FolderFiles& files, const std::string& folder) {
            const auto theirs = ConfigIn(files, ours->where());
            WriteHuggingFace(std::move(ours), VitNames(vit), VitConfigText(vit, theirs ? &*theirs : nullptr),
                             files, folder);
          }};
}

}  // namespace examples
