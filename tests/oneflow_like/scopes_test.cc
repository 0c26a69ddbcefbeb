// Where operators belong: what the function of a block makes is in the block's region and on its stage,
// whatever it reads, and nothing depends on the order of operands. Models drawn at random, whose blocks share
// values.
// ctest: seconds=40
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/session/session_impl.h"
#include "tests/oneflow_like/kept_bytes.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

constexpr int64_t kBatch = 4, kLength = 6, kWidth = 8, kHeads = 2;
const Dims kShape = {kBatch, kLength, kWidth};

struct Draw {
  uint64_t seed, purpose, count = 0;
  int operator()(int limit) { return static_cast<int>(RandomBits(seed, purpose, count++) % limit); }
};

// An encoder and a decoder. The decoder's blocks read what was made outside of them: by the encoder, by
// earlier blocks, from the input and from weights of other scopes. `seed` says what they compute, `order` in
// which order their operands are given.
class Sharing {
 public:
  struct Setting {
    std::string mesh = "cpu:dp=1";
    std::vector<int64_t> encoder = {}, decoder = {};  // blocks of stages
    int micro_batches = 1;
    Recompute recompute = Recompute::kNone;
    PipelineSchedule schedule = PipelineSchedule::k1F1B;
    std::string str() const {
      return Cat(mesh, " m=", micro_batches, " ", Name(recompute), " ", Name(schedule));
    }
  };

  Sharing(uint64_t seed, uint64_t order, const Setting& setting)
      : model(FullMesh(setting.mesh)), setting_(setting), shape_{seed, 1}, order_{order, 2} {
    const Scope s = model.scope();
    Tensor x = model.Input("x", kShape, DType::kFloat32, {{"dp", S(0)}});
    skip_ = scale(x, .5);
    bias_ = tanh((s / "bias").Weight("table", {kLength, kLength}, Normal(.5)));
    condition_ = sigmoid(nn::Linear(s / "condition", x, kWidth));
    Tensor memory =
        nn::layers(s / "encoder", x, 2,
                   [&](Scope here, Tensor y, int64_t) { return tanh(nn::Linear(here / "up", y, kWidth)); },
                   {.per_stage = setting.encoder});
    outer_ = {skip_, condition_, memory};
    Tensor y = nn::layers(s / "decoder", condition_, 4,
                          [&](Scope here, Tensor in, int64_t i) {
                            const int begin = model.impl()->graph.num_nodes();
                            for (int k = 0; k < 3; ++k) in = Step(here, in);
                            in = tanh(nn::Linear(here / "out", in, kWidth));
                            outer_.push_back(in);
                            CheckBlock(begin, Cat("decoder/block", i), StageOfBlock(i));
                            return in;
                          },
                          {.per_stage = setting.decoder});
    loss = mean(square(Two(add, y, memory)));
  }

  Session MakeTrain() {
    TrainOptions options;
    options.micro_batches = setting_.micro_batches;
    options.recompute = setting_.recompute;
    options.schedule = setting_.schedule;
    return Train(loss, Sgd{.lr = .2}, options);
  }

  Model model;
  Tensor loss;

 private:
  using Binary = Tensor (*)(Tensor, Tensor, Here);
  Tensor Two(Binary f, Tensor a, Tensor b, Here at = Here::current()) {
    return order_(2) ? f(b, a, at) : f(a, b, at);
  }
  Tensor Outer() { return outer_[shape_(static_cast<int>(outer_.size()))]; }

  Tensor Step(Scope here, Tensor y) {
    switch (shape_(7)) {
      case 0:
        return Two(add, y, Outer());
      case 1:
        return Two(mul, y, condition_);
      case 2: {
        Tensor heads = reshape(y, {kBatch, kLength, kHeads, kWidth / kHeads});
        return reshape(attention(heads, heads, heads, {.dropout = .2, .bias = bias_}), kShape);
      }
      case 3:
        return Two(add, dropout(y, .3), Outer());
      case 4:  // only what was made outside
        return Two(add, y, dropout(Two(mul, Outer(), skip_), .3));
      case 5:
        return tanh(nn::Linear(model.scope() / "shared", y, kWidth));
      default:
        return Two(add, matmul(y, here.Weight(Cat("w", ++weights_), {kWidth, kWidth}, Normal(.4))),
                   slice(Outer(), 2, 0, 1));
    }
  }

