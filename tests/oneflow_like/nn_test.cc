// Layers of oneflow_like/nn.h: one loss curve on every mesh and for every number of micro-batches, state of
// batch norm, stages said once, and wrong uses.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "oneflow_like/model/model_impl.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

struct Setting {
  const char* mesh;
  int micro_batches;
};

// The losses of some steps of `loss` on each setting agree.
void ExpectOneCurve(const std::vector<Setting>& settings, const std::function<Tensor(Model*)>& loss,
                    const std::function<Feeds(int)>& feeds, const Optimizer& optimizer,
                    double tolerance = 1e-5,
                    const std::function<void(Model*, const std::string&)>& look = {}) {
  std::vector<float> first;
  for (const Setting& setting : settings) {
    const std::string where = Cat(setting.mesh, " in ", setting.micro_batches);
    Model model(FullMesh(setting.mesh));
    TrainOptions options;
    options.micro_batches = setting.micro_batches;
    Session train = Train(loss(&model), optimizer, options);
    std::vector<float> losses;
    for (int step = 0; step < 6; ++step) losses.push_back(train.Run(feeds(step)).Scalar("loss"));
    if (first.empty()) first = losses;
    for (size_t i = 0; i < losses.size(); ++i)
      ASSERT_NEAR(losses[i], first[i], tolerance * (std::abs(first[i]) + .1)) << where << " step " << i;
    EXPECT_LT(losses.back(), losses[0]) << where;
    if (look) look(&model, where);
  }
}

const std::vector<Setting> kFlat = {{"cpu:dp=1", 1},      {"cpu:dp=2", 1}, {"cpu:dp=1", 2},
                                    {"cpu:dp=1", 4},      {"cpu:tp=2", 2}, {"cpu:dp=2,tp=2", 2},
                                    {"cpu:dp=3,tp=2", 1}, {"cpu:dp=4", 1}};

TEST(Nn, TransformersOfAllKindsHaveOneCurve) {
  std::vector<Setting> settings = kFlat;
  settings.push_back({"cpu:pp=2", 2});
  settings.push_back({"cpu:dp=2,tp=2,pp=3", 3});
  settings.push_back({"cpu:pp=3", 5});
  for (int kind = 0; kind < 5; ++kind) {
    nn::TransformerOptions block;
    block.attention = {.heads = 4, .causal = kind != 1, .bias = kind < 2};
    if (kind == 2) block.attention.kv_heads = 2;
    if (kind == 2) block.attention.rope = RopeOptions{};
    if (kind == 4) block.attention.lora = 3;
    block.rms_norm = block.swiglu = kind >= 2;
    block.norm_first = kind != 1;
    block.mlp.inner = kind == 3 ? 0 : 24;
    block.dropout = kind == 0 ? .2 : 0;
    block.attention.dropout = block.dropout;
    auto loss = [&](Model* model) {
      Tensor ids = model->Input("ids", {12, 7}, DType::kInt32, {{"dp", S(0)}});
      Tensor targets = model->Input("targets", {12, 7}, DType::kInt32, {{"dp", S(0)}});
      Scope s = model->scope();
      Tensor table = nn::EmbeddingTable(s / "embedding", 11, 16, {.init = Normal(.3)});
      Tensor x = nn::layers(s, embedding(table, ids), 3, [&](Scope here, Tensor y, int64_t) {
        return nn::TransformerBlock(here, y, block);
      });
      x = nn::RmsNorm(s / "norm", x);
      return mean(cross_entropy(einsum("bsw,vw->bsv", x, to_stage_of(table, x)), targets));
    };
    auto feeds = [](int step) {
      return Feeds{{"ids", Ids(step, {12, 7}, 11)}, {"targets", Ids(step, {12, 7}, 11)}};
    };
    SCOPED_TRACE(kind);
    ExpectOneCurve(settings, loss, feeds, AdamW{.lr = .02}, 2e-5);
  }
}

