// Recomputation and the stages of ZeRO: no bit of a loss changes by the one, nothing but the order of sums by
// the other, and memory and messages are those of the formulas.
// ctest: seconds=45
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/oneflow_like/fullest_rank.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

// Of the fullest rank, by what it is for; "" is all of it.
std::map<std::string, int64_t> Bytes(const SmallGpt& given) {
  std::map<std::string, int64_t> bytes;
  for (const RankSummary& rank : GptProgram(given).MakeTrain().Summaries())
    if (rank.peak_bytes > bytes[""]) {
      bytes.clear();
      bytes[""] = rank.peak_bytes;
      for (const auto& [purpose, count] : rank.purposes) bytes[purpose] = count;
    }
  return bytes;
}

// Bytes that the forward pass makes of the batch and gradients read, in a step of one device. There are
// micro-batches: what is the same for all of them is of weights.
double Kept(const Session& session) {
  const LogicalPlan& plan = session.impl()->compiled.logical;
  double bytes = 0;
  for (const LogicalBuffer& buffer : plan.buffers) {
    if (buffer.writer < 0 || !buffer.variable.empty()) continue;
    const Segment& writer = plan.segments[buffer.writer];
    if (writer.stream < 0 || writer.phase != Phase::kForward) continue;
    for (int reader : buffer.readers)
      if (plan.segments[reader].phase == Phase::kBackward) {
        const Value& value = session.impl()->compiled.graph.value(buffer.value);
        if (value.sbp[0].is_split())
          bytes += static_cast<double>(value.shape.elements()) * SizeOf(value.dtype);
        break;
      }
  }
  return bytes;
}

// --- Recomputation ---

TEST(Recomputing, ChangesNoBit) {
  const SmallGpt settings[] = {
      {.mesh = "cpu:dp=1"},
      {.mesh = "cpu:dp=1", .micro_batches = 3},
      {.mesh = "cpu:dp=3", .micro_batches = 2, .dtype = DType::kBFloat16},
      {.mesh = "cpu:tp=2", .micro_batches = 2},
      {.mesh = "cpu:tp=4", .zero_axis = "tp", .dtype = DType::kBFloat16},
      {.mesh = "cpu:pp=4", .micro_batches = 5},
      {.mesh = "cpu:dp=2,tp=2,pp=2", .micro_batches = 4, .schedule = PipelineSchedule::kGPipe},
      {.mesh = "cpu:dp=2,pp=2", .micro_batches = 4, .zero_axis = "dp", .zero_stage = 2},
      {.mesh = "cpu:pp=2", .micro_batches = 4, .schedule = PipelineSchedule::kZeroBubble},
      {.mesh = "cpu:dp=2,pp=2",
       .micro_batches = 3,
       .schedule = PipelineSchedule::kInterleaved,
       .zero_axis = "dp",
       .zero_stage = 3,
       .model_options = {.pipeline = {.virtual_stages = 2}}},
      {.mesh = "cpu:dp=2,tp=2", .micro_batches = 3, .zero_axis = "dp", .zero_stage = 3},
  };
  for (SmallGpt given : settings) {
    const std::vector<float> kept = LossesOf(given, 3);
    for (Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      given.recompute = recompute;
      EXPECT_EQ(LossesOf(given, 3), kept) << given.str();
    }
  }
}

// Korthikanti et al. 2022, in 16 bits: a layer keeps 34 bytes for each element of [batch, context, width]
// (without the scores of attention, which no kernel of ours keeps), and 2 when only its input is kept.
TEST(Recomputing, ALayerKeepsWhatTheFormulasSay) {
  auto each_layer = [](Recompute recompute) {
    SmallGpt few{
        .micro_batches = 2, .recompute = recompute, .context = 64, .layers = 6, .dtype = DType::kBFloat16};
    SmallGpt many = few;
    many.layers = 12;
    return (Kept(GptProgram(many).MakeTrain()) - Kept(GptProgram(few).MakeTrain())) /
           static_cast<double>(6 * few.batch * few.context * few.width);
  };
  const double all = each_layer(Recompute::kNone), some = each_layer(Recompute::kSelective),
               input = each_layer(Recompute::kFull);
  std::printf("bytes kept for each element of a layer: %.2f, selective %.2f, full %.2f\n", all, some, input);
  EXPECT_LE(all, 34);
  EXPECT_LT(some, all);
  EXPECT_NEAR(input, 2, 1e-6);
}