  int StageOfBlock(int64_t i) const {
    int64_t before = 0;
    for (size_t s = 0; s < setting_.decoder.size(); ++s)
      if (i < (before += setting_.decoder[s])) return static_cast<int>(s);
    return Slice::kFree;
  }

  void CheckBlock(int begin, const std::string& path, int stage) {
    const Graph& graph = model.impl()->graph;
    for (int n = begin; n < graph.num_nodes(); ++n) {
      const Node& node = graph.node(n);
      if (node.kind != NodeKind::kOperator) continue;
      EXPECT_EQ(graph.regions().Of(node.name), path) << node.name;
      if (stage != Slice::kFree && node.placed) {
        EXPECT_EQ(node.slice.fixed[2], stage) << node.name;
      }
    }
  }

  const Setting setting_;
  Draw shape_, order_;
  Tensor skip_, bias_, condition_;
  std::vector<Tensor> outer_;
  int weights_ = 0;
};

// Name, region and stage of every node, in the order they were made.
std::string PlacesOf(const Graph& graph) {
  std::string text;
  for (int n = 0; n < graph.num_nodes(); ++n)
    text += Cat(graph.node(n).name, " in ", graph.regions().Of(graph.node(n).name), " on ",
                graph.node(n).slice.str(graph.mesh()), "\n");
  return text;
}

std::map<std::string, int64_t> KeysOf(const Session& session) {
  std::map<std::string, int64_t> keys;
  const Graph& graph = session.impl()->compiled.graph;
  for (int n : graph.Order())
    if (graph.node(n).kind == NodeKind::kOperator && graph.node(n).attrs.Has("key"))
      keys[graph.node(n).name] = graph.node(n).attrs.Int("key");
  return keys;
}

std::vector<float> Losses(Session* train) {
  std::vector<float> losses;
  for (int step = 0; step < 3; ++step)
    losses.push_back(train->Run({{"x", Floats(step, kShape)}}).Scalar("loss"));
  return losses;
}

TEST(Scopes, BlocksThatShareValuesDoNotDependOnTheOrderOfOperands) {
  for (uint64_t seed = 0; seed < 12; ++seed)
    for (const Sharing::Setting& setting :
         {Sharing::Setting{.micro_batches = 2, .recompute = Recompute::kFull},
          Sharing::Setting{.mesh = "cpu:pp=2", .encoder = {1, 1}, .decoder = {2, 2}, .micro_batches = 2}}) {
      SCOPED_TRACE(Cat("seed ", seed, " ", setting.str()));
      Sharing one(seed, 1, setting), other(seed, 1000 + seed, setting);
      EXPECT_EQ(PlacesOf(one.model.impl()->graph), PlacesOf(other.model.impl()->graph));
      Session first = one.MakeTrain(), second = other.MakeTrain();
      EXPECT_EQ(KeysOf(first), KeysOf(second));
      EXPECT_EQ(KeptBytes(first), KeptBytes(second));
      const std::vector<float> losses = Losses(&first), others = Losses(&second);
      for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], others[i], 1e-6) << i;
    }
}

TEST(Scopes, BlocksThatShareValuesTrainLikeOneDevice) {
  const Sharing::Setting settings[] = {
      {.mesh = "cpu:dp=2", .micro_batches = 2, .recompute = Recompute::kFull},
      {.mesh = "cpu:tp=2"},
      {.mesh = "cpu:pp=2", .encoder = {1, 1}, .decoder = {2, 2}, .micro_batches = 3},
      {.mesh = "cpu:pp=2",
       .encoder = {2, 0},
       .decoder = {0, 4},
       .micro_batches = 4,
       .recompute = Recompute::kFull},
      {.mesh = "cpu:dp=2,pp=2", .encoder = {0, 2}, .decoder = {3, 1}, .micro_batches = 2},
      {.mesh = "cpu:pp=2",
       .encoder = {2, 0},
       .decoder = {0, 4},
       .micro_batches = 2,
       .schedule = PipelineSchedule::kZeroBubble},
      {.mesh = "cpu:pp=3",
       .encoder = {1, 0, 1},
       .decoder = {0, 2, 2},
       .micro_batches = 2,
       .schedule = PipelineSchedule::kGPipe},
      {.mesh = "cpu:pp=2", .micro_batches = 2},  // divided by cost
  };
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Sharing alone(seed, 1, {});
    Session of_one = alone.MakeTrain();
    const std::vector<float> losses = Losses(&of_one);
    for (const Sharing::Setting& setting : settings) {
      SCOPED_TRACE(Cat("seed ", seed, " ", setting.str()));
      try {
        Sharing sharing(seed, 7 * seed, setting);
        Session train = sharing.MakeTrain();
        const std::vector<float> others = Losses(&train);
        for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(others[i], losses[i], 1e-5) << i;
      } catch (const Error& e) {
        ADD_FAILURE() << e.what();
      }
    }
  }
}

