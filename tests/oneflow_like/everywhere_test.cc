// A module on all devices beside one on the stages of a pipeline (Scope::Everywhere): an encoder of pictures,
// whose batch the axis of the stages cuts as well, before a text model.
#include <gtest/gtest.h>

#include <vector>

#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

struct Setting {
  std::string mesh = "cpu:dp=1";
  int micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int zero = 0;
  Recompute recompute = Recompute::kNone;
  int virtual_stages = 1;
  int64_t layers = 4;
  bool cut = true;  // the encoder's result is held to the cut over pp, else cost decides
  std::string str() const { return Cat(mesh, " in ", micro_batches, ", ", Name(schedule), ", zero ", zero); }
};

constexpr int64_t kBatch = 16, kSide = 8, kPatch = 4, kPatches = 4, kText = 6, kWidth = 32, kVocabulary = 19;

class Program {
 public:
  explicit Program(const Setting& given) : given_(given) {
    ModelOptions options;
    options.seed = 3;
    options.pipeline.virtual_stages = given.virtual_stages;
    if (given.zero > 0) options.zero = {.axis = "dp", .stage = given.zero, .small = 0};
    model_ = std::make_unique<Model>(FullMesh(given.mesh), options);
    const Annotation all = {{"dp", S(0)}, {"pp", S(0)}}, batch = {{"dp", S(0)}};
    Tensor pictures = model_->Input("pictures", {kBatch, kSide, kSide, 3}, DType::kFloat32, all);
    Tensor shown = model_->Input("shown", {kBatch}, DType::kFloat32, batch);
    Tensor tokens = model_->Input("tokens", {kBatch, kText}, DType::kInt32, batch);
    Tensor targets = model_->Input("targets", {kBatch, kText}, DType::kInt32, batch);
    const Scope scope = model_->scope();
    Tensor seen = Encoded(scope.Everywhere("pp") / "encoder", pictures);
    if (given.cut) seen = annotate(seen, all);
    Tensor table = scope.Stage("pp", 0).Weight("table", {kVocabulary, kWidth}, Normal(.02), {{"tp", S(0)}});
    Tensor x = concat({seen * reshape(shown, {kBatch, 1, 1}), embedding(table, tokens)}, 1);
    nn::TransformerOptions block = Block(true);
    x = nn::layers(scope, x, given.layers,
                   [&](Scope s, Tensor y, int64_t) { return nn::TransformerBlock(s, y, block); });
    x = nn::LayerNorm(scope / "norm", slice(x, 1, kPatches, kPatches + kText));
    Tensor output = scope.Weight("output", {kWidth, kVocabulary}, Normal(.02), {{"tp", S(1)}});
    loss_ = mean(cross_entropy(matmul(x, output), targets));
  }

  Session MakeTrain() {
    TrainOptions options;
    options.micro_batches = given_.micro_batches;
    options.schedule = given_.schedule;
    options.recompute = given_.recompute;
    options.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
    options.clip_norm = 1;
    return Train(loss_, AdamW{.lr = 1e-2}, options);
  }

  static Feeds MakeFeeds(int step, bool pictures = true) {
    HostTensor shown = HostTensor::Make(DType::kFloat32, {kBatch});
    for (int64_t i = 0; i < kBatch; ++i) shown.as<float>()[i] = pictures && i % 3 != 2 ? 1 : 0;
    return {{"pictures", Floats(3 * step, {kBatch, kSide, kSide, 3})},
            {"shown", shown},
            {"tokens", Ids(3 * step + 1, {kBatch, kText}, kVocabulary)},
            {"targets", Ids(3 * step + 2, {kBatch, kText}, kVocabulary)}};
  }

  Model& model() { return *model_; }

 private:
  static nn::TransformerOptions Block(bool causal) {
    nn::TransformerOptions block;
    block.attention = {.heads = 4, .causal = causal};
    return block;
  }

  static Tensor Encoded(const Scope& s, Tensor pictures) {
    nn::ConvLayerOptions cut;
    cut.stride = {kPatch};
    Tensor x = reshape(nn::Conv(s / "patches", pictures, kWidth, kPatch, cut), {kBatch, kPatches, kWidth});
    x = x + s.Weight("positions", {kPatches, kWidth}, Normal(.02));
    x = nn::layers(s, x, 2,
                   [](Scope here, Tensor y, int64_t) { return nn::TransformerBlock(here, y, Block(false)); });
    return nn::Linear(s / "into_text", nn::LayerNorm(s / "norm", x), kWidth);
  }