TEST(Nn, GatedLayersOfAnyActivationHaveOneCurve) {
  for (int kind = 0; kind < 3; ++kind) {
    nn::MlpOptions options;
    if (kind > 0) options.activation = [](Tensor x) { return relu(x); };
    options.bias = kind < 2;
    options.inner = kind == 1 ? 12 : 0;
    auto loss = [&](Model* model) {
      Tensor x = model->Input("x", {12, 8}, DType::kFloat32, {{"dp", S(0)}});
      return mean(square(nn::GatedMlp(model->scope(), x, options) - scale(x, .5)));
    };
    auto feeds = [](int step) { return Feeds{{"x", Floats(step, {12, 8})}}; };
    ExpectOneCurve(kFlat, loss, feeds, AdamW{.lr = .02}, 2e-5, [&](Model* model, const std::string& where) {
      // Weights with two states each, and the number of updates.
      EXPECT_EQ(model->Variables().size(), options.bias ? 6 * 3 + 1 : 3 * 3 + 1) << where;
    });
  }
  // The activation is of the gate alone; SwiGlu's is silu.
  Model model(FullMesh("cpu:dp=1"));
  Tensor x = model.Input("x", {4, 8}, DType::kFloat32);
  Scope s = model.scope();
  nn::MlpOptions plain{.bias = false, .activation = [](Tensor y) { return tanh(y); }};
  Tensor gated = nn::GatedMlp(s, x, plain), swiglu = nn::SwiGlu(s, x);
  Tensor gate = matmul(x, model.Find("gate")), up = matmul(x, model.Find("up")), down = model.Find("down");
  Session session = Evaluate({{"gated", max(abs(gated - matmul(tanh(gate) * up, down)))},
                              {"swiglu", max(abs(swiglu - matmul(silu(gate) * up, down)))}});
  StepResult result = session.Run({{"x", Floats(3, {4, 8})}});
  EXPECT_LT(result.Scalar("gated"), 1e-6);
  EXPECT_LT(result.Scalar("swiglu"), 1e-6);
}

// Adapters start by changing nothing, and are all that is trained, kept state of, and sent.
TEST(Nn, AdaptersAloneAreTrained) {
  auto losses = [](const char* mesh, int64_t rank) {
    ModelOptions options;
    if (rank > 0) options.weights = {{"*", {.trainable = false}}, {"*_lora_*", {.trainable = true}}};
    Model model(FullMesh(mesh), options);
    Tensor x = model.Input("x", {6, 5, 8}, DType::kFloat32, {{"dp", S(0)}});
    nn::TransformerOptions block;
    block.attention = {.heads = 2, .lora = rank};
    Tensor y = nn::layers(model.scope(), x, 2,
                          [&](Scope s, Tensor in, int64_t) { return nn::TransformerBlock(s, in, block); });
    Session train = Train(mean(square(y - scale(x, .5))), AdamW{.lr = .01});
    const HostTensor before = rank > 0 ? model.Read("block0/mlp/up") : HostTensor();
    std::vector<float> found;
    for (int step = 0; step < 4; ++step)
      found.push_back(train.Run({{"x", Floats(step, {6, 5, 8})}}).Scalar("loss"));
    if (rank > 0) {
      const HostTensor after = model.Read("block0/mlp/up");
      EXPECT_EQ(std::memcmp(before.data.get(), after.data.get(), before.bytes()), 0);
      for (const std::string& name : model.Variables())
        EXPECT_TRUE(name.find(':') == std::string::npos || name.find("_lora_") != std::string::npos ||
                    name == "train:updates")
            << name;
    }
    return found;
  };
  const std::vector<float> one = losses("cpu:dp=1", 3), whole = losses("cpu:dp=1", 0);
  EXPECT_EQ(one[0], whole[0]);
  EXPECT_NE(one[3], whole[3]);
  for (const char* mesh : {"cpu:dp=2", "cpu:tp=2", "cpu:pp=2"}) {
    const std::vector<float> other = losses(mesh, 3);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(other[i], one[i], 1e-5 * one[i]) << mesh << " " << i;
  }
}

