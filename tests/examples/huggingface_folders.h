// Writes folders as people publish models: every spelling of an entry that was seen, entries that no program
// of ours knows, the files of tokenizers, and tensors in one file or several, in any type. A function of the
// seed.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "examples/gpt_huggingface.h"
#include "examples/llama_huggingface.h"
#include "examples/vit_huggingface.h"
#include "oneflow_like/checkpoint/name_table.h"

namespace oneflow_like {

using namespace examples;

class PublishedFolder {
 public:
  using Json = nlohmann::json;

  static const std::vector<std::string>& Kinds() {
    static const std::vector<std::string> kinds = {"llama2",  "llama3",    "qwen2", "tinyllama",
                                                   "mixtral", "qwen2_moe", "gpt2",  "vit"};
    return kinds;
  }

  PublishedFolder(const std::string& folder, const std::string& kind, uint64_t seed)
      : folder_(folder), kind_(kind), seed_(seed) {
    std::filesystem::create_directories(folder);
    config_ = kind == "gpt2" ? GptConfigJson() : kind == "vit" ? VitConfigJson() : LlamaConfigJson();
    AddUnknown();
    WriteJson("config.json", config_);
    if (kind != "vit") AddTokenizer();
    AddOthers();
    WriteTensors();
  }

  const std::string& model() const { return config_.at("model_type").get_ref<const std::string&>(); }
  // As --model of `checkpoint` names it, and the program that trains it.
  std::string format() const { return program() == "llama" ? "llama" : model(); }
  std::string program() const { return kind_ == "gpt2" ? "gpt" : kind_ == "vit" ? "vit" : "llama"; }
  const Json& config() const { return config_; }
  // The files that are to go where the model goes, but config.json; and those that are not.
  const std::map<std::string, std::string>& along() const { return along_; }
  const std::vector<std::string>& not_along() const { return not_along_; }
  NameTable names() const {
    const HuggingFaceConfig file(folder_);
    return kind_ == "gpt2"  ? Gpt2Names(ReadGpt2Config(file))
           : kind_ == "vit" ? VitNames(ReadVitConfig(file))
                            : LlamaNames(ReadLlamaConfig(file).config);
  }

 private:
  uint64_t Draw(uint64_t n) { return RandomBits(seed_, HashName(kind_), draws_++) % n; }
  template <typename T>
  T OneOf(std::vector<T> choices) {
    return choices[Draw(choices.size())];
  }
  // Sets the entry, to null, or not at all.
  void Maybe(Json* object, const std::string& name, const Json& value) {
    const uint64_t how = Draw(5);
    if (how > 0) (*object)[name] = how == 1 ? Json() : value;
  }
  Json Tokens(int64_t vocabulary) {
    const auto token = [&] { return static_cast<int64_t>(Draw(vocabulary)); };
    return OneOf<Json>({token(), Json::array({token(), token()}), nullptr, -1, Json::array()});
  }

  Json LlamaConfigJson() {
    const bool mixtral = kind_ == "mixtral", qwen_moe = kind_ == "qwen2_moe",
               qwen = kind_ == "qwen2" || qwen_moe;
    const int64_t vocabulary = 300;
    Json c = {{"architectures",
               {qwen_moe  ? "Qwen2MoeForCausalLM"
                : qwen    ? "Qwen2ForCausalLM"
                : mixtral ? "MixtralForCausalLM"
                          : "LlamaForCausalLM"}},
              {"model_type", qwen || mixtral ? kind_ : "llama"},
              {"num_hidden_layers", 1 + Draw(2)},
              {"hidden_size", 12},
              {"num_attention_heads", 3},
              {"intermediate_size", 10},
              {"vocab_size", vocabulary},
              {"max_position_embeddings", 64},
              {"rms_norm_eps", OneOf<double>({1e-5, 1e-6})},
              {"hidden_act", "silu"},
              {"bos_token_id", Draw(vocabulary)},
              {"eos_token_id", Tokens(vocabulary)}};
    Maybe(&c, "pad_token_id", OneOf<Json>({-1, 0, 7}));
    Maybe(&c, "num_key_value_heads", OneOf<Json>({3, 1}));
    Maybe(&c, "head_dim", 4);
    c["tie_word_embeddings"] = Draw(2) == 1;
    if (!qwen && !mixtral) Maybe(&c, "pretraining_tp", 1);
    if (!qwen && !mixtral) c["attention_bias"] = false;
    if (mixtral) {
      c["num_local_experts"] = 3;
      c["num_experts_per_tok"] = 1 + Draw(2);
      Maybe(&c, "router_aux_loss_coef", 0.02);
      Maybe(&c, "output_router_logits", false);
      if (Draw(2)) c["sliding_window"] = nullptr;
    }
    if (qwen_moe) {
      c["num_experts"] = 4;
      c["num_experts_per_tok"] = 1 + Draw(4);
      c["moe_intermediate_size"] = 6;
      c["shared_expert_intermediate_size"] = 14;
      Maybe(&c, "router_aux_loss_coef", 1e-3);
      if (Draw(2)) c["norm_topk_prob"] = Draw(2) == 1;
      if (Draw(2)) c["decoder_sparse_step"] = 1;
      Maybe(&c, "mlp_only_layers", Json::array());
    }
    if (qwen) {
      c["use_sliding_window"] = false;
      Maybe(&c, "sliding_window", 32768);
      Maybe(&c, "max_window_layers", 21);
      if (Draw(2)) c["layer_types"] = std::vector<std::string>(c["num_hidden_layers"], "full_attention");
    }
    AddRope(&c);
    return c;
  }

