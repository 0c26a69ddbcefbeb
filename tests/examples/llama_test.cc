// The Llama of the examples: one loss curve for each kind of it on every mesh, its size, its names elsewhere,
// and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "examples/llama_huggingface.h"
#include "oneflow_like/checkpoint/reader.h"
#include "tests/examples/llama_small.h"
#include "tests/examples/one_curve.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/processes.h"

namespace oneflow_like {

using namespace examples;
namespace {

using nlohmann::json;

struct LlamaRun : CurveRun {
  std::string sequence = "";
  bool ulysses = false;  // over sp
};

constexpr int kSteps = 20;

std::vector<float> Losses(LlamaConfig config, const LlamaRun& run) {
  Model model(run.mesh.find("pp=1") == std::string::npos ? FullMesh(run.mesh) : Mesh::Parse(run.mesh),
              ModelOptionsOf(run));
  config.sequence = run.sequence;
  if (run.ulysses) config.ulysses = "sp";
  TrainOptions train = TrainOptionsOf(run);
  train.clip_norm = 1;
  train.lr_schedule = {.kind = Schedule::Kind::kLinearWarmup, .warmup = 5};
  Session session = TrainLlama(model, config, train, AdamW{.lr = 2e-3});
  return LossesOf(session, kSteps, [&](int64_t step) { return LlamaFeeds(step, config.vocabulary); });
}

TEST(Llama, HasOneLossCurveOnEveryMesh) {
  using enum PipelineSchedule;
  const std::vector<LlamaRun> runs = {
      {"cpu:dp=1", 4},
      {"cpu:dp=2"},
      {"cpu:dp=3", 3},
      {"cpu:tp=2"},
      {"cpu:tp=3", 2},
      {"cpu:pp=2", 8},
      {"cpu:pp=4", 8, kGPipe},
      {"cpu:pp=4", 8, kZeroBubble},
      {"cpu:pp=2", 4, kInterleaved, 0, Recompute::kNone, 2},
      {"cpu:dp=2,tp=2,pp=2", 4},
      {"cpu:dp=4", 2, k1F1B, 3},
      {"cpu:dp=2,tp=2,pp=2", 4, k1F1B, 2, Recompute::kFull},
      {"cpu:dp=2,pp=2", 4, kZeroBubble, 1, Recompute::kSelective},
      {{"cpu:dp=2,tp=2,pp=2", 4, k1F1B, 3, Recompute::kSelective}, "tp"},
      {{"cpu:tp=2"}, "tp"},
      {{"cpu:dp=2,tp=1,pp=1,cp=2", 2}, "cp"},
      {{"cpu:dp=1,tp=1,pp=1,sp=3"}, "sp", true},
      {{"cpu:dp=1,tp=2,pp=1,cp=2,sp=2", 2}, "cp*sp*tp", true},
      {{"cpu:dp=2,tp=1,pp=1,ep=2", 2}},
  };
  for (const SmallLlama& llama : SmallLlamas()) {
    const std::vector<float> one = Losses(llama.config, {"cpu:dp=1"});
    EXPECT_NEAR(one[0], std::log(llama.config.vocabulary), 0.2);
    EXPECT_LT(one[kSteps - 1], one[0] - 0.2) << "it learns";
    for (const LlamaRun& run : runs) {
      if (llama.config.experts.experts > 0 && !run.sequence.empty()) continue;  // their room is of sequences
      EXPECT_LE(Apart(one, Losses(llama.config, run)), 1e-5)
          << llama.name << " " << TextOf(run) << " cut over " << run.sequence;
    }
  }
}

TEST(Llama, HasAsManyWeightsAsItSays) {
  for (const SmallLlama& llama : SmallLlamas()) {
    Model model(FullMesh("cpu:dp=1"));
    Session train = TrainLlama(model, llama.config, {}, AdamW{});
    int64_t weights = 0;
    for (const std::string& name : model.Variables())
      if (name.find(':') == std::string::npos) weights += model.Read(name).elements();
    EXPECT_EQ(weights, LlamaWeights(llama.config)) << llama.name;
  }
  EXPECT_NEAR(LlamaWeights(LlamaOfSize("160m")), 160.0e6, 0.1e6);
  EXPECT_EQ(LlamaWeights(LlamaOfSize("1b")), 1235814400);
  EXPECT_EQ(LlamaWeights(LlamaOfSize("8b")), 8030261248);
  EXPECT_EQ(LlamaWeights(LlamaOfSize("70b")), 70553706496);
  EXPECT_EQ(LlamaWeights(LlamaOfSize("mixtral_8x7b")), 46702792704);
}

TEST(Llama, SaysWhatDoesNotFit) {
  auto error = [](auto change, const char* mesh = "cpu:dp=1") {
    LlamaConfig config;
    change(&config);
    return ErrorOf([&] { CheckLlama(config, FullMesh(mesh)); });
  };
  EXPECT_EQ(error([](LlamaConfig* c) { c->kv_heads = 3; }),
            "llama: kv_heads is 3 and does not divide the 4 heads");
  EXPECT_EQ(error([](LlamaConfig* c) { c->inner = 0; }), "llama: inner is 0 but must be at least 1");
  EXPECT_NE(error([](LlamaConfig* c) { c->head_width = 7; }).find("head_width is 7"), std::string::npos);
  EXPECT_NE(error([](LlamaConfig*) {}, "cpu:pp=5").find("pp has 5 stages but there are only 4 layers"),
            std::string::npos);
  EXPECT_EQ(error([](LlamaConfig* c) { c->experts = {.experts = 4, .top_k = 5}; }),
            "llama: top_k is 5, must be at least 1, and at most the 4 experts");
  EXPECT_EQ(ErrorOf([] { LlamaOfSize("2b"); }),
            "--size=2b: must be tiny, 160m, 1b, 8b, 70b, mixtral_tiny, qwen_moe_tiny or mixtral_8x7b");
}

// --- Names elsewhere ---

TEST(Llama, GoesOutAndComesBackBitForBit) {
  TestFolder folder("llama_test");
  for (const SmallLlama& llama : SmallLlamas()) {
    Model model(FullMesh("cpu:tp=2"));
    Session train = TrainLlama(model, llama.config, {}, AdamW{.lr = 1e-2});
    train.Run(LlamaFeeds(0, llama.config.vocabulary)).Wait();
    const std::string saved = Save(model, folder / llama.name).Wait(), out = folder / Cat(llama.name, ".hf");
    LlamaFormat(llama.config, 77).write(std::make_shared<CheckpointReader>(saved), {}, out);

    const LlamaFolder read = ReadLlamaConfig(out);
    EXPECT_EQ(read.context, 77);
    EXPECT_EQ(LlamaConfigText(read.config, 77), LlamaConfigText(llama.config, 77));
    Model other(FullMesh("cpu:dp=2,pp=2"));
    Session again = TrainLlama(other, read.config, {}, AdamW{});
    ConvertedSource weights(LlamaFormat({}, 1).read(out), {.dtype = DType::kFloat32});
    LoadWeights(other, weights);
    for (const std::string& name : model.Variables())
      if (name.find(':') == std::string::npos) {
        EXPECT_TRUE(SameBytes(model.Read(name), other.Read(name))) << llama.name << " " << name;
      }
  }
}

TEST(Llama, ReadsPositionsAsOldAndNewVersionsWriteThem) {
  TestFolder folder("llama_config_test");
  const json plain = json::parse(LlamaConfigText({}, 8));
  auto read = [&](const json& config) {
    folder.Write("config.json", config.dump());
    return ReadLlamaConfig(folder / "").config.rope;
  };
  json config = plain;
  config.erase("rope_theta");
  EXPECT_EQ(read(config).base, 10000);
  config["rope_parameters"] = {{"rope_theta", 7e5}, {"rope_type", "default"}};
  EXPECT_EQ(read(config).base, 7e5);
  EXPECT_EQ(read(config).trained_length, 0);
  const json stretched = {{"rope_type", "llama3"}, {"rope_theta", 7e5},
                          {"factor", 32.0},        {"low_freq_factor", 1.5},
                          {"high_freq_factor", 3}, {"original_max_position_embeddings", 8192}};
  for (const char* place : {"rope_parameters", "rope_scaling"}) {
    config = plain;
    config[place] = stretched;
    const RopeOptions rope = read(config);
    EXPECT_EQ(rope.trained_length, 8192);
    EXPECT_EQ(rope.factor, 32);
    EXPECT_EQ(rope.low_turns, 1.5);
    EXPECT_EQ(rope.high_turns, 3);
  }
  config = plain;
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(read(config).scale, 2);
  // Either may be null; where both scale, rope_scaling does.
  config["rope_parameters"] = nullptr;
  EXPECT_EQ(read(config).scale, 2);
  config["rope_parameters"] = {{"rope_theta", 7e5}, {"rope_type", "linear"}, {"factor", 3.0}};
  EXPECT_EQ(read(config).scale, 2);
  EXPECT_EQ(read(config).base, 7e5);
  config["rope_scaling"] = nullptr;
  EXPECT_EQ(read(config).scale, 3);
}

// What is not understood, or says the same in other words, stays as it is written.
TEST(Llama, ChangesOfAConfigWhatTheModelHasOtherwise) {
  const json theirs = {{"model_type", "llama"},
                       {"num_hidden_layers", 4},
                       {"hidden_size", 128},
                       {"num_attention_heads", 4},
                       {"intermediate_size", 384},
                       {"vocab_size", 256},
                       {"max_position_embeddings", 64},
                       {"num_key_value_heads", nullptr},
                       {"rope_parameters", {{"rope_theta", 7e5}, {"rope_type", "linear"}, {"factor", 2}}},
                       {"eos_token_id", {1, 2}},
                       {"bos_token_id", nullptr},
                       {"pad_token_id", -1},
                       {"new", {{"entry", {1, "a"}}}}};
  const HuggingFaceConfig file("a/config.json", theirs.dump());
  auto [config, context] = ReadLlamaConfig(file);
  EXPECT_EQ(json::parse(LlamaConfigText(config, context, &file)), theirs);
  config.rope.scale = 4;
  config.norm_eps = 1e-3;
  json wanted = theirs;
  wanted["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  wanted["rms_norm_eps"] = 1e-3;
  wanted["max_position_embeddings"] = 128;
  const std::string changed = LlamaConfigText(config, 128, &file);
  EXPECT_EQ(json::parse(changed), wanted);
  EXPECT_EQ(ReadLlamaConfig(HuggingFaceConfig("b/config.json", changed)).config.rope.scale, 4);
}

TEST(Llama, NamesEveryMistakeInAConfig) {
  TestFolder folder("llama_config_test");
  const json good = json::parse(LlamaConfigText({}, 8));
  auto refuse = [&](const json& config, const std::string& wanted) {
    folder.Write("config.json", config.dump());
    const std::string error = ErrorOf([&] { ReadLlamaConfig(folder / ""); });
    EXPECT_EQ(error.rfind(folder / "/config.json: ", 0), 0u) << error;
    EXPECT_NE(error.find(wanted), std::string::npos) << wanted << "\n" << error;
  };
  for (const char* name : {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size",
                           "vocab_size", "model_type"}) {
    json bad = good;
    bad.erase(name);
    refuse(bad, Cat("it lacks ", name));
  }
  const std::pair<const char*, json> wrong[] = {{"model_type", "gpt2"},
                                                {"num_hidden_layers", 0},
                                                {"hidden_size", "128"},
                                                {"num_attention_heads", 1.5},
                                                {"num_key_value_heads", 3},
                                                {"rms_norm_eps", -1e-5},
                                                {"rms_norm_eps", "small"},
                                                {"rope_theta", 0},
                                                {"rope_scaling", 3},
                                                {"tie_word_embeddings", 1},
                                                {"hidden_act", "gelu"},
                                                {"attention_bias", true},
                                                {"mlp_bias", true},
                                                {"use_sliding_window", true},
                                                {"partial_rotary_factor", 0.5}};
  for (const auto& [name, value] : wrong) {
    json bad = good;
    bad[name] = value;
    refuse(bad, Cat(name, " is ", value.dump()));
  }
  json bad = good;
  bad["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  refuse(bad, "rope_scaling.rope_type is \"yarn\"");
  bad["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 4.0}};
  refuse(bad, "it lacks rope_scaling.low_freq_factor");
  bad = good;
  bad["layer_types"] = {"full_attention", "sliding_attention"};
  refuse(bad, "layer_types is [\"full_attention\",\"sliding_attention\"], but");
  bad = good;
  bad["quantization_config"] = {{"quant_method", "gptq"}};
  refuse(bad, "quantization_config is {\"quant_method\":\"gptq\"}, but");
  const json mixtral = json::parse(LlamaConfigText(LlamaOfSize("mixtral_tiny"), 8)),
             qwen = json::parse(LlamaConfigText(LlamaOfSize("qwen_moe_tiny"), 8));
  for (const auto& [name, value] : {std::pair<const char*, json>{"num_local_experts", 1},
                                    {"num_experts_per_tok", 0},
                                    {"sliding_window", 4096}}) {
    bad = mixtral;
    bad[name] = value;
    refuse(bad, Cat(std::string(name) == "num_local_experts" ? "num_experts_per_tok" : name, " is "));
  }
  for (const auto& [name, value] : {std::pair<const char*, json>{"decoder_sparse_step", 2},
                                    {"mlp_only_layers", {0}},
                                    {"qkv_bias", false}}) {
    bad = qwen;
    bad[name] = value;
    refuse(bad, Cat(name, " is ", value.dump()));
  }
  bad = qwen;
  bad.erase("shared_expert_intermediate_size");
  refuse(bad, "it lacks shared_expert_intermediate_size");
  bad = good;
  bad["head_dim"] = 31;
  refuse(bad, "31 wide, but must be even");
}

}  // namespace
}  // namespace oneflow_like
