// ModelOptions::auto_cuts: a transformer block becomes column-row, annotations hold, a plan fits its budget,
// every mesh has the single device's loss curve, and processes have one choice.
// ctest: seconds=87 long=60
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "examples/llama_model.h"
#include "oneflow_like/model/blocks.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/model/variables.h"
#include "oneflow_like/session/cut_moves.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/fullest_rank.h"
#include "tests/oneflow_like/small_gpt.h"
#include "tests/oneflow_like/thread_job.h"

namespace oneflow_like {

using namespace examples;
namespace {

// Along tp, for use.
std::string TensorCut(const Model& model, const std::string& weight) {
  const Node& node = model.impl()->variables.at(weight).node;
  const int entry = 1 + model.mesh().FindAxis("tp");
  const auto cut = node.fixed.find(entry);
  return cut == node.fixed.end() || node.stored.count(entry) ? "B" : cut->second.str();
}

SmallGpt AutoGpt(const std::string& mesh) {
  SmallGpt gpt{.mesh = mesh, .parallel = {.batch = "dp", .tensor = "tp", .context = ""}};
  gpt.model_options.seed = 3;
  gpt.model_options.auto_cuts = AutoCuts::kAll;
  return gpt;
}

const char* const kMeshes[] = {"cpu:tp=2", "cpu:tp=4", "cpu:dp=2,tp=2", "cpu:tp=2,pp=2"};

TEST(AutoCuts, BlocksOfGptBecomeColumnRow) {
  for (const char* mesh : kMeshes) {
    SCOPED_TRACE(mesh);
    GptProgram program(AutoGpt(mesh));
    const Session train = program.MakeTrain();
    SCOPED_TRACE(program.model().CutsText());
    for (int block = 0; block < 4; ++block) {
      const std::string of = Cat("block", block);
      for (const char* columns : {"/attention/q", "/attention/k", "/attention/v", "/mlp/up"})
        EXPECT_EQ(TensorCut(program.model(), of + columns), "S1") << of << columns;
      for (const char* rows : {"/attention/out", "/mlp/down"})
        EXPECT_EQ(TensorCut(program.model(), of + rows), "S0") << of << rows;
    }
  }
}

TEST(AutoCuts, BlocksOfLlamaBecomeColumnRow) {
  for (const char* mesh : {"cpu:dp=1,tp=2,pp=1", "cpu:dp=1,tp=4,pp=1", "cpu:dp=2,tp=2,pp=1"}) {
    SCOPED_TRACE(mesh);
    Model model(Mesh::Parse(mesh), {.auto_cuts = AutoCuts::kAll});
    const Annotation cut = {{"dp", S(0)}};
    Tensor tokens = model.Input("tokens", {8, 32}, DType::kInt32, cut);
    Tensor targets = model.Input("targets", {8, 32}, DType::kInt32, cut);
    const LlamaConfig config{.layers = 3, .kv_heads = 4};
    TrainOptions options;
    options.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
    const Session train =
        Train(LlamaLoss(model.scope(), tokens, targets, config), AdamW{.lr = 1e-3}, options);
    SCOPED_TRACE(model.CutsText());
    for (const char* columns : {"attention/q", "attention/k", "attention/v", "mlp/up", "mlp/gate"})
      EXPECT_EQ(TensorCut(model, Cat("block1/", columns)), "S1") << columns;
    for (const char* rows : {"attention/out", "mlp/down"})
      EXPECT_EQ(TensorCut(model, Cat("block1/", rows)), "S0") << rows;
  }
}

// Tensor parallelism over a group of axes cuts an axis of a weight by all of them.
TEST(AutoCuts, BlocksAreCutOverGroups) {
  GptProgram program(AutoGpt("cpu:dp=1,out=2,in=2;tp=out*in"));
  const Session train = program.MakeTrain();
  const std::string text = program.model().CutsText();
  for (const char* line : {"block*/mlp/up ", "block*/attention/q "}) {
    const size_t at = text.find(line);
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_NE(text.substr(at, text.find('\n', at) - at).find("out:S1 in:S1"), std::string::npos) << text;
  }
  const size_t at = text.find("block*/mlp/down ");
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_NE(text.substr(at, text.find('\n', at) - at).find("out:S0 in:S0"), std::string::npos) << text;
}

// A hidden layer whose weights are annotated as `up` and `down` say.
struct Hidden {
  Annotation up, down;
  AutoCuts auto_cuts = AutoCuts::kOpen;
  std::vector<WeightPattern> patterns = {};
};
std::pair<std::string, std::string> CutsOf(const Hidden& given) {
  Model model(Mesh::Parse("cpu:dp=2,tp=2"), {.auto_cuts = given.auto_cuts, .weights = given.patterns});
  Tensor x = model.Input("x", {64, 128}, DType::kFloat32, {{"dp", S(0)}});
  const Scope s = model.scope() / "layer";
  s.Region();
  Tensor up = s.Weight("up", {128, 512}, Normal(0.02), given.up);
  Tensor down = s.Weight("down", {512, 128}, Normal(0.02), given.down);
  TrainOptions options;
  options.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
  const Session train = Train(mean(square(matmul(gelu(matmul(x, up)), down) - x)), Sgd{.lr = 0.1}, options);
  return {TensorCut(model, "layer/up"), TensorCut(model, "layer/down")};
}

TEST(AutoCuts, AnnotationsHold) {
  const Annotation whole = {{"dp", B()}, {"tp", B()}}, rows = {{"dp", B()}, {"tp", S(0)}};
  using Cuts = std::pair<std::string, std::string>;
  EXPECT_EQ(CutsOf({.up = whole, .down = whole}), Cuts("B", "B"));
  EXPECT_EQ(CutsOf({.up = rows, .down = whole}), Cuts("S0", "B"));
  // What is chosen goes with what is annotated.
  EXPECT_EQ(CutsOf({.up = {}, .down = rows}), Cuts("S1", "S0"));
  EXPECT_EQ(CutsOf({.up = {{"tp", S(1)}}, .down = {}}), Cuts("S1", "S0"));
  // Annotations in code can be left out, patterns cannot.
  EXPECT_EQ(CutsOf({.up = whole, .down = whole, .auto_cuts = AutoCuts::kAll}), Cuts("S1", "S0"));
  EXPECT_EQ(CutsOf({.auto_cuts = AutoCuts::kAll, .patterns = {{"*up", {.sbp = whole}}}}).first, "B");
  EXPECT_EQ(CutsOf({.auto_cuts = AutoCuts::kNone}), Cuts("B", "B"));
}

// Experts of ranks that have room, where the search for cuts alone ends at a slower plan.
// A layer of one column, cut by its annotation over two devices.
TEST(AutoCuts, AnnotationsMayLeaveADeviceWithoutAPart) {
  const auto losses = [](const std::string& mesh, AutoCuts cuts) {
    Model model(Mesh::Parse(mesh), {.auto_cuts = cuts});
    Tensor x = model.Input("x", {4, 6}, DType::kFloat32);
    Tensor y = nn::SwiGlu(model.scope() / "mlp", x, {.inner = 1});
    Session train = Train(mean(square(y - 1)), Sgd{.lr = .1});
    std::vector<float> result;
    for (int step = 0; step < 3; ++step)
      result.push_back(train.Run({{"x", Floats(step, {4, 6})}}).Scalar("loss"));
    return result;
  };
  const std::vector<float> wanted = losses("cpu:dp=1,tp=1", AutoCuts::kNone);
  for (const char* mesh : {"cpu:dp=1,tp=2", "cpu:dp=2,tp=2", "cpu:tp=2,dp=2"}) {
    const std::vector<float> got = losses(mesh, AutoCuts::kOpen);
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-5 * wanted[i]) << mesh;
  }
}

TEST(AutoCuts, AreNoSlowerThanAnnotations) {
  const auto seconds_of = [](AutoCuts auto_cuts) {
    Model model(Mesh::Parse("cpu:dp=1,tp=4"), {.auto_cuts = auto_cuts});
    Tensor x = model.Input("x", {8, 128, 128}, DType::kFloat32, {{"dp", S(0)}});
    nn::ExpertsOptions experts;
    experts.inner = 256;
    experts.room = 1.5;
    experts.ep = "dp";
    Tensor y = nn::layers(model.scope(), x, 2, [&](Scope s, Tensor h, int64_t) {
      h = h + nn::Attention(s / "attention", nn::LayerNorm(s / "norm1", h), {.heads = 4});
      return h + nn::Experts(s / "experts", nn::LayerNorm(s / "norm2", h), experts).y;
    });
    TrainOptions options;
    options.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
    const Session train = Train(mean(square(y)), AdamW{.lr = .1}, options);
    return train.impl()->compiled.logical.makespan;
  };
  EXPECT_LE(seconds_of(AutoCuts::kAll), 1.001 * seconds_of(AutoCuts::kNone));
}

// The fullest rank with a budget, and no more than a sentence if none fits.
std::optional<int64_t> PeakWithin(SmallGpt gpt, int64_t budget) {
  gpt.model_options.memory_budget = budget;
  GptProgram program(gpt);
  try {
    const Session train = program.MakeTrain();
    return FullestRank(train);
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("choices of what its weights are cut along"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(budget)), std::string::npos) << text;
    return {};
  }
}