TEST(Nn, ColumnAndRowParallelLinearSendOneSum) {
  auto loss = [](Model* model) {
    Tensor x = model->Input("x", {12, 6}, DType::kFloat32, {{"dp", S(0)}});
    Scope s = model->scope();
    Tensor h = relu(nn::Linear(s / "up", x, 8, {.parallel = nn::Parallel::kColumns}));
    return mean(square(nn::Linear(s / "down", h, 2, {.parallel = nn::Parallel::kRows}) - slice(x, 1, 0, 2)));
  };
  ExpectOneCurve(
      kFlat, loss,
      [](int step) {
        return Feeds{{"x", Floats(step, {12, 6})}};
      },
      Sgd{.lr = .1});
}

// A small residual network. Whole-batch statistics everywhere; in parts they are those of the parts
// everywhere.
TEST(Nn, BatchNormHasOneCurveAndOneRunningAverage) {
  for (int64_t parts : {1, 4}) {
    auto loss = [&](Model* model) {
      Tensor x = model->Input("x", {12, 6, 6, 3}, DType::kFloat32, {{"dp", S(0)}});
      Tensor y = model->Input("y", {12}, DType::kInt32, {{"dp", S(0)}});
      Scope s = model->scope();
      const nn::BatchNormOptions norm{.parts = parts};
      Tensor h = nn::ConvBlock(s / "stem", x, 8, 3, {.norm = norm});
      h = relu(h + nn::ConvBlock(s / "body", h, 8, 3, {.activation = {}, .norm = norm}));
      h = nn::ConvBlock(s / "down", h, 8, 3, {.stride = 2, .groups = 2, .norm = norm});
      return mean(cross_entropy(nn::Linear(s / "head", mean(h, {1, 2}), 5), y));
    };
    auto feeds = [](int step) { return Feeds{{"x", Floats(1, {12, 6, 6, 3})}, {"y", Ids(1, {12}, 5)}}; };
    std::vector<Setting> settings = {
        {"cpu:dp=1", 1}, {"cpu:dp=2", 1}, {"cpu:dp=1", 2}, {"cpu:dp=2", 2}, {"cpu:dp=4", 1}};
    for (const char* mesh : {"cpu:dp=1", "cpu:dp=2", "cpu:tp=2", "cpu:dp=3"})
      if (parts == 4) settings.push_back({mesh, 4});
    if (parts == 1) settings.push_back({"cpu:dp=1", 3});
    if (parts == 1) settings.push_back({"cpu:dp=3", 1});
    std::vector<float> first;
    auto look = [&](Model* model, const std::string& where) {
      const HostTensor mean = model->Read("stem/norm/mean"), variance = model->Read("body/norm/variance");
      std::vector<float> now(mean.as<float>(), mean.as<float>() + 8);
      now.insert(now.end(), variance.as<float>(), variance.as<float>() + 8);
      if (first.empty()) first = now;
      for (int i = 0; i < 16; ++i) EXPECT_NEAR(now[i], first[i], 1e-5) << where << " " << i;
      EXPECT_NE(now[0], 0);
    };
    SCOPED_TRACE(parts);
    ExpectOneCurve(settings, loss, feeds, Sgd{.lr = .02, .momentum = .5}, 5e-5, look);
  }
}