TEST(Recomputing, LowersThePeak) {
  for (const char* mesh : {"cpu:dp=1", "cpu:tp=2", "cpu:pp=2", "cpu:dp=2,tp=2"})
    for (int micro_batches : {1, 4}) {
      SmallGpt given{.mesh = mesh, .micro_batches = micro_batches, .batch = 16, .context = 64, .layers = 12};
      std::vector<int64_t> peaks;
      for (Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        given.recompute = recompute;
        peaks.push_back(Bytes(given)[""]);
      }
      EXPECT_LT(peaks[1], peaks[0]) << given.str();
      EXPECT_LT(peaks[2], peaks[1]) << given.str();
    }
}

// Layers of experts, each with losses of its own beside its results, weighted by `weight`.
struct WithLosses {
  std::string mesh;
  int micro_batches = 1;
  Recompute recompute = Recompute::kFull;
  double weight = 0;
};
Session TrainWithLosses(const WithLosses& given) {
  const Dims shape = {16, 64, 32};
  Model model(FullMesh(given.mesh));
  Tensor x = model.Input("x", shape, DType::kFloat32, {{"dp", S(0)}});
  nn::ExpertsOptions experts;
  experts.experts = 8;
  experts.ep = "dp";
  experts.aux_loss = experts.z_loss = given.weight;
  std::vector<Tensor> losses;
  Tensor y = nn::layers(model.scope(), x, 8, [&](Scope s, Tensor h, int64_t) {
    h = h + nn::Attention(s / "attention", nn::LayerNorm(s / "norm1", h), {.heads = 4});
    const nn::ExpertsResult result = nn::Experts(s / "experts", nn::LayerNorm(s / "norm2", h), experts);
    if (result.loss.defined()) losses.push_back(result.loss);
    return h + result.y;
  });
  Tensor loss = mean(square(y));
  for (Tensor& one : losses) loss = loss + to_stage_of(one, loss);
  TrainOptions options;
  options.recompute = given.recompute;
  options.micro_batches = given.micro_batches;
  return Train(loss, Sgd{.lr = .1}, options);
}

int64_t PeakWithLosses(const WithLosses& given) { return FullestRank(TrainWithLosses(given)); }

// The gradients of layers' own losses depend on no other layer's: were copies to wait for these alone, all
// layers would be computed again at once. Such a loss keeps two values of the size of the scores: the
// exponentials of its sum, and its gradient until it is added to that of the results.
TEST(Recomputing, OfLayersWithLossesOfTheirOwnKeepsNoMoreLayers) {
  constexpr int64_t kLayers = 8, kScores = 16 * 64 * 8 * 4;  // bytes
  for (const char* mesh : {"cpu:dp=1", "cpu:tp=4", "cpu:dp=2", "cpu:dp=2,tp=2", "cpu:pp=2", "cpu:tp=2,pp=2"})
    for (int micro_batches : {1, 4})
      for (Recompute recompute : {Recompute::kSelective, Recompute::kFull})
        EXPECT_LE(PeakWithLosses({mesh, micro_batches, recompute, .01}),
                  PeakWithLosses({mesh, micro_batches, recompute, 0}) + kLayers * 2 * kScores)
            << mesh << " in " << micro_batches << " " << Name(recompute);
}

TEST(Recomputing, OfLayersWithLossesOfTheirOwnChangesNoBit) {
  for (const char* mesh : {"cpu:tp=2", "cpu:dp=2,pp=2"}) {
    std::vector<std::vector<float>> losses;
    for (Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      Session train = TrainWithLosses({mesh, 2, recompute, .01});
      losses.emplace_back();
      for (uint64_t step = 0; step < 3; ++step)
        losses.back().push_back(train.Run({{"x", Floats(step, {16, 64, 32})}}).Scalar("loss"));
    }
    EXPECT_EQ(losses[0], losses[1]) << mesh;
  }
}