// By lines so slow that whole weights are fastest: only the budget cuts them.
void ExpectPlansFitTheirBudget(const std::string& mesh) {
  SCOPED_TRACE(mesh);
  SmallGpt gpt = AutoGpt(mesh);
  gpt.layers = 3;
  gpt.vocabulary = 2048;
  gpt.context = 8;
  gpt.batch = 4;
  gpt.model_options.link.bandwidth = 1e6;
  const int64_t most = FullestRank(GptProgram(gpt).MakeTrain());
  int64_t least = most;
  int fitted = 0;
  for (int percent : {100, 85, 70, 10}) {
    const int64_t budget = most * percent / 100;
    const std::optional<int64_t> peak = PeakWithin(gpt, budget);
    if (!peak) continue;
    EXPECT_LE(*peak, budget);
    least = std::min(least, *peak);
    ++fitted;
  }
  std::printf("%s: %lld bytes, at least %lld\n", mesh.c_str(), static_cast<long long>(most),
              static_cast<long long>(least));
  EXPECT_LT(fitted, 4) << "a tenth of the bytes is too little";
  if (mesh.find("dp") != std::string::npos) return;  // weights are stored in parts in any case
  EXPECT_GE(fitted, 2);
  EXPECT_LT(least, most * 3 / 4);
}
TEST(AutoCuts, PlansFitTheirBudget) { ExpectPlansFitTheirBudget("cpu:tp=2"); }
TEST(LongAutoCuts, PlansFitTheirBudgetOnOtherMeshes) {
  for (const char* mesh : {"cpu:tp=4", "cpu:dp=2,tp=2", "cpu:tp=2,pp=2"}) ExpectPlansFitTheirBudget(mesh);
}