  void AddRope(Json* c) {
    const double base = OneOf<double>({10000.0, 500000.0, 1e6});
    Json scaling = nullptr;
    if (kind_ == "llama3")
      scaling = {{"rope_type", "llama3"},
                 {"factor", 8.0},
                 {"low_freq_factor", 1.0},
                 {"high_freq_factor", 4.0},
                 {"original_max_position_embeddings", 8192}};
    else if (Draw(3) == 0)
      scaling = {{OneOf<std::string>({"type", "rope_type"}), "linear"}, {"factor", 2.0}};
    if (Draw(2) == 0) {  // as newer versions write it
      Json parameters = scaling.is_null() ? Json{{"rope_type", "default"}} : scaling;
      parameters["rope_theta"] = base;
      (*c)["rope_parameters"] = parameters;
      if (Draw(2)) (*c)["rope_scaling"] = nullptr;
      return;
    }
    if (base != 10000 || Draw(2)) (*c)["rope_theta"] = base;
    if (!scaling.is_null() || Draw(2)) (*c)["rope_scaling"] = scaling;
    if (Draw(2)) (*c)["rope_parameters"] = nullptr;
  }

  Json GptConfigJson() {
    const int64_t vocabulary = 257;
    Json c = {{"architectures", {"GPT2LMHeadModel"}},
              {"model_type", "gpt2"},
              {"n_layer", 2},
              {"n_embd", 12},
              {"n_head", 3},
              {"n_positions", 24},
              {"vocab_size", vocabulary},
              {"bos_token_id", Draw(vocabulary)},
              {"eos_token_id", Tokens(vocabulary)},
              {"resid_pdrop", 0.25},
              {"summary_type", "cls_index"},
              {"task_specific_params", {{"text-generation", {{"do_sample", true}, {"max_length", 50}}}}}};
    if (Draw(2)) c["n_ctx"] = 24;
    Maybe(&c, "n_inner", nullptr);
    if (Draw(2)) c["activation_function"] = "gelu_new";
    if (Draw(2)) c["layer_norm_epsilon"] = 1e-5;
    return c;
  }

  Json VitConfigJson() {
    Json c = {{"architectures", {"ViTForImageClassification"}},
              {"model_type", "vit"},
              {"num_hidden_layers", 1},
              {"hidden_size", 12},
              {"num_attention_heads", 3},
              {"intermediate_size", 20},
              {"patch_size", 4},
              {"image_size", 8},
              {"num_channels", 3},
              {"encoder_stride", 16},
              {"qkv_bias", true}};
    const char* const names[] = {"tench, Tinca tinca",
                                 "goldfish",
                                 "gro\u00dfer Hai",
                                 "ni\u00f1o",
                                 "\u732b",
                                 "egg \"nog\"",
                                 "it's",
                                 "a/b",
                                 "c",
                                 "d"};
    if (Draw(4) == 0) {
      c["num_labels"] = 10;
    } else {
      for (int i = 0; i < 10; ++i) c["id2label"][std::to_string(i)] = names[i];
      if (Draw(2))
        for (int i = 0; i < 10; ++i) c["label2id"][names[i]] = i;
    }
    Maybe(&c, "problem_type", "single_label_classification");
    return c;
  }

