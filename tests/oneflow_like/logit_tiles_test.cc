// SessionOptions::logits_tile: heads whose logits never exist all at once, in one pass where that is right;
// chosen where memory asks for it and it is faster than what else would fit, and repeated by plans.
// ctest: seconds=20
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "oneflow_like/plan_search.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/fullest_rank.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

// A few layers on many tokens with many classes: logits take most of the memory.
struct Head {
  std::string mesh = "cpu:dp=1";
  int64_t tokens = 2048, classes = 512, width = 16;
  int layers = 3;
  int micro_batches = 1;
  DType dtype = DType::kFloat32;
  bool frozen = false;  // the table
  std::optional<int64_t> tile = {};
  Recompute recompute = Recompute::kNone;
  int64_t budget = 0;
  std::optional<Decisions> plan = {};
};

struct Trained {
  std::unique_ptr<Model> model;
  std::optional<Session> session;
  int64_t peak() const { return FullestRank(*session); }
  double seconds() const { return session->impl()->compiled.logical.makespan; }
  int64_t tile() const { return session->Plan().decisions.logits_tile; }
  std::set<std::string> operators() const {
    const Graph& graph = session->impl()->compiled.graph;
    std::set<std::string> ops;
    for (int n : graph.Order()) ops.insert(graph.node(n).op);
    return ops;
  }
};

Trained TrainHead(const Head& h) {
  ModelOptions options{.memory_budget = h.budget};
  options.seed = 5;
  options.plan = h.plan;
  Trained trained{std::make_unique<Model>(Mesh::Parse(h.mesh), options), {}};
  Model& model = *trained.model;
  const bool tensor = !model.mesh().FindAxes("tp").empty();
  const Annotation batch = model.mesh().FindAxes("dp").empty() ? Annotation() : Annotation{{"dp", S(0)}};
  Tensor tokens = model.Input("tokens", {h.tokens}, DType::kInt32, batch);
  const Scope s = model.scope();
  Tensor x = embedding(s.Weight("first", {h.classes, h.width}, Normal(0.5)), tokens);
  x = nn::layers(s, x, h.layers, [&](Scope layer, Tensor y, int64_t) {
    return y + nn::Linear(layer / "out", gelu(nn::Linear(layer / "in", y, 4 * h.width)), h.width);
  });
  WeightOptions of_table;
  if (tensor) of_table.sbp = {{"tp", S(0)}};
  of_table.trainable = !h.frozen;
  Tensor table = s.Weight("table", {h.classes, h.width}, Normal(0.5), of_table);
  TrainOptions train;
  train.micro_batches = h.micro_batches;
  train.dtype = h.dtype;
  train.recompute = h.recompute;
  train.logits_tile = h.tile;
  train.parallel.batch = batch.empty() ? "" : "dp";
  trained.session.emplace(Train(mean(nn::HeadLoss(x, table, tokens)), Sgd{.lr = 0.5}, train));
  return trained;
}

Feeds TokensOf(const Head& h, int64_t step) {
  std::vector<int32_t> ids(h.tokens);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(RandomBits(9, step, i) % h.classes);
  return {{"tokens", ToHost(ids, {h.tokens})}};
}

std::vector<float> LossesOf(const Head& h, int steps = 4) {
  Trained trained = TrainHead(h);
  std::vector<float> losses;
  for (int step = 0; step < steps; ++step)
    losses.push_back(trained.session->Run(TokensOf(h, step)).Scalar("loss"));
  return losses;
}

// The same training, in one pass where classes are whole and the table's gradient is small.
TEST(LogitTiles, TrainAlikeOnEveryMesh) {
  const std::vector<float> whole = LossesOf({});
  const Head all[] = {{.tile = 100},
                      {.mesh = "cpu:dp=2", .tile = 100},
                      {.mesh = "cpu:tp=2", .tile = 100},
                      {.mesh = "cpu:dp=2,tp=3", .micro_batches = 2, .tile = 64},
                      {.micro_batches = 4, .tile = 512},
                      {.tile = 512, .recompute = Recompute::kFull}};
  for (const Head& h : all) {
    SCOPED_TRACE(Cat(h.mesh, " m=", h.micro_batches, " tile ", *h.tile));
    const std::vector<float> tiled = LossesOf(h);
    for (size_t step = 0; step < whole.size(); ++step)
      EXPECT_NEAR(tiled[step], whole[step], 1e-5 * whole[step]) << step;
    const std::set<std::string> ops = TrainHead(h).operators();
    EXPECT_EQ(ops.count("cross_entropy"), 0u);
    const bool cut = h.mesh.find("tp") != std::string::npos;
    EXPECT_EQ(ops.count("linear_cross_entropy_sum"), cut ? 0u : 1u);
    EXPECT_EQ(ops.count("linear_cross_entropy_grad"), cut ? 1u : 0u);
  }
  const std::vector<float> frozen = LossesOf({.frozen = true}),
                           tiles = LossesOf({.frozen = true, .tile = 64});
  for (size_t step = 0; step < frozen.size(); ++step)
    EXPECT_NEAR(tiles[step], frozen[step], 1e-5 * frozen[step]);
}