// Whole the weight does not fit, and gathered it would not either.
TEST(AutoCuts, DoesNotGatherWhatDoesNotFit) {
  const auto train_within = [](int64_t budget, AutoCuts cuts, std::string* cut) {
    Model model(Mesh::Parse("cpu:tp=4"), {.auto_cuts = cuts, .memory_budget = budget});
    Tensor x = model.Input("x", {4, 64}, DType::kFloat32);
    Tensor w = model.scope().Weight("wide", {64, 4096}, Normal(0.02));
    Session train = Train(mean(square(matmul(x, w))), Sgd{.lr = 0.1});
    *cut = TensorCut(model, "wide");
    const int64_t peak = FullestRank(train);
    train.Run({{"x", ToHost(std::vector<float>(4 * 64, 1.0f), {4, 64})}}).Wait();
    for (const RankSummary& rank : train.Summaries())
      EXPECT_EQ(model.impl()->store->ArenaBytes(rank.rank) + rank.persistent_bytes, rank.peak_bytes);
    return peak;
  };
  constexpr int64_t kWhole = 64 * 4096 * 4;
  std::string cut;
  EXPECT_NE(ErrorOf([&] { train_within(kWhole, AutoCuts::kNone, &cut); }), "");
  EXPECT_LE(train_within(kWhole, AutoCuts::kOpen, &cut), kWhole);
  EXPECT_EQ(cut, "S1");
}

// Layers one after another, of drawn widths, for a drawn number of rows: weights, gradients or what is kept
// for these may take most memory.
struct Layers {
  std::vector<int64_t> widths;
  int64_t rows = 0;
  std::string mesh;
};

Layers DrawLayers(uint64_t seed) {
  std::mt19937_64 draw(seed);
  Layers layers{.mesh = draw() % 2 ? "cpu:tp=4" : "cpu:tp=2"};
  for (size_t i = 0; i < 3; ++i) layers.widths.push_back(int64_t{32} << draw() % 5);
  layers.rows = int64_t{8} << draw() % 9;
  return layers;
}