  Setting given_;
  std::unique_ptr<Model> model_;
  Tensor loss_;
};

std::vector<float> Losses(const Setting& given) {
  constexpr int kSteps = 4;
  Program program(given);
  Session train = program.MakeTrain();
  std::vector<float> losses;
  for (int step = 0; step < kSteps; ++step)  // the third without pictures
    losses.push_back(train.Run(Program::MakeFeeds(step, step != 2)).Scalar("loss"));
  return losses;
}

TEST(Everywhere, FollowsOneDevice) {
  using enum PipelineSchedule;
  const std::vector<float> one = Losses({});
  for (const Setting& given :
       std::vector<Setting>{{"cpu:pp=2"},
                            {.mesh = "cpu:dp=2,tp=2,pp=2", .cut = false},
                            {"cpu:pp=2", 4},
                            {"cpu:dp=2,tp=2,pp=2"},
                            {"cpu:dp=2,tp=2,pp=2", 2},
                            {"cpu:dp=2,tp=2,pp=2", 4, k1F1B, 3, Recompute::kFull},
                            {"cpu:pp=4", 4, kGPipe},
                            {"cpu:pp=3", 4, kZeroBubble},
                            {"cpu:dp=2,pp=2", 8, kZeroBubble, 2},
                            {"cpu:pp=2", 4, kInterleaved, 0, Recompute::kNone, 2},
                            {"cpu:dp=2,pp=2", 4, kInterleaved, 1, Recompute::kFull, 2}}) {
    const std::vector<float> losses = Losses(given);
    for (size_t step = 0; step < one.size(); ++step)
      EXPECT_NEAR(losses[step], one[step], 1e-5 * one[step]) << given.str() << " step " << step;
  }
}

// By rank, what it receives of the pictures' tokens for stage 0.
TEST(Everywhere, SendsTheFirstStageWhatItLacks) {
  for (const int pp : {2, 4}) {
    Program program({.mesh = Cat("cpu:dp=2,pp=", pp)});
    Session train = program.MakeTrain();
    const Graph& graph = train.impl()->compiled.graph;
    double received = 0;
    int found = 0;
    for (int n : graph.Order()) {
      const Node& node = graph.node(n);
      if (!IsCollective(node) || node.phase != Phase::kForward) continue;
      if (graph.producer(node.in[0]).slice == node.slice || node.slice.fixed[2] != 0) continue;
      ++found;
      const Value& tokens = graph.value(node.out[0]);
      EXPECT_EQ(tokens.shape, (Dims{kBatch, kPatches, kWidth})) << node.name;
      const BoxingProgram moves = RouteGroup(graph.mesh(), 1, 0, tokens.shape, graph.LayoutOf(node.in[0]),
                                             graph.LayoutOf(node.out[0]), {0, 0, 0}, true);
      for (size_t m = 0; m < moves.members.size(); ++m)
        if (moves.members[m] == 0) received = static_cast<double>(moves.out[m].elements());
      EXPECT_EQ(moves.Moved(), received * (pp - 1) / pp);
    }
    EXPECT_EQ(found, 1);
    EXPECT_EQ(received, kBatch * kPatches * kWidth / 2);
  }
}

TEST(Everywhere, IsNoStage) {
  Model model(Mesh::Parse("cpu:pp=2"));
  const Scope all = model.scope().Everywhere("pp");
  all.Weight("w", {4}, Zeros());
  EXPECT_NE(ErrorOf([&] { model.scope().Everywhere("tp"); }).find("no axis tp"), std::string::npos);
  EXPECT_NE(
      ErrorOf([&] { model.scope().Stage("pp", 1).Weight("w", {4}, Zeros()); }).find("on stage pp=1 but"),
      std::string::npos);
  model.scope().Stage("pp", 1).Weight("v", {4}, Zeros());
  EXPECT_NE(ErrorOf([&] { all.Weight("v", {4}, Zeros()); }).find("on no stage of pp but"), std::string::npos);
}

}  // namespace
}  // namespace oneflow_like