// Of each further block only its result is kept, although all read one bias.
TEST(Scopes, ASharedBiasIsKeptOnce) {
  auto kept = [](int64_t layers, bool shared) {
    Model model(FullMesh("cpu:dp=1"));
    Tensor x = model.Input("x", kShape, DType::kFloat32);
    Tensor table = (model.scope() / "positions").Weight("table", {kHeads, kLength, kLength}, Normal(.5));
    nn::TransformerOptions block;
    block.attention.heads = kHeads;
    if (shared) block.attention.masks.bias = tanh(table);
    x = nn::layers(model.scope(), x, layers,
                   [&](Scope s, Tensor y, int64_t) { return nn::TransformerBlock(s, y, block); });
    TrainOptions options;
    options.micro_batches = 2;
    options.recompute = Recompute::kFull;
    return KeptBytes(Train(mean(square(x)), Sgd{.lr = .1}, options));
  };
  const int64_t result = kShape.elements() * 4;
  EXPECT_EQ(kept(6, true) - kept(2, true), 4 * result);
  EXPECT_EQ(kept(6, true), kept(6, false));
}

// --- What belongs where ---

std::string NameOf(Tensor x) { return x.name(); }

TEST(Scopes, OutsideOfBlocksOperandsSayWhereAndTheirOrderDoesNot) {
  for (bool swapped : {false, true}) {
    Model model(FullMesh("cpu:dp=1"));
    const Scope s = model.scope();
    Tensor x = model.Input("x", {4, 3}, DType::kFloat32);
    Tensor h = x * (s / "first").Weight("w", {3}, Ones()), c = x * (s / "second").Weight("w", {3}, Ones());
    EXPECT_EQ(NameOf(swapped ? c * h : h * c), "second/mul.1");  // c was made last
    EXPECT_EQ(NameOf(dropout(swapped ? x + h : h + x, .5)), "first/dropout");
    EXPECT_EQ(NameOf(swapped ? x * x + x : x + x * x), "add");
    // A weight takes precedence over values made after it, since C++ does not fix which operand is evaluated
    // first.
    Tensor early = (s / "third").Weight("w", {3}, Ones()), late = relu(c);
    EXPECT_EQ(NameOf(swapped ? early * late : late * early), "third/mul");
    Tensor narrow = (s / "narrow").Weight("w", {3}, Ones(), {.trainable = false, .dtype = DType::kBFloat16});
    late = relu(c);
    EXPECT_EQ(NameOf(swapped ? narrow * late : late * narrow), "narrow/mul");
  }
}