  void AddUnknown() {
    const std::string type = OneOf<std::string>({"float32", "bfloat16", "float16"});
    const uint64_t spelling = Draw(4);
    if (spelling == 1 || spelling == 3) config_["torch_dtype"] = type;
    if (spelling >= 2) config_["dtype"] = type;
    Maybe(&config_, "transformers_version", "4.41.2");
    Maybe(&config_, "_name_or_path", "somebody/some \"model\"");
    Maybe(&config_, "use_cache", true);
    Maybe(&config_, "quantization_config", nullptr);
    Maybe(&config_, "auto_map", {{"AutoModelForCausalLM", "modeling_x.XModel"}});
    for (uint64_t i = Draw(6); i > 0; --i)
      config_["entry " + std::to_string(i) + "\u00e9"] = OneOf<Json>({1,
                                                                      -2.5e-300,
                                                                      "a\nb\u2028",
                                                                      nullptr,
                                                                      true,
                                                                      Json::array({1, {{"a", {}}}}),
                                                                      {{"deep", {{"er", {1, 2, 3}}}}},
                                                                      18446744073709551615u});
  }

  std::string PrintedJson(const Json& value) {
    std::string text = value.dump(OneOf<int>({-1, 2, 4}), ' ', Draw(2) == 1);
    if (Draw(4) == 0) {
      std::string lines;
      for (char c : text) lines += c == '\n' ? std::string("\r\n") : std::string(1, c);
      text = "\xEF\xBB\xBF" + lines;
    }
    return text + OneOf<std::string>({"", "\n"});
  }
  void WriteFile(const std::string& name, const std::string& bytes) {
    const std::filesystem::path path = std::filesystem::path(folder_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
  }
  void WriteJson(const std::string& name, const Json& value) { WriteFile(name, PrintedJson(value)); }
  void Along(const std::string& name, const std::string& bytes) {
    WriteFile(name, bytes);
    along_[name] = bytes;
  }
  void NotAlong(const std::string& name, const std::string& bytes) {
    WriteFile(name, bytes);
    not_along_.push_back(name);
  }

  // Of bytes, with a gap in its numbers; of Llama 2's family in the form that theirs has.
  void AddTokenizer() {
    const bool bytes = kind_ == "llama3" || kind_ == "qwen2" || kind_ == "gpt2";
    Json vocab;
    int next = 0;
    for (int b = 0; b < 256; ++b) {
      const bool shown = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const int code = shown ? b : 0x100 + next++;
      constexpr char kHex[] = "0123456789ABCDEF";
      std::string name = {'<', '0', 'x', kHex[b >> 4], kHex[b & 15], '>'};
      if (bytes)
        name = code < 0x80
                   ? std::string(1, static_cast<char>(code))
                   : std::string{static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
      vocab[name] = b + (kind_ != "gpt2" && b >= 100 ? 5 : 0);  // a gap
    }
    Json file = {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}},
                 {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                 {"decoder", {{"type", "ByteLevel"}}}};
    if (!bytes) {
      file["model"]["byte_fallback"] = true;
      file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"split", false}};
      file["decoder"] = {{"type", "Sequence"},
                         {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}};
    }
    if (kind_ != "gpt2") file["added_tokens"] = {{{"id", 265}, {"content", "<|eot_id|>"}, {"special", true}}};
    Along("tokenizer.json", PrintedJson(file));
    if (!bytes) Along("tokenizer.model", std::string("\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02\xff", 17));
  }

  void AddOthers() {
    if (kind_ != "vit" && Draw(4) > 0) {
      Json generation = {{"do_sample", true}, {"temperature", 0.6}};
      Maybe(&generation, "eos_token_id", Tokens(257));
      Along("generation_config.json", PrintedJson(generation));
    }
    if (kind_ == "vit")
      Along("preprocessor_config.json", PrintedJson({{"image_mean", {0.5, 0.5, 0.25}}, {"do_resize", true}}));
    const std::pair<const char*, const char*> some[] = {
        {"tokenizer_config.json", R"({"chat_template": "{% for m in messages %}{{ m }}{% endfor %}"})"},
        {"special_tokens_map.json", R"({"eos_token": {"content": "<|eot_id|>"}})"},
        {"chat_template.jinja", "{% for m in messages %}\r\n{{ m }}{% endfor %}"},
        {"additional_chat_templates/tool_use.jinja", "{{ tools }}"},
        {"added_tokens.json", R"({"<|tool|>": 270})"},
        {"merges.txt", "#version: 0.2\n"},
        {"vocab.json", "{}"},
        {"modeling_x.py", "class XModel:\n  pass\n"},
        {"LICENSE.txt", "Do as you like.\n"},
        {"Notice", "\xff\xfe not text"}};
    for (const auto& [name, text] : some)
      if (Draw(3) > 0) Along(name, text);
    const std::pair<const char*, const char*> others[] = {{"README.md", "# A model"},
                                                          {".gitattributes", "*.bin lfs"},
                                                          {"pytorch_model.bin", "PK"},
                                                          {"training_args.bin", "PK"},
                                                          {"token", "a secret"},
                                                          {"trainer_state.json", "{}"},
                                                          {"tokenizer.onnx", "x"},
                                                          {"vocab/words.txt", "in a folder"},
                                                          {".tokenizer.json.lock", "hidden"},
                                                          {"additional_chat_templates/notes.md", "x"}};
    for (const auto& [name, text] : others)
      if (Draw(3) > 0) NotAlong(name, text);
  }