// Each weight cut as `cuts` says; where it says nothing they are chosen within the budget. The peak, or none
// if no plan was found that fits.
std::optional<int64_t> PeakOf(const Layers& layers, const std::vector<Annotation>& cuts, int64_t budget) {
  ModelOptions options{.auto_cuts = cuts.empty() ? AutoCuts::kOpen : AutoCuts::kNone};
  options.memory_budget = budget;
  options.link.bandwidth = 1e6;  // whole weights would be fastest
  Model model(Mesh::Parse(layers.mesh), options);
  Tensor x = model.Input("x", {layers.rows, layers.widths[0]}, DType::kFloat32);
  for (size_t i = 0; i + 1 < layers.widths.size(); ++i) {
    Tensor w =
        model.scope().Weight(Cat("w", static_cast<char>('a' + i)), {layers.widths[i], layers.widths[i + 1]},
                             Normal(0.02), cuts.empty() ? Annotation() : cuts[i]);
    x = gelu(matmul(x, w));
  }
  try {
    return FullestRank(Train(mean(square(x)), Sgd{.lr = 0.1}));
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("that were tried this is the smallest"), std::string::npos)
        << error.what();
    return {};
  }
}

std::string Text(const Annotation& annotation) {
  std::string text;
  for (const auto& [axis, sbp] : annotation) text += Cat(axis, ":", sbp.str(), " ");
  return text;
}

// A plan that fits with some cuts of the two weights, each out of `all`, is found.
void ExpectFindsWhatFits(const Layers& layers, const std::vector<Annotation>& all) {
  int64_t least = 0;
  std::string how;
  for (const Annotation& first : all)
    for (const Annotation& second : all) {
      const int64_t peak = *PeakOf(layers, {first, second}, 0);
      if (least == 0 || peak < least) least = peak, how = Text(first) + "and " + Text(second);
    }
  SCOPED_TRACE(Cat(layers.mesh, ", rows ", layers.rows, ", widths ", layers.widths[0], " ", layers.widths[1],
                   " ", layers.widths[2], "; ", how, " takes ", least, " bytes"));
  const std::optional<int64_t> peak = PeakOf(layers, {}, least + least / 20);
  EXPECT_TRUE(peak.has_value());
  EXPECT_LE(peak.value_or(0), least + least / 20);
}

TEST(AutoCuts, FindsWhatFits) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(Cat("seed ", seed));
    ExpectFindsWhatFits(DrawLayers(seed), {{{"tp", B()}}, {{"tp", S(0)}}, {{"tp", S(1)}}});
  }
}

// Over two axes, which may cut one axis of a weight: the only way where the other is short.
TEST(AutoCuts, FindsWhatFitsOverTwoAxes) {
  std::vector<Annotation> all;
  for (const Sbp& outer : {B(), S(0), S(1)})
    for (const Sbp& inner : {B(), S(0), S(1)}) all.push_back({{"up", outer}, {"tp", inner}});
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(Cat("seed ", seed));
    Layers layers = DrawLayers(seed);
    layers.mesh = seed % 2 ? "cpu:up=2,tp=2" : "cpu:up=2,tp=2;all=up*tp";
    std::vector<Annotation> some = all;
    if (seed % 3 == 0) {
      layers.widths = {1, 2048, 1};
      some = {{{"up", B()}, {"tp", B()}},
              {{"up", B()}, {"tp", S(1)}},
              {{"up", S(1)}, {"tp", S(1)}},
              {{"up", B()}, {"tp", S(0)}},
              {{"up", S(0)}, {"tp", S(0)}}};
    }
    ExpectFindsWhatFits(layers, some);
  }
}

TEST(AutoCuts, EveryMeshHasOneLossCurve) {
  constexpr int kSteps = 12;
  const std::vector<float> one = LossesOf(SmallGpt{.model_options = {.seed = 3}}, kSteps);
  for (const char* mesh : {"cpu:dp=2", "cpu:tp=2", "cpu:tp=4", "cpu:dp=2,tp=2", "cpu:dp=2,tp=2,pp=2"}) {
    for (int micro_batches : {1, 2}) {
      SmallGpt gpt = AutoGpt(mesh);
      gpt.micro_batches = micro_batches;
      const std::vector<float> losses = LossesOf(gpt, kSteps);
      for (int step = 0; step < kSteps; ++step)
        EXPECT_NEAR(losses[step], one[step], 1e-5 * one[step]) << gpt.str() << ", step " << step;
    }
  }
}