TEST(Scopes, WhatRunsTakesAllThatIsMade) {
  Model model(FullMesh("cpu:pp=3"));
  const Scope s = model.scope(), block = (s / "block").Stage("pp", 1);
  block.Region();
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32);
  Tensor late = x * (s / "late").Stage("pp", 2).Weight("w", {3}, Ones());
  const Graph& graph = model.impl()->graph;
  auto stage = [&](Tensor t) { return graph.producer(t.id()).slice.fixed[2]; };
  Tensor inside, draw, layer, h = block.Run([&] {
    inside = dropout(late, .5);
    draw = uniform(model.builder(), {4, 3}, 0, 1);
    layer = nn::Linear(s / "shared", late, 3);  // another scope's weights
    // A deeper scope, which repeats no stage.
    Tensor deeper = nn::Linear(s / "block" / "deeper", layer, 3);
    EXPECT_EQ(NameOf(deeper), "block/deeper/add");
    EXPECT_EQ(stage(deeper), 1);
    return deeper + late;
  });
  EXPECT_EQ(NameOf(inside), "block/dropout");
  EXPECT_EQ(NameOf(draw), "block/uniform");
  EXPECT_EQ(NameOf(layer), "block/add");
  EXPECT_EQ(NameOf(h), "block/deeper/add.1");
  for (Tensor t : {inside, layer, h}) EXPECT_EQ(stage(t), 1) << NameOf(t);
  EXPECT_FALSE(graph.producer(draw.id()).placed);  // where it is read
  EXPECT_TRUE(model.impl()->variables.count("shared/weight"));
  // What comes after is not in the block, although it reads what is.
  EXPECT_EQ(NameOf(dropout(h, .5)), "dropout");
  EXPECT_EQ(NameOf(h + late), "late/add");
  // The scope that was kept may run again.
  EXPECT_EQ(NameOf(block.Run([&] { return h * h; })), "block/deeper/mul");
  EXPECT_EQ(NameOf(nn::Linear(block / "more", h, 3)), "block/more/add");
  EXPECT_EQ(stage(to_stage(h, "pp", 2)), 2);
}

TEST(Scopes, AFunctionThatThrowsEndsItsBlock) {
  Model model(FullMesh("cpu:dp=1"));
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32);
  const Scope s = model.scope() / "block";
  EXPECT_THROW(s.Run([&]() -> Tensor { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(NameOf(relu(x)), "relu");
  EXPECT_NE(ErrorOf([&] {
              nn::layers(s, x, 2, [&](Scope here, Tensor y, int64_t) { return nn::Linear(here, y, -1); });
            }),
            "");
  EXPECT_EQ(NameOf(relu(x)), "relu.1");
  EXPECT_NE(ErrorOf([&] { Scope().Run([&] { return x; }); }).find("start from Model::scope()"),
            std::string::npos);
}

TEST(Scopes, OtherGraphsAndBlocksWithinBlocksAreApart) {
  Model model(FullMesh("cpu:dp=1"));
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32);
  ModelGraph apart = model.NewGraph("apart");
  Tensor z = apart.Input("z", {4, 3}, DType::kFloat32);
  std::vector<std::string> names;
  Tensor y = nn::layers(model.scope() / "outer", x, 2,
                        [&](Scope s, Tensor in, int64_t) {
                          names.push_back(NameOf(relu(z)));
                          in = nn::layers(s / "inner", in, 2,
                                          [](Scope, Tensor h, int64_t) { return relu(h); }, {.pipeline = ""});
                          names.push_back(NameOf(in));
                          names.push_back(NameOf(tanh(in)));
                          return in;
                        },
                        {.pipeline = ""});
  EXPECT_EQ(names, (std::vector<std::string>{"relu", "outer/block0/inner/block1/relu",
                                             "outer/block0/inner/tanh", "relu.1",
                                             "outer/block1/inner/block1/relu", "outer/block1/inner/tanh"}));
  EXPECT_EQ(NameOf(tanh(y)), "outer/tanh");
}

// Operators of a block that a gradient within the model goes through have their gradients with them.
TEST(Scopes, GradientsStandWithTheirOperators) {
  Model model(FullMesh("cpu:pp=2"));
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32);
  Tensor after, y = nn::layers(model.scope(), x, 2, [&](Scope s, Tensor in, int64_t i) {
                  Tensor out = square(nn::Linear(s / "up", in, 3));
                  if (i == 1) after = gradients(sum(out), {in})[0];
                  return out;
                });
  Tensor slope = gradients(sum(y), {x})[0];
  const Graph& graph = model.impl()->graph;
  EXPECT_EQ(graph.regions().Of(NameOf(after)), "block1");
  EXPECT_EQ(graph.regions().Of(NameOf(slope)), "block0");
  Session train = Train(mean(square(y)) + mean(square(slope)) + mean(square(after)), Sgd{.lr = .1});
  EXPECT_GT(train.Run({{"x", Floats(1, {4, 3})}}).Scalar("loss"), 0);
}