  struct Tensor {
    std::string type, bytes;
    std::vector<int64_t> shape;
  };
  Tensor Floats(const std::string& type, const Dims& shape, uint64_t seed) {
    Tensor tensor{type, "", {shape.begin(), shape.end()}};
    for (int64_t i = 0; i < shape.elements(); ++i) {
      // Few digits, which any of the types holds.
      const float value = (static_cast<float>(RandomBits(seed, 3, i) % 32) - 16) / 32;
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      if (type == "BF16") bits >>= 16;
      if (type == "F16")
        bits = value == 0
                   ? 0
                   : (bits >> 16 & 0x8000) | (((bits >> 23 & 0xFF) - 112) << 10) | (bits >> 13 & 0x3FF);
      tensor.bytes.append(reinterpret_cast<const char*>(&bits), type == "F32" ? 4 : 2);
    }
    return tensor;
  }

  void WriteTensors() {
    std::map<std::string, Tensor> all;
    const std::string type = OneOf<std::string>({"F32", "BF16", "F16"});
    const NameTable table = names();
    const bool prefix = Draw(2) == 1;
    for (const NameRow& row : table.rows) {
      std::string name = row.theirs;
      if (!prefix && name.rfind(table.optional_prefix, 0) == 0) name.erase(0, table.optional_prefix.size());
      all[name] = Floats(type, RowLayout(row).shape, HashName(row.theirs) + seed_);
    }
    // What older or other versions have besides: masks, frequencies, the tied output, in whatever type.
    std::vector<std::string> ignored = {"model.layers.0.self_attn.rotary_emb.inv_freq"};
    if (kind_ == "gpt2") ignored = {"h.0.attn.bias", "transformer.h.1.attn.masked_bias", "lm_head.weight"};
    if (kind_ == "vit") ignored = {"vit.pooler.dense.weight"};
    if (config_.value("tie_word_embeddings", false)) ignored.push_back("lm_head.weight");
    for (const std::string& name : ignored) {
      const auto [dtype, size] = OneOf<std::pair<std::string, int>>({{"F64", 8},
                                                                     {"I8", 1},
                                                                     {"U16", 2},
                                                                     {"I16", 2},
                                                                     {"U32", 4},
                                                                     {"F8_E4M3", 1},
                                                                     {"F32", 4},
                                                                     {"C64", 8}});
      if (Draw(4) > 0) all[name] = {dtype, std::string(6 * size, '\1'), {2, 3}};
    }
    const int shards = Draw(2) == 0 ? 1 : 2;
    std::map<std::string, Tensor> parts[2];
    Json map = Json::object();
    for (const auto& [name, tensor] : all) {
      const int shard = static_cast<int>(Draw(shards));
      parts[shard][name] = tensor;
      map[name] = "model-0000" + std::to_string(shard + 1) + "-of-00002.safetensors";
    }
    if (shards == 1) return WriteShard("model.safetensors", parts[0]);
    for (int shard = 0; shard < 2; ++shard)
      WriteShard("model-0000" + std::to_string(shard + 1) + "-of-00002.safetensors", parts[shard]);
    WriteJson("model.safetensors.index.json", {{"metadata", {{"total_size", 1}}}, {"weight_map", map}});
  }

  void WriteShard(const std::string& name, const std::map<std::string, Tensor>& tensors) {
    Json header = {{"__metadata__", {{"format", "pt"}}}};
    std::string data;
    for (const auto& [tensor, about] : tensors) {
      header[tensor] = {{"dtype", about.type},
                        {"shape", about.shape},
                        {"data_offsets", {data.size(), data.size() + about.bytes.size()}}};
      data += about.bytes;
    }
    const std::string text = header.dump();
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
    WriteFile(name, length + text + data);
  }

  const std::string folder_, kind_;
  const uint64_t seed_;
  uint64_t draws_ = 0;
  Json config_;
  std::map<std::string, std::string> along_;
  std::vector<std::string> not_along_;
};

}  // namespace oneflow_like