// A region of its own mind, beside others that do as the session says.
TEST(Recomputing, AScopeMaySayIt) {
  auto stash = [](Recompute session, std::optional<Recompute> first) {
    Model model(FullMesh("cpu:dp=1"));
    Tensor x = model.Input("x", {64, 32}, DType::kFloat32);
    for (const char* name : {"a", "b"}) {
      Scope s = model.scope() / name;
      s.Region(name == std::string("a") ? first : std::nullopt);
      x = x + matmul(gelu(matmul(x, s.Weight("up", {32, 128}, Normal(.1)))),
                     s.Weight("down", {128, 32}, Normal(.1)));
    }
    TrainOptions options;
    options.recompute = session;
    options.micro_batches = 2;
    Session train = Train(mean(square(x)), Sgd{.lr = .1}, options);
    return Kept(train);
  };
  const double none = stash(Recompute::kNone, {}), one = stash(Recompute::kNone, Recompute::kFull),
               both = stash(Recompute::kFull, {});
  EXPECT_GT(none, one);
  EXPECT_GT(one, both);
  EXPECT_GT(stash(Recompute::kFull, Recompute::kNone), both);
  EXPECT_EQ(stash(Recompute::kNone, Recompute::kNone), none);
}

TEST(Recomputing, WrongRegionsAreRefused) {
  Model model(FullMesh("cpu:dp=1"));
  Scope outer = model.scope() / "outer", inner = outer / "inner";
  EXPECT_NE(ErrorOf([&] { model.scope().Region(); }).find("the root scope is no region"), std::string::npos);
  outer.Region();
  inner.Region();
  const std::string error = ErrorOf([&] { inner.Region(Recompute::kFull); });
  EXPECT_NE(error.find("'outer/inner' says recompute=full, but lies within region 'outer'"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("recompute_test.cc"), std::string::npos) << error;
}

// --- Sequence parallelism ---

// Of uneven lengths too; with every other way of saving memory beside it.
TEST(SequenceParallel, FollowsOneDevice) {
  SmallGpt alone{.context = 13};
  const std::vector<float> one = LossesOf(alone, 3);
  SmallGpt settings[] = {
      {.mesh = "cpu:tp=2", .sequence = "tp"},
      {.mesh = "cpu:tp=4", .micro_batches = 3, .sequence = "tp"},
      {.mesh = "cpu:dp=2,tp=2,pp=2",
       .micro_batches = 4,
       .zero_axis = "dp",
       .zero_stage = 3,
       .sequence = "tp"},
      {.mesh = "cpu:dp=2,tp=2,pp=2", .micro_batches = 2, .recompute = Recompute::kFull, .sequence = "tp"},
      {.mesh = "cpu:cp=2", .sequence = "cp"},
      {.mesh = "cpu:cp=3", .micro_batches = 3, .recompute = Recompute::kSelective, .sequence = "cp"},
      {.mesh = "cpu:dp=2,tp=2,cp=2",
       .micro_batches = 2,
       .zero_axis = "cp",
       .zero_stage = 3,
       .sequence = "cp"},
      {.mesh = "cpu:pp=2,cp=2", .micro_batches = 4, .sequence = "cp"},
      {.mesh = "cpu:sp=2", .sequence = "sp", .ulysses = true},
      {.mesh = "cpu:sp=3", .micro_batches = 2, .sequence = "sp", .ulysses = true},
      {.mesh = "cpu:dp=2,pp=2,sp=2",
       .micro_batches = 4,
       .zero_axis = "sp",
       .zero_stage = 2,
       .recompute = Recompute::kFull,
       .sequence = "sp",
       .ulysses = true},
  };
  for (SmallGpt& given : settings) {
    given.context = alone.context;
    const std::vector<float> losses = LossesOf(given, 3);
    for (size_t step = 0; step < one.size(); ++step)
      EXPECT_NEAR(losses[step], one[step], 1e-5 * one[step]) << given.str() << " step " << step;
  }
}

// Held, not merely cheap: with so few tokens each device would rather have them all.
TEST(SequenceParallel, HoldsWhatLiesBetweenProducts) {
  for (const char* axis : {"tp", "cp", "sp"}) {
    SmallGpt given{.mesh = Cat("cpu:", axis, "=2"), .batch = 2, .context = 4, .sequence = axis};
    given.ulysses = axis == std::string("sp");
    (given.ulysses || axis == std::string("cp") ? given.parallel.context : given.parallel.tensor) = axis;
    GptProgram program(given);
    Session session = program.MakeTrain();
    const Graph& graph = session.impl()->compiled.graph;
    const int entry = 1 + graph.mesh().AxisOrFail(axis, "test");
    int norms = 0;
    for (int n : graph.Order()) {
      const Node& node = graph.node(n);
      if (node.op != "layer_norm" || node.name.rfind("block", 0) != 0) continue;
      EXPECT_EQ(graph.value(node.out[0]).sbp[entry], S(1)) << node.name << " along " << axis;
      ++norms;
    }
    EXPECT_EQ(norms, 2 * given.layers);
  }
}

// Jacobs et al. 2023: queries, keys, values and attention's result change places, each 1/P of the sequence's
// values but what stays, forward and backward. Weights are summed once.
TEST(SequenceParallel, UlyssesSendsWhatTheFormulaSays) {
  for (int p : {2, 4}) {
    SmallGpt few{.mesh = Cat("cpu:sp=", p), .context = 128, .layers = 2, .sequence = "sp", .ulysses = true};
    SmallGpt many = few;
    many.layers = 6;
    const double values = static_cast<double>(few.batch * few.context * few.width) / p * (p - 1) / p;
    const double weights = 2.0 * (12 * few.width * few.width + 13 * few.width) * (p - 1) / p;
    const double each_layer =
        ((BytesSent(many) - BytesSent(few)) / 4 / 4 - weights) / values;  // fp32, layers
    std::printf("%s: %.2f for each value of a layer\n", few.str().c_str(), each_layer);
    EXPECT_NEAR(each_layer, 8, .1) << few.str();
  }
}

// Korthikanti et al. 2022: for each layer and micro-batch 8 (t-1)/t elements for each of [batch, context,
// width] are sent, as by tensor parallelism alone; the embedding and the loss come once.
TEST(SequenceParallel, SendsWhatTheFormulaSays) {
  for (int t : {2, 4})
    for (int micro_batches : {1, 2}) {
      SmallGpt few{.mesh = Cat("cpu:tp=", t), .micro_batches = micro_batches, .context = 64, .layers = 2};
      few.sequence = "tp";
      SmallGpt many = few;
      many.layers = 6;
      const double values = static_cast<double>(few.batch * few.context * few.width) * (t - 1) / t;
      const double each_layer = (BytesSent(many) - BytesSent(few)) / 4 / 4 / values;  // fp32, layers
      std::printf("%s: %.2f for each value of a layer\n", few.str().c_str(), each_layer);
      EXPECT_LE(each_layer, 8.1) << few.str();
      EXPECT_GE(each_layer, 7.5) << few.str();
    }
}

// --- ZeRO ---

TEST(ZeroStages, FollowOneDevice) {
  const std::vector<float> one = LossesOf({}, 3);
  const SmallGpt settings[] = {
      {.mesh = "cpu:dp=2", .micro_batches = 2},
      {.mesh = "cpu:dp=3", .micro_batches = 2},
      {.mesh = "cpu:dp=2,tp=2", .micro_batches = 4},
      {.mesh = "cpu:dp=2,pp=2", .micro_batches = 4},
  };
  for (SmallGpt given : settings)
    for (auto [stage, prefetch] : {std::pair(1, 1), {2, 1}, {3, 0}, {3, 1}, {3, 2}, {3, 9}}) {
      given.zero_axis = "dp";
      given.zero_stage = stage;
      given.prefetch = prefetch;
      const std::vector<float> losses = LossesOf(given, 3);
      for (size_t step = 0; step < one.size(); ++step)
        EXPECT_NEAR(losses[step], one[step], 1e-5 * one[step]) << given.str() << " step " << step;
    }
}

// Rajbhandari et al. 2020: the sums of a step and the weights gathered once send 2 (N-1)/N elements for each
// weight, with gradients cut in each of m micro-batches m + 1, and with weights gathered for the forward and
// for the backward pass of each at most 3 m. The loss and the gradients' norm are small.
TEST(ZeroStages, SendWhatTheFormulasSay) {
  for (int n : {2, 4})
    for (int m : {1, 2, 4}) {
      SmallGpt given{.mesh = Cat("cpu:dp=", n), .micro_batches = m, .batch = 32, .context = 64};
      EXPECT_NEAR(SharesSent(given, n), 2, .02) << given.str();
      given.zero_axis = "dp";
      EXPECT_NEAR(SharesSent(given, n), 2, .02) << given.str();
      given.zero_stage = 2;
      const double second = SharesSent(given, n);
      EXPECT_LE(second, m + 1.02) << given.str();
      EXPECT_GE(second, .97 * (m + 1)) << given.str();
      given.zero_stage = 3;
      const double third = SharesSent(given, n);
      EXPECT_LE(third, 3 * m + .02) << given.str();
      EXPECT_GE(third, 2.7 * m) << given.str();
    }
}

// Weights, state of Adam and gradients, 16 bytes for each of Psi weights: on one of N ranks 16 Psi, then
// 8 Psi + 12 Psi / N, 4 Psi + 16 Psi / N and 16 Psi / N, and what is under way: a few layers' gradients
// before their sum, and their weights. With several micro-batches the sums of the first two are made behind
// the last, where all of the gradients are there before and after them.
TEST(ZeroStages, HoldWhatTheFormulasSay) {
  constexpr int64_t kLayers = 24, kWidth = 128;
  // Embedding, positions, the last norm; of a layer four and eight products' widths, biases and two norms.
  constexpr double kWeights = kWidth * (64 + 4 + 2) + kLayers * (12.0 * kWidth * kWidth + 13 * kWidth);
  constexpr double kLayer = 4 * 12.0 * kWidth * kWidth;
  for (int n : {2, 4})
    for (int m : {1, 4})
      for (int stage : {0, 1, 2, 3}) {
        SmallGpt given{.mesh = Cat("cpu:dp=", n), .micro_batches = m, .batch = 16, .context = 4};
        given.layers = kLayers;
        given.width = kWidth;
        given.recompute = Recompute::kFull;
        given.bucket_bytes = 1 << 20;  // else a small model's gradients are all in one
        if (stage > 0) given.zero_axis = "dp", given.zero_stage = stage;
        std::map<std::string, int64_t> bytes = Bytes(given);
        const double formulas[] = {16, 8 + 12.0 / n, 4 + 16.0 / n, 16.0 / n};
        const double late[] = {4, 4.0 / n, 0, 0};  // gradients after their sum
        const double state = static_cast<double>(bytes["weights"] + bytes["optimizer state"] +
                                                 bytes["gradients"] + bytes["gathered"]);
        EXPECT_LE(state, kWeights * (formulas[stage] + (m > 1 ? late[stage] : 0)) + 8 * kLayer)
            << given.str() << ": " << state / kWeights << " bytes for each weight";
      }
}

TEST(ZeroStages, TheSecondKeepsAPartOfTheGradients) {
  SmallGpt given{
      .mesh = "cpu:dp=4", .micro_batches = 4, .zero_axis = "dp", .batch = 32, .context = 64, .layers = 12};
  std::map<std::string, int64_t> first = Bytes(given);
  given.zero_stage = 2;
  std::map<std::string, int64_t> second = Bytes(given);
  // A quarter, and the whole gradients of the layers under way.
  EXPECT_LT(second["gradients"], first["gradients"] * 6 / 10);
  EXPECT_EQ(second["optimizer state"], first["optimizer state"]);
}

// A weight read before and after a value of the whole batch, which all micro-batches pass first.
TEST(ZeroStages, WeightsAreReadInEveryPassOverTheBatch) {
  auto losses = [](const char* mesh, int micro_batches, const Zero& zero, bool region) {
    Model model(FullMesh(mesh), {.zero = zero});
    Tensor x = model.Input("x", {12, 6}, DType::kFloat32, {{"dp", S(0)}});
    for (int layer = 0; layer < 3; ++layer) {
      Scope s = model.scope() / Cat("layer", layer);
      if (region) s.Region();
      Tensor w = s.Weight("w", {6, 6}, Normal(.4));
      Tensor h = matmul(x, w);
      h = h - mean(h, {0}, true);
      x = x + matmul(tanh(h), w);
    }
    TrainOptions options;
    options.micro_batches = micro_batches;
    Session train = Train(mean(square(x)), Sgd{.lr = .05, .momentum = .9}, options);
    std::vector<float> found;
    for (int step = 0; step < 3; ++step)
      found.push_back(train.Run({{"x", Floats(step, {12, 6})}}).Scalar("loss"));
    return found;
  };
  const std::vector<float> one = losses("cpu:dp=1", 1, {}, false);
  for (int micro_batches : {1, 3})
    for (int prefetch : {0, 1, 2})
      for (bool region : {false, true}) {
        const std::vector<float> other = losses(
            "cpu:dp=2", micro_batches, {.axis = "dp", .stage = 3, .prefetch = prefetch, .small = 0}, region);
        for (size_t step = 0; step < one.size(); ++step)
          EXPECT_NEAR(other[step], one[step], 1e-5 * one[step])
              << micro_batches << " micro-batches, prefetch " << prefetch << (region ? ", regions" : "");
      }
}

// With prefetch k the weights of at most k + 1 layers are whole in the forward pass, and as many in the
// backward pass.
TEST(ZeroStages, TheThirdHoldsFewWholeWeights) {
  for (const char* mesh : {"cpu:dp=4", "cpu:dp=2,tp=2", "cpu:dp=2,pp=2"})
    for (int micro_batches : {1, 4}) {
      SmallGpt given{.mesh = mesh,
                     .micro_batches = micro_batches,
                     .zero_axis = "dp",
                     .batch = 32,
                     .context = 64,
                     .layers = 12};
      given.zero_stage = 2;
      const std::map<std::string, int64_t> second = Bytes(given);
      given.zero_stage = 3;
      int64_t peak = 0;
      for (int prefetch : {0, 1, 3}) {
        given.prefetch = prefetch;
        std::map<std::string, int64_t> third = Bytes(given);
        if (prefetch <= 1) {
          EXPECT_LT(third[""], second.at("")) << given.str() << " prefetch " << prefetch;
        }
        EXPECT_GE(third[""], peak) << given.str() << " prefetch " << prefetch;
        peak = third[""];
        // A layer has 12 width^2 elements and some of norms and biases; the mesh's other axes leave a part.
        const int64_t layer = 4 * (12 * given.width * given.width + 16 * given.width);
        EXPECT_LE(third["gathered"], 2 * (prefetch + 2) * layer) << given.str() << " prefetch " << prefetch;
      }
    }
}

// A weight that the model cuts along an axis is cut along another one by ZeRO, or not at all.
TEST(ZeroStages, CutWhatNothingElseCuts) {
  GptProgram program({.mesh = "cpu:dp=2,tp=2", .zero_axis = "dp"});
  const Session train = program.MakeTrain();
  const Graph& graph = train.impl()->compiled.graph;
  int cut_twice = 0;
  for (int n : graph.Order()) {
    const Node& node = graph.node(n);
    if (node.kind != NodeKind::kVariable) continue;
    const NdSbp& sbp = graph.value(node.out[0]).sbp;
    std::set<int> axes;
    for (const Sbp& s : sbp)
      if (s.is_split()) EXPECT_TRUE(axes.insert(s.axis).second) << graph.Describe(n);
    cut_twice += axes.size() == 2;
  }
  EXPECT_GT(cut_twice, 8);
}

// The layer that a node is of; -1: none.
int LayerOf(const Graph& graph, int n) {
  const std::string region = graph.regions().Of(graph.node(n).name);
  return region.empty() ? -1 : std::stoi(region.substr(region.find_first_of("0123456789")));
}

// In a step of one micro-batch sums of gradients of at most two layers are under way beside the layer that is
// computed: its work waits for those of the third layer behind it, and for none of the second.
TEST(ZeroStages, SumsOfTwoLayersAreUnderWay) {
  GptProgram program({.mesh = "cpu:dp=2", .layers = 8, .bucket_bytes = 0});
  const Session train = program.MakeTrain();
  const Graph& graph = train.impl()->compiled.graph;
  int waits = 0;
  for (int n : graph.Order())
    for (int sum : graph.node(n).after) {
      const bool of_matrix = IsCollective(graph.node(sum)) &&
                             graph.value(graph.node(sum).out[0]).shape.rank() == 2 &&
                             LayerOf(graph, sum) >= 0;
      if (!of_matrix || !graph.IsHeavy(n)) continue;
      EXPECT_EQ(LayerOf(graph, n), LayerOf(graph, sum) - 3)
          << graph.Describe(n) << " waits for " << graph.Describe(sum);
      ++waits;
    }
  EXPECT_GE(waits, 5 * 5);  // five layers, whose first product is at work
}

// The first layers of a pass have their weights gathered for the next micro-batch while the last ones are
// computed, as many as are gathered ahead; those of the others wait for the last one.
TEST(ZeroStages, GathersGoOnIntoTheNextMicroBatch) {
  constexpr int kLayers = 6;
  for (int prefetch : {0, 2, 3}) {
    GptProgram program({.mesh = "cpu:dp=2",
                        .micro_batches = 2,
                        .zero_axis = "dp",
                        .zero_stage = 3,
                        .prefetch = prefetch,
                        .layers = kLayers,
                        .bucket_bytes = 0});
    const Session train = program.MakeTrain();
    const Graph& graph = train.impl()->compiled.graph;
    int waits[2] = {0, 0};
    for (int n : graph.Order())
      for (int gather : graph.node(n).after) {
        const Node& node = graph.node(gather);
        const int layer = LayerOf(graph, gather);
        const bool works = !IsCollective(graph.node(n)) && graph.node(n).phase != Phase::kUpdate;
        if (!works || !IsCollective(node) || node.rate != Rate::kRemade || layer < 0) continue;
        // Beside the layers there are the tables before them, forward, and what follows them, back.
        const bool forward = node.phase == Phase::kForward;
        const int ahead = std::max(0, prefetch - (forward ? layer + 1 : kLayers - layer));
        const int holds = forward ? (ahead > 0 ? kLayers - ahead : -1) : ahead;
        EXPECT_EQ(LayerOf(graph, n), holds)
            << graph.Describe(n) << " waits for " << graph.Describe(gather) << ", prefetch " << prefetch;
        ++waits[forward];
      }
    EXPECT_GT(waits[0], 10);
    EXPECT_GT(waits[1], 10);
  }
}

// --- Buckets ---

int Collectives(const Session& session) {
  int most = 0;
  for (const RankSummary& rank : session.Summaries()) most = std::max(most, rank.collectives);
  return most;
}
int Collectives(const SmallGpt& given) { return Collectives(GptProgram(given).MakeTrain()); }

// Whatever their size, and no more is sent.
TEST(Buckets, ChangeNoBit) {
  const SmallGpt settings[] = {
      {.mesh = "cpu:dp=2"},
      {.mesh = "cpu:dp=3", .micro_batches = 2, .dtype = DType::kBFloat16},
      {.mesh = "cpu:dp=4", .micro_batches = 2, .zero_axis = "dp"},
      {.mesh = "cpu:dp=2,tp=2,pp=2", .micro_batches = 4, .zero_axis = "dp", .zero_stage = 2},
      {.mesh = "cpu:dp=3", .zero_axis = "dp", .zero_stage = 3, .recompute = Recompute::kFull},
      {.mesh = "cpu:dp=2,tp=2", .micro_batches = 3, .zero_axis = "dp", .zero_stage = 3, .prefetch = 2},
  };
  for (SmallGpt given : settings) {
    given.bucket_bytes = 0;
    GptProgram plain(given);
    Session train = plain.MakeTrain();
    const std::vector<float> apart = plain.Losses(train, 3);
    const double sent = BytesSent(train);
    const int collectives = Collectives(train);
    int fewest = collectives;
    for (int64_t bytes : {1, 5000, 100000, 25 << 20}) {
      given.bucket_bytes = bytes;
      GptProgram bucketed(given);
      Session joined = bucketed.MakeTrain();
      EXPECT_EQ(bucketed.Losses(joined, 3), apart) << given.str() << " bucket " << bytes;
      EXPECT_NEAR(BytesSent(joined), sent, 1e-6 * sent) << given.str() << " bucket " << bytes;
      const int now = Collectives(joined);
      EXPECT_LE(now, fewest) << given.str() << " bucket " << bytes;
      fewest = now;
    }
    std::printf("%s: %d collectives, in buckets %d\n", given.str().c_str(), collectives, fewest);
    EXPECT_LT(fewest, collectives) << given.str();
  }
}

// In the third stage a layer's weights come together, once forward and once backward, and its gradients leave
// together.
TEST(Buckets, OfTheThirdStageAreOfOneLayer) {
  SmallGpt few{.mesh = "cpu:dp=2", .micro_batches = 2, .zero_axis = "dp", .zero_stage = 3, .layers = 2};
  few.parallel.batch = "dp";
  SmallGpt many = few;
  many.layers = 6;
  EXPECT_LE(Collectives(many) - Collectives(few), 4 * 4);
}

TEST(ZeroStages, OthersAreRefused) {
  for (int stage : {-1, 0, 4})
    EXPECT_NE(ErrorOf([&] {
                Model(FullMesh("cpu:dp=2"), {.zero = {"dp", stage}});
              }).find(Cat("ModelOptions::zero: stage is ", stage)),
              std::string::npos);
  EXPECT_NE(ErrorOf([&] {
              Model(FullMesh("cpu:dp=2"), {.zero = {.axis = "dp", .prefetch = -1}});
            }).find("ModelOptions::zero: prefetch is -1"),
            std::string::npos);
}

// The logits of a head and their gradient, which are all there is, become those of a tile, beside the
// gradient of the table, which is then there with them. With classes cut the loss itself stores more of that
// size, and in tiles the statistics of 64 blocks of classes.
TEST(Recomputing, OfLogitsInTilesLeavesATile) {
  for (const std::string mesh : {"cpu:dp=1", "cpu:dp=2,tp=2"})
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SmallGpt given{.mesh = mesh, .batch = 8, .context = 128, .layers = 1, .width = 32, .heads = 2};
      given.vocabulary = 8000;
      given.dropout = 0;
      given.dtype = dtype;
      const int64_t whole = Bytes(given)[""];
      given.logits_tile = 256;
      const int64_t in_tiles = Bytes(given)[""], parts = mesh == "cpu:dp=1" ? 1 : 2;
      const double rows = 8 * 128.0 / parts, classes = 8000.0 / parts, size = SizeOf(dtype);
      const double statistics = parts == 1 ? 0 : 3 * rows * 64 / parts * 4;
      const double formula = 2 * rows * classes * size - 256 * classes * 4 - classes * 32 * 4 - statistics;
      const double fell = static_cast<double>(whole - in_tiles);
      EXPECT_GE(fell, 0.97 * formula) << mesh << " " << Name(dtype);
      if (parts == 1) EXPECT_LE(fell, 1.03 * formula + 256 * classes * 4) << mesh << " " << Name(dtype);
    }
}

}  // namespace
}  // namespace oneflow_like