// Evaluation uses the averages that training keeps: by hand from the batches.
TEST(Nn, BatchNormEvaluatesByRunningAverages) {
  Model model(FullMesh("cpu:dp=2"));
  Tensor x = model.Input("x", {6, 2}, DType::kFloat32, {{"dp", S(0)}});
  Tensor y = nn::BatchNorm(model.scope() / "norm", x);
  Session train = Train(mean(square(y)), Sgd{.lr = 0});
  ModelGraph later = model.NewGraph("eval");
  Tensor z = later.Input("z", {1, 2}, DType::kFloat32);
  Session look = Evaluate({{"z", nn::BatchNorm(later.scope() / "norm", z, {.training = false})}});
  double mean[2] = {0, 0}, variance[2] = {1, 1};
  for (int step = 0; step < 3; ++step) {
    HostTensor batch = Floats(step, {6, 2});
    train.Run({{"x", batch}}).Wait();
    for (int c : {0, 1}) {
      double m = 0, v = 0;
      for (int r = 0; r < 6; ++r) m += batch.as<float>()[r * 2 + c] / 6;
      for (int r = 0; r < 6; ++r) v += std::pow(batch.as<float>()[r * 2 + c] - m, 2) / 5;
      mean[c] = .9 * mean[c] + .1 * m;
      variance[c] = .9 * variance[c] + .1 * v;
    }
  }
  HostTensor at = Floats(9, {1, 2});
  const HostTensor got = look.Run({{"z", at}}).Get("z");
  for (int c : {0, 1})
    EXPECT_NEAR(got.as<float>()[c], (at.as<float>()[c] - mean[c]) / std::sqrt(variance[c] + 1e-5), 1e-5);
}

// The states of a norm that stands on no stage, behind blocks and before them, lie where they are read.
TEST(Nn, BatchNormsBesideBlocksHaveOneCurve) {
  auto loss = [](Model* model) {
    Tensor x = model->Input("x", {12, 5}, DType::kFloat32, {{"dp", S(0)}});
    Scope s = model->scope();
    x = nn::layers(s, nn::BatchNorm(s / "before", x), 3,
                   [](Scope here, Tensor y, int64_t) { return y + relu(nn::Linear(here, y, 5)); });
    return mean(square(nn::BatchNorm(s / "behind", x) - 1));
  };
  auto look = [&](Model* model, const std::string& where) {
    for (const char* name : {"before/mean", "behind/mean"}) {
      const HostTensor mean = model->Read(name);
      EXPECT_NE(mean.as<float>()[0], 0) << where << " " << name;
    }
  };
  ExpectOneCurve(
      {{"cpu:dp=1", 1}, {"cpu:pp=2", 1}, {"cpu:pp=3", 2}, {"cpu:dp=2,pp=2", 2}}, loss,
      [](int step) {
        return Feeds{{"x", Floats(step, {12, 5})}};
      },
      Sgd{.lr = .02}, 5e-5, look);
}

TEST(Nn, LayersAreDealtOverStagesAsAsked) {
  Model model(FullMesh("cpu:pp=3"));
  Tensor x = model.Input("x", {6, 4}, DType::kFloat32);
  auto block = [](Scope s, Tensor y, int64_t) { return y + nn::Linear(s, y, 4); };
  nn::layers(model.scope() / "a", x, 7, block);
  nn::layers(model.scope() / "b", x, 7, block, {.per_stage = {1, 1, 5}});
  auto stages = [&](const std::string& path) {
    std::string text;
    for (int i = 0; i < 7; ++i)
      text +=
          std::to_string(model.impl()->variables.at(Cat(path, "/block", i, "/weight")).node.slice.fixed[2]);
    return text;
  };
  EXPECT_EQ(stages("a"), "0001122");
  EXPECT_EQ(stages("b"), "0122222");
}

std::string StagesOfBlocks(const Model& model, int blocks) {
  std::string text;
  for (int i = 0; i < blocks; ++i)
    text += std::to_string(model.impl()->variables.at(Cat("block", i, "/weight")).node.slice.fixed[2]);
  return text;
}