// An evaluation, and weights read whole, see them where the training has put them.
TEST(AutoCuts, OtherSessionsFollow) {
  GptProgram alone(SmallGpt{.model_options = {.seed = 3}}), cut(AutoGpt("cpu:dp=2,tp=2"));
  std::vector<float> losses[2];
  HostTensor up[2];
  int which = 0;
  for (GptProgram* program : {&alone, &cut}) {
    Session train = program->MakeTrain(), evaluate = program->MakeEvaluate();
    for (int step = 0; step < 3; ++step) {
      train.Run(program->MakeFeeds(step)).Wait();
      losses[which].push_back(evaluate.Run(program->MakeFeeds(99)).Scalar("loss"));
    }
    up[which++] = program->model().Read("block1/mlp/up");
  }
  for (int step = 0; step < 3; ++step) EXPECT_NEAR(losses[1][step], losses[0][step], 1e-5 * losses[0][step]);
  for (int64_t i = 0; i < up[0].elements(); ++i)
    ASSERT_NEAR(up[0].as<float>()[i], up[1].as<float>()[i], 1e-4) << "element " << i;
}

TEST(AutoCuts, ProcessesHaveOneChoice) {
  const std::vector<float> alone = LossesOf(AutoGpt("cpu:dp=2,tp=2"), 3);
  GptProgram program(AutoGpt("cpu:dp=2,tp=2"));
  const Session train = program.MakeTrain();
  const std::vector<std::string> errors = RunProcesses(2, [&](std::shared_ptr<Job> job) {
    SmallGpt gpt = AutoGpt("cpu:dp=2,tp=2");
    gpt.model_options.job = job;
    gpt.model_options.threads = 1;
    GptProgram here(gpt);
    Session session = here.MakeTrain();
    EXPECT_EQ(here.model().CutsText(), program.model().CutsText());
    for (size_t step = 0; step < alone.size(); ++step)
      EXPECT_EQ(session.Run(here.MakeFeeds(static_cast<int64_t>(step))).Scalar("loss"), alone[step]);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// The text names patterns as ModelOptions::weights takes them: with them the plan is the same without a
// search.
TEST(AutoCuts, TheTextRepeatsTheChoice) {
  SmallGpt gpt = AutoGpt("cpu:dp=2,tp=2");
  GptProgram searched(gpt);
  const Session train = searched.MakeTrain();
  gpt.model_options.auto_cuts = AutoCuts::kNone;
  gpt.model_options.weights = {{"*", {.sbp = {{"dp", B()}, {"tp", B()}}}}};
  std::istringstream lines(searched.model().CutsText());
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && line.find("whole:") == std::string::npos) {
    std::istringstream words(line);
    WeightPattern pattern;
    words >> pattern.pattern;
    bool stored = false;
    for (std::string word; words >> word && (word == "stored" || word.find(':') != std::string::npos);) {
      stored = stored || word == "stored";
      if (word == "stored") continue;
      Annotation& to = stored ? pattern.options.stored : pattern.options.sbp;
      for (const auto& axis : Annotation::Parse(word)) to.push_back(axis);
    }
    gpt.model_options.weights.push_back(pattern);
  }
  GptProgram repeated(gpt);
  const Session again = repeated.MakeTrain();
  EXPECT_EQ(again.impl()->compiled.logical.hash, train.impl()->compiled.logical.hash);
}

// A line for each that is cut, until memory is allocated.
TEST(AutoCuts, GivesReasons) {
  GptProgram program(AutoGpt("cpu:dp=2,tp=2"));
  Session train = program.MakeTrain();
  const std::string reasons = program.model().CutReasons();
  EXPECT_NE(reasons.find("block*/mlp/up tp:S1"), std::string::npos) << reasons;
  train.Run(program.MakeFeeds(0)).Wait();
  EXPECT_EQ(program.model().CutReasons(), "");
}

// Its optimizers keep state of other shapes than the weights'.
TEST(AutoCuts, StateLiesWithItsWeight) {
  for (const Optimizer& optimizer : {Optimizer(Adagrad{.lr = 0.1, .by_rows = true}),
                                     Optimizer(Lamb{.lr = 0.1}), Optimizer(Muon{.lr = 0.1})}) {
    Model model(Mesh::Parse("cpu:dp=2,tp=2"), {.auto_cuts = AutoCuts::kOpen});
    Tensor ids = model.Input("ids", {64}, DType::kInt32, {{"dp", S(0)}});
    Tensor rows = embedding(model.scope().Weight("table", {256, 64}, Normal(0.02)), ids);
    Tensor y = matmul(rows, model.scope().Weight("w", {64, 512}, Normal(0.02)));
    Session train = Train(mean(square(y)), optimizer);
    train.Run({{"ids", ToHost(std::vector<int32_t>(64, 3), {64})}}).Wait();
    EXPECT_NE(model.CutsText().find("w "), std::string::npos) << model.CutsText();
  }
  // A number for each column, which has an axis of the weight's first number and another extent.
  const Optimizer columns("columns", [](WeightUpdate& u) {
    Tensor w = u.weight(), g = u.gradient();
    if (w.shape().rank() == 1) return u.Assign(w, w - u.Rate(0.1) * g);
    Tensor c = u.ShapedState("columns", {w.shape()[1]}, {1}, 0.25);
    u.Assign(c, scale(c, 0.5) + mean(square(g), {0}));
    u.Assign(w, w - u.Rate(0.1) * g / unsqueeze(sqrt(c), 0));
  });
  double estimates[2];  // of what is found, and with the same annotated
  for (bool annotated : {false, true}) {
    Model model(Mesh::Parse("cpu:tp=2"), {.auto_cuts = AutoCuts::kOpen});
    const auto cut = [&](int axis) { return annotated ? Annotation{{"tp", S(axis)}} : Annotation{}; };
    Tensor x = model.Input("x", {64, 512}, DType::kFloat32);
    Tensor up = model.scope().Weight("up", {512, 2048}, Normal(.02), cut(1));
    Tensor down = model.scope().Weight("down", {2048, 512}, Normal(.02), cut(0));
    Tensor scale_of = model.scope().Weight("scale", {512}, Ones());
    const Session train = Train(mean(square(matmul(tanh(matmul(x, up)), down) * scale_of)), columns);
    const std::string text = model.CutsText(), words = "by estimate: ";
    if (!annotated) {
      EXPECT_NE(text.find("down   tp:S0"), std::string::npos) << text;
    }
    ASSERT_NE(text.find(words), std::string::npos) << text;
    estimates[annotated] = std::stod(text.substr(text.find(words) + words.size()));
  }
  EXPECT_NEAR(estimates[0], estimates[1], .02 * estimates[1]);
}

// A cut over ranks of the batch or of a sequence is how a weight is stored; one over tensor-parallel ranks is
// how it is used.
TEST(CutsBeside, AreOfWhatAxesAreFor) {
  const auto loss_of = [](Model& model) {
    Tensor x = model.Input("x", {8, 16, 64}, DType::kFloat32, {{"dp", S(0)}, {"cp", S(1)}});
    Tensor y = tanh(matmul(x, model.scope().Weight("up", {64, 256}, Normal(.02))));
    return mean(square(matmul(y, model.scope().Weight("down", {256, 64}, Normal(.02)))));
  };
  const Mesh mesh = Mesh::Parse("cpu:dp=2,cp=2,tp=2");
  TrainOptions train;
  train.parallel = {.batch = "dp", .tensor = "tp", .context = "cp"};
  Model placed(mesh), open(mesh);
  const CompileOptions options = Train(loss_of(placed), Sgd{}, train).impl()->compiled.options;
  loss_of(open);
  std::set<int> entries;
  for (const VariableCuts& cuts : CutsBeside(*open.impl(), options, {{"up", {}}, {"down", {}}}))
    for (const auto& [weight, cut] : cuts)
      for (const auto& [entry, sbp] : cut.fixed) {
        entries.insert(entry);
        EXPECT_EQ(cut.stored.count(entry) > 0, mesh.axis_name(entry - 1) != "tp")
            << weight << " " << mesh.axis_name(entry - 1) << " " << sbp.str();
      }
  EXPECT_EQ(entries, (std::set<int>{1, 2, 3}));
}

TEST(AutoCuts, TheSameChoiceEachTime) {
  std::string texts[2];
  for (std::string& text : texts) {
    GptProgram program(AutoGpt("cpu:dp=2,tp=4"));
    const Session train = program.MakeTrain();
    text = program.model().CutsText();
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_NE(texts[0].find("block*/mlp/up"), std::string::npos) << texts[0];
}

}  // namespace
}  // namespace oneflow_like