// --- Stages ---

// Of the session's operators, by the block that they are in, the stages they are on.
std::map<std::string, std::set<int>> StagesOf(const Session& session) {
  std::map<std::string, std::set<int>> stages;
  const Graph& graph = session.impl()->compiled.graph;
  for (int n : graph.Order())
    if (graph.node(n).kind == NodeKind::kOperator || graph.node(n).kind == NodeKind::kFused)
      if (const std::string block = graph.regions().Of(graph.node(n).name); !block.empty())
        stages[block].insert(graph.node(n).slice.fixed[2]);
  return stages;
}

TEST(Scopes, BlocksDividedByCostTakeWhatTheyShareAlong) {
  Model model(FullMesh("cpu:pp=2"));
  const Scope s = model.scope();
  Tensor x = model.Input("x", {8, 16}, DType::kFloat32);
  Tensor condition = tanh(nn::Linear(s / "condition", x, 16)), memory = condition;
  // The first blocks take longest, so the division is not even.
  auto block = [&](Scope here, Tensor y, int64_t i) {
    const int64_t wide = i == 0 ? 512 : 16;
    Tensor h = tanh(nn::Linear(here / "up", condition * y, wide));
    return tanh(memory) + nn::Linear(here / "down", h, 16) * condition;
  };
  memory = nn::layers(s / "encoder", x, 5, block);
  Tensor y = nn::layers(s / "decoder", condition, 5, block);
  Session train = Train(mean(square(y)), Sgd{.lr = .1}, {{.micro_batches = 2}});
  const std::map<std::string, std::set<int>> stages_of = StagesOf(train);
  EXPECT_EQ(stages_of.size(), 10u);
  for (const auto& [path, stages] : stages_of) {
    const int wanted = model.impl()->variables.at(path + "/up/weight").node.slice.fixed[2];
    EXPECT_EQ(stages, std::set<int>{wanted}) << path;
  }
  EXPECT_EQ(model.impl()->variables.at("decoder/block0/up/weight").node.slice.fixed[2], 0);
  EXPECT_EQ(model.impl()->variables.at("decoder/block1/up/weight").node.slice.fixed[2], 1);
  EXPECT_GT(train.Run({{"x", Floats(1, {8, 16})}}).Scalar("loss"), 0);
}

TEST(Scopes, TwoStacksShareAPipeline) {
  for (const auto& [mesh, encoder, decoder] :
       {std::tuple("cpu:pp=2", std::vector<int64_t>{3, 0}, std::vector<int64_t>{0, 3}),
        std::tuple("cpu:pp=3", std::vector<int64_t>{2, 1, 0}, std::vector<int64_t>{0, 0, 3}),
        std::tuple("cpu:pp=2", std::vector<int64_t>{0, 3}, std::vector<int64_t>{3, 0})}) {
    Model model(FullMesh(mesh));
    Tensor x = model.Input("x", {6, 4}, DType::kFloat32);
    auto block = [](Scope s, Tensor y, int64_t) { return tanh(nn::Linear(s / "up", y, 4)); };
    Tensor memory = nn::layers(model.scope() / "encoder", x, 3, block, {.per_stage = encoder});
    Tensor y = nn::layers(model.scope() / "decoder", scale(x, 2), 3,
                          [&](Scope s, Tensor in, int64_t i) { return memory * block(s, in, i); },
                          {.per_stage = decoder});
    Session train = Train(mean(square(y)), Sgd{.lr = .1}, {{.micro_batches = 3}});
    const std::map<std::string, std::set<int>> stages = StagesOf(train);
    for (const auto& [stack, per_stage] : {std::pair("encoder", encoder), std::pair("decoder", decoder)})
      for (int stage = 0, i = 0; stage < std::ssize(per_stage); ++stage)
        for (int64_t k = 0; k < per_stage[stage]; ++k, ++i)
          EXPECT_EQ(stages.at(Cat(stack, "/block", i)), std::set<int>{stage}) << mesh;
    EXPECT_GT(train.Run({{"x", Floats(1, {6, 4})}}).Scalar("loss"), 0);
  }
}

}  // namespace
}  // namespace oneflow_like