// What stands behind the blocks weighs as much as four of them, so the last stage has fewer; all graphs of
// the model agree, whichever is used first, and results are those of one device.
TEST(Nn, LayersAreCutByCost) {
  for (int order = 0; order < 3; ++order)
    for (const char* mesh : {"cpu:dp=1", "cpu:pp=2", "cpu:pp=3"}) {
      Model model(FullMesh(mesh));
      auto loss = [](Scope s, Tensor x) {
        x = nn::layers(s, x, 8, [](Scope b, Tensor y, int64_t) { return y + nn::Linear(b, y, 64); });
        Tensor table = s.Stage("pp", 0).Weight("table", {64, 256}, Normal(.1));
        return mean(square(matmul(x, to_stage_of(table, x))));
      };
      ModelGraph other = model.NewGraph("other");
      Tensor mine = loss(model.scope(), model.Input("x", {128, 64}, DType::kFloat32));
      Tensor also = loss(other.scope(), other.Input("x", {128, 64}, DType::kFloat32));
      const std::map<std::string, HostTensor> feed = {{"x", Floats(3, {128, 64})}};
      float first = 0;
      auto train = [&] { return Train(mine, Sgd{.lr = .1}, {}).Run(feed).Scalar("loss"); };
      auto evaluate = [&] { return Evaluate({{"loss", also}}).Run(feed).Scalar("loss"); };
      if (order == 0) first = train();
      if (order == 1) first = evaluate();
      if (order == 2) model.Write("block7/weight", model.Read("block7/weight")), first = evaluate();
      const float second = order == 0 ? evaluate() : train();
      static std::map<int, std::pair<float, float>> alone;
      if (mesh == std::string("cpu:dp=1")) alone[order] = {first, second};
      EXPECT_NEAR(first, alone[order].first, 1e-6 * first) << mesh << " order " << order;
      EXPECT_NEAR(second, alone[order].second, 1e-6 * first) << mesh << " order " << order;
      const std::string stages = StagesOfBlocks(model, 8);
      if (mesh == std::string("cpu:pp=2")) {
        EXPECT_EQ(stages, "00000011");
      }
      if (mesh == std::string("cpu:pp=3")) {
        EXPECT_EQ(stages.substr(5), "112");
      }
      EXPECT_EQ(model.Read("block7/weight").shape, Dims({64, 64}));
    }
}

// Below what the cut by cost needs, blocks leave the stages that are too full, down to where no cut is left;
// a cut by hand stays. A model that has another session already keeps its cut.
TEST(Nn, LayersAreCutAgainWhereMemoryIsShort) {
  struct Tried {
    int64_t peak = 0;  // 0: refused
    std::string stages, error;
  };
  auto attempt = [](int64_t budget, const Pipeline& pipeline, bool evaluated = false) {
    Model model(FullMesh("cpu:pp=3"), {.pipeline = pipeline, .memory_budget = budget});
    Tensor x = model.Input("x", {64, 32}, DType::kFloat32);
    Tensor y = nn::layers(model.scope(), x, 9,
                          [](Scope b, Tensor z, int64_t) { return z + nn::Linear(b, gelu(z), 32); });
    Tensor loss = mean(square(y));
    std::vector<Session> before;
    Tried tried;
    tried.error = ErrorOf([&] {
      if (evaluated) before.push_back(Evaluate({{"x", scale(x, 2)}}));
      TrainOptions options;
      options.micro_batches = 4;
      Session session = Train(loss, AdamW{.lr = .1}, options);
      for (const RankSummary& s : session.Summaries()) tried.peak = std::max(tried.peak, s.peak_bytes);
      EXPECT_GT(session.Run({{"x", Floats(3, {64, 32})}}).Scalar("loss"), 0);
      tried.stages = StagesOfBlocks(model, 9);
    });
    return tried;
  };
  const Tried free = attempt(0, {});
  ASSERT_GT(free.peak, 0);
  int fitted = 0;
  int64_t budget = free.peak - 1;
  for (Tried tried = attempt(budget, {}); tried.peak > 0; tried = attempt(budget, {})) {
    EXPECT_LE(tried.peak, budget);
    EXPECT_NE(tried.stages, free.stages);
    budget = tried.peak - 1;
    ++fitted;
  }
  EXPECT_GE(fitted, 1);
  EXPECT_NE(attempt(budget, {}).error.find(Cat("needs ", free.peak, " bytes")), std::string::npos);
  EXPECT_EQ(attempt(free.peak - 1, {}, true).peak, 0);
  std::vector<int64_t> by_hand(3, 0);
  for (char stage : free.stages) ++by_hand[stage - '0'];
  EXPECT_EQ(attempt(free.peak, {.layers = by_hand}).stages, free.stages);
  EXPECT_EQ(attempt(free.peak - 1, {.layers = by_hand}).peak, 0);
}