// Two passes where one would be wrong: for a frozen table's sake, or where its gradient is as large as the
// logits of the few tokens of a micro-batch.
TEST(LogitTiles, OnePassWhereItIsRight) {
  const auto once = [](const Head& h) {
    const std::set<std::string> ops = TrainHead(h).operators();
    EXPECT_EQ(ops.count("linear_cross_entropy_sum") + ops.count("linear_cross_entropy"), 1u);
    return ops.count("linear_cross_entropy_sum") == 1;
  };
  EXPECT_TRUE(once({.tokens = 64, .width = 64, .tile = 8}));
  EXPECT_FALSE(once({.tokens = 64, .width = 64, .micro_batches = 2, .tile = 8}));
  EXPECT_FALSE(once({.mesh = "cpu:dp=2", .tokens = 64, .width = 64, .tile = 8}));
  EXPECT_FALSE(once({.tokens = 64, .width = 64, .dtype = DType::kBFloat16, .tile = 8}));
  EXPECT_FALSE(once({.frozen = true, .tile = 100}));
}

// Logits that something else reads, or that are no plain product, stay.
TEST(LogitTiles, OtherReadersKeepLogits) {
  Model model(Mesh::Parse("cpu:dp=1"));
  Tensor tokens = model.Input("tokens", {256}, DType::kInt32);
  Tensor x = embedding(model.scope().Weight("first", {64, 8}, Normal(0.5)), tokens);
  Tensor logits = einsum("bk,vk->bv", x, model.scope().Weight("table", {64, 8}, Normal(0.5)));
  TrainOptions options;
  options.logits_tile = 8;
  options.outputs = {{"largest", max(logits)}};
  const Session train = Train(mean(cross_entropy(logits, tokens)), Sgd{.lr = 0.1}, options);
  const Graph& graph = train.impl()->compiled.graph;
  int whole = 0;
  for (int n : graph.Order()) whole += graph.node(n).op == "cross_entropy";
  EXPECT_EQ(whole, 1);
}

// Whole where that fits; where it does not, tiles, and a larger budget never makes a slower plan.
TEST(LogitTiles, AreChosenWhereMemoryAsks) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kAuto}) {
    const int64_t most = TrainHead({}).peak(), tiled = TrainHead({.tile = kLogitTile}).peak();
    EXPECT_LT(tiled, most * 3 / 4);
    EXPECT_EQ(TrainHead({.recompute = recompute, .budget = most}).tile(), 0);
    double faster = 0;
    for (int64_t budget : {most - 1, (most + tiled) / 2, tiled}) {
      const Trained within = TrainHead({.recompute = recompute, .budget = budget});
      EXPECT_EQ(within.tile(), kLogitTile) << budget;
      EXPECT_LE(within.peak(), budget);
      EXPECT_GE(within.seconds(), faster);
      faster = within.seconds();
      EXPECT_NE(within.session->SummaryText().find("logits: at most 512 rows at a time"), std::string::npos);
      Head again{.recompute = recompute, .budget = budget};
      again.plan = within.session->Plan().decisions;
      EXPECT_EQ(TrainHead(again).session->impl()->compiled.logical.hash,
                within.session->impl()->compiled.logical.hash);
    }
    // What was asked for stands.
    EXPECT_NE(ErrorOf([&] { TrainHead({.tile = 0, .budget = tiled}); }), "");
  }
}

// Where computing a layer again is enough and takes less time than another product, logits stay whole.
TEST(LogitTiles, AreNotChosenWhereAnotherRemedyIsFaster) {
  // Layers are wide and the head is small.
  const Head wide{.tokens = 2048, .classes = 64, .width = 64, .layers = 3, .recompute = Recompute::kAuto};
  Head kept = wide;
  kept.recompute = Recompute::kNone;
  const int64_t most = TrainHead(kept).peak();
  int whole = 0, in_tiles = 0;
  for (int percent : {97, 90, 80, 70}) {
    Head h = wide;
    h.budget = most * percent / 100;
    const Trained found = TrainHead(h);
    EXPECT_LE(found.peak(), h.budget);
    Head all = h;
    all.tile = 0;
    double seconds = 0;
    if (ErrorOf([&] { seconds = TrainHead(all).seconds(); }) == "")
      EXPECT_LE(found.seconds(), seconds * (1 + 1e-9)) << percent;
    ++(found.tile() == 0 ? whole : in_tiles);
  }
  EXPECT_GE(whole, 1);
}

TEST(LogitTiles, RefusesWhatIsNoNumberOfRows) {
  const std::string error = ErrorOf([] { TrainHead({.tile = -1}); });
  EXPECT_NE(error.find("logits_tile is -1, must be at least 0"), std::string::npos) << error;
  Head planned{.tile = 8};
  planned.plan = TrainHead({.tile = 16}).session->Plan().decisions;
  const std::string other = ErrorOf([&] { TrainHead(planned); });
  EXPECT_NE(other.find("has logits_tile=16, but the session's is 8"), std::string::npos) << other;
}

}  // namespace
}  // namespace oneflow_like