TEST(Nn, LayersGoRoundVirtualStages) {
  auto stages = [](const Pipeline& pipeline) {
    Model model(FullMesh("cpu:pp=2"), {.pipeline = pipeline});
    Tensor x = model.Input("x", {32, 16}, DType::kFloat32);
    x = nn::layers(model.scope(), x, 7, [](Scope b, Tensor y, int64_t) { return y + nn::Linear(b, y, 16); });
    Session session = Train(mean(square(x)), Sgd{.lr = .1}, {});
    return StagesOfBlocks(model, 7);
  };
  EXPECT_EQ(stages({.virtual_stages = 2, .layers = {2, 1, 1, 3}}), "0010111");
  EXPECT_EQ(stages({.virtual_stages = 3, .layers = {}}).size(), 7u);
  EXPECT_NE(
      ErrorOf([&] { stages({.virtual_stages = 4}); }).find("gone round 4 times but there are only 7 layers"),
      std::string::npos);
  EXPECT_NE(ErrorOf([&] {
              stages({.layers = {3, 3}});
            }).find("sums to 6 but there are 7"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&] { stages({.layers = {0, 7}}); }).find("0 layers for a stage"), std::string::npos);
}

TEST(Nn, WrongUsesGetOneSentence) {
  Model model(FullMesh("cpu:pp=3"));
  Scope s = model.scope();
  Tensor x = model.Input("x", {6, 5, 9}, DType::kFloat32),
         image = model.Input("image", {5, 4, 4, 6}, DType::kFloat32);
  auto expect = [](const std::string& words, const std::function<void()>& act) {
    const std::string error = ErrorOf(act);
    EXPECT_NE(error.find(words), std::string::npos) << "wanted: " << words << "\ngot: " << error;
    EXPECT_NE(error.find("nn_test.cc:"), std::string::npos) << error;
  };
  auto block = [](Scope, Tensor y, int64_t) { return y; };
  expect("heads is 2 and the width is 9, but heads must divide it",
         [&] { nn::Attention(s, x, {.heads = 2}); });
  expect("kv_heads is 2 and does not divide the 3 heads",
         [&] { nn::Attention(s, x, {.heads = 3, .kv_heads = 2}); });
  expect("lora is -1 but must be a rank, or 0", [&] { nn::Attention(s, x, {.heads = 3, .lora = -1}); });
  expect("heads is 0 but must be at least 1", [&] { nn::Attention(s, x, {.heads = 0}); });
  expect("a batch of 5 does not divide into 2 equal parts", [&] { nn::BatchNorm(s, image, {.parts = 2}); });
  expect("groups is 4 and does not divide the 6 channels",
         [&] { nn::ConvBlock(s, image, 8, 3, {.groups = 4}); });
  expect("x is [6,5,9] but needs at least 4 axes", [&] { nn::Conv(s, x, 8, 3); });
  expect("has 3 stages but there are only 2 layers", [&] { nn::layers(s, x, 2, block); });
  expect("per_stage has 2 numbers but mesh axis pp has 3", [&] {
    nn::layers(s, x, 4, block, {.per_stage = {2, 2}});
  });
  expect("per_stage sums to 5 but there are 4 layers", [&] {
    nn::layers(s, x, 4, block, {.per_stage = {2, 2, 1}});
  });
  expect("x is a Tensor that was never given a value", [&] { nn::Linear(s, Tensor(), 3); });
}

}  // namespace
}  // namespace oneflow_like
