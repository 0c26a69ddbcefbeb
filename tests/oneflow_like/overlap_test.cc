// Products in chunks beside their collectives: no bit of a loss changes, no byte more is sent, and the
// estimate decides where.
// ctest: long=15
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "compiler/explain.h"
#include "compiler/plan/schedule.h"
#include "oneflow_like/simulate.h"
#include "ops/manifest.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

constexpr Overlap kAlways{.chunks = 4, .always = true};

// Reference kernels compute each row of a product as by itself; fast ones may sum in another order where few
// rows are left.
std::vector<float> Losses(const SmallGpt& given, bool reference, Overlapped* overlapped = nullptr) {
  GptProgram program(given);
  if (reference) {
    ModelImpl& model = *program.model().impl();
    model.registry = KernelRegistry();
    AddReferenceKernels(model.catalog, &model.registry);
    AddBoxingKernels(&model.registry);
  }
  Session train = program.MakeTrain();
  if (overlapped) *overlapped = OverlappedIn(train.impl()->compiled);
  return program.Losses(train, 3);
}

Overlapped In(const SmallGpt& given) { return OverlappedIn(GptProgram(given).MakeTrain().impl()->compiled); }

double Sent(const SmallGpt& given) {
  double sent = 0;
  for (const RankSummary& rank : GptProgram(given).MakeTrain().Summaries()) sent += rank.bytes_sent;
  return sent;
}

// Meshes, sequences, schedules, stages of ZeRO, recomputation, micro-batches and types.
std::vector<SmallGpt> Settings() {
  const Parallel roles{.batch = "dp", .tensor = "tp"};
  std::vector<SmallGpt> all = {
      {.mesh = "cpu:tp=2", .parallel = roles},
      {.mesh = "cpu:tp=2", .sequence = "tp", .parallel = roles},
      {.mesh = "cpu:tp=4", .micro_batches = 2, .recompute = Recompute::kFull, .sequence = "tp"},
      {.mesh = "cpu:tp=2",
       .micro_batches = 3,
       .dtype = DType::kBFloat16,
       .sequence = "tp",
       .parallel = roles},
      {.mesh = "cpu:dp=2,tp=2", .micro_batches = 2, .zero_axis = "dp", .zero_stage = 3, .parallel = roles},
      {.mesh = "cpu:dp=2,tp=2",
       .micro_batches = 2,
       .zero_axis = "dp",
       .zero_stage = 2,
       .recompute = Recompute::kSelective,
       .sequence = "tp",
       .parallel = roles},
      {.mesh = "cpu:tp=2,pp=2",
       .micro_batches = 4,
       .schedule = PipelineSchedule::kZeroBubble,
       .sequence = "tp",
       .parallel = roles},
      {.mesh = "cpu:tp=2,pp=2",
       .micro_batches = 4,
       .schedule = PipelineSchedule::kInterleaved,
       .model_options = {.pipeline = {.virtual_stages = 2}},
       .sequence = "tp",
       .parallel = roles},
  };
  for (SmallGpt& given : all) {
    given.layers = 2;
    given.width = 32;
    if (given.mesh.find("pp") != std::string::npos) given.layers = 4;
  }
  return all;
}

// In 2 and in 4 chunks, or each setting in one of the two.
void ExpectNoBitChanged(bool both) {
  int number = 0;
  for (SmallGpt given : Settings()) {
    SCOPED_TRACE(given.str());
    const std::vector<float> plain = Losses(given, true);
    ++number;
    for (int chunks : {2, 4}) {
      if (!both && number % 2 != chunks / 4) continue;
      given.overlap = {.chunks = chunks, .always = true};
      Overlapped overlapped;
      EXPECT_EQ(Losses(given, true, &overlapped), plain) << chunks << " chunks";
      EXPECT_FALSE(overlapped.products.empty());
    }
  }
}
TEST(Overlapping, ChangesNoBitWithReferenceKernels) { ExpectNoBitChanged(false); }
TEST(LongOverlapping, ChangesNoBitWithReferenceKernels) { ExpectNoBitChanged(true); }

TEST(Overlapping, IsNearWithFastKernels) {
  for (SmallGpt given : Settings()) {
    const double within = given.dtype == DType::kFloat32 ? 1e-5 : 2e-2;
    const std::vector<float> plain = Losses(given, false);
    given.overlap = kAlways;
    const std::vector<float> chunked = Losses(given, false);
    for (size_t i = 0; i < plain.size(); ++i)
      EXPECT_NEAR(chunked[i], plain[i], within * plain[i]) << given.str() << " step " << i;
  }
}

TEST(Overlapping, SendsNoByteMore) {
  for (SmallGpt given : Settings()) {
    const double plain = Sent(given);
    given.overlap = kAlways;
    EXPECT_EQ(Sent(given), plain) << given.str();
  }
}

// Two devices of a model of some size; bytes/s of the line between them.
SmallGpt OverLine(double bandwidth, int chunks, const std::string& sequence = "tp") {
  return {.mesh = "cpu:tp=2",
          .batch = 8,
          .context = 512,
          .layers = 2,
          .width = 1024,
          .heads = 16,
          .vocabulary = 1024,
          .model_options = {.link = {bandwidth}},
          .dropout = 0,
          .sequence = sequence,
          .parallel = {.tensor = "tp"},
          .overlap = {.chunks = chunks}};
}

// The gradient of `down` reads the gathered h as well, by rows that could go in chunks; they are no reason
// for the product of the forward pass to wait for the backward one, whose region computes h again.
TEST(Overlapping, TheForwardPassWaitsForNoGradient) {
  const auto losses = [](const std::string& mesh, Recompute recompute, const Overlap& overlap) {
    Model model(Mesh::Parse(mesh));
    Tensor x = model.Input("x", {4, 8}, DType::kFloat32);
    Tensor y = nn::layers(model.scope(), x, 2, [](Scope s, Tensor h, int64_t) {
      h = matmul(h, s.Weight("up", {8, 16}, Normal(.3), {{"tp", S(1)}}));
      h = softplus(h + s.Weight("bias", {16}, Normal(.3), {{"tp", S(0)}}));
      return matmul(h, s.Weight("down", {16, 8}, Normal(.3), {{"tp", S(1)}}));
    });
    TrainOptions options;
    options.recompute = recompute;
    options.overlap = overlap;
    Session train = Train(mean(square(y)), Sgd{.lr = .1}, options);
    std::vector<float> result;
    for (int step = 0; step < 3; ++step)
      result.push_back(train.Run({{"x", Floats(step, {4, 8})}}).Scalar("loss"));
    return result;
  };
  const std::vector<float> wanted = losses("cpu:tp=1", Recompute::kNone, {});
  for (Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
    for (int chunks : {2, 4}) {
      const std::vector<float> got = losses("cpu:tp=2", recompute, {.chunks = chunks, .always = true});
      for (size_t i = 0; i < wanted.size(); ++i)
        EXPECT_NEAR(got[i], wanted[i], 1e-5 * wanted[i]) << Name(recompute) << ", " << chunks << " chunks";
    }
}

// Rows of samples that are merged: 12, 9 and 9 of 30 in micro-batches of 4, 3 and 3 samples. Seven columns
// are no chunks.
TEST(Overlapping, MergedRowsMayBeUneven) {
  const auto losses = [](const std::string& mesh, int micro_batches, const Overlap& overlap) {
    Model model(Mesh::Parse(mesh));
    Scope s = model.scope();
    Tensor x = reshape(model.Input("x", {10, 3, 8}, DType::kFloat32), {30, 8});
    x = relu(matmul(x, s.Weight("up", {8, 16}, Normal(.3), {{"tp", S(1)}})));
    x = reshape(matmul(x, s.Weight("down", {16, 7}, Normal(.3), {{"tp", S(0)}})), {10, 3, 7});
    TrainOptions options;
    options.micro_batches = micro_batches;
    options.overlap = overlap;
    Session train = Train(mean(square(x - 1)), Sgd{.lr = .1}, options);
    std::vector<float> result;
    for (int step = 0; step < 3; ++step)
      result.push_back(train.Run({{"x", Floats(step, {10, 3, 8})}}).Scalar("loss"));
    return result;
  };
  const std::vector<float> wanted = losses("cpu:tp=1", 1, {});
  for (int micro_batches : {1, 2, 3})
    for (int chunks : {2, 5}) {
      const std::vector<float> got = losses("cpu:tp=2", micro_batches, {.chunks = chunks, .always = true});
      for (size_t i = 0; i < wanted.size(); ++i)
        EXPECT_NEAR(got[i], wanted[i], 1e-5 * wanted[i])
            << micro_batches << " micro-batches, " << chunks << " chunks";
    }
}

// A product of one column, which only one of two devices has; what it reads is gathered along the sequence.
TEST(Overlapping, AColumnMayBeAlone) {
  const auto losses = [](const std::string& mesh, const Overlap& overlap) {
    Model model(Mesh::Parse(mesh));
    Tensor x = model.Input("x", {4, 8, 6}, DType::kFloat32);
    Tensor h = tanh(matmul(x, model.scope().Weight("up", {6, 6}, Normal(.3))));
    h = annotate(h, {{"tp", S(1)}});
    Tensor u = model.scope().Weight("u", {6, 1}, Normal(.3), {{"tp", S(1)}});
    Tensor y = annotate(matmul(h, u), {{"tp", S(2)}});
    TrainOptions options;
    options.overlap = overlap;
    Session train = Train(mean(square(tanh(y) - 1)), Sgd{.lr = .1}, options);
    std::vector<float> result;
    for (int step = 0; step < 3; ++step)
      result.push_back(train.Run({{"x", Floats(step, {4, 8, 6})}}).Scalar("loss"));
    return result;
  };
  const std::vector<float> wanted = losses("cpu:tp=1", {});
  const std::vector<float> got = losses("cpu:tp=2", {.chunks = 2, .always = true});
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-5 * wanted[i]);
}

TEST(Overlapping, IsDeclinedInMemoryAndTakenOverALine) {
  EXPECT_TRUE(In(OverLine(0, 4)).products.empty());
  for (const char* sequence : {"tp", ""}) {
    EXPECT_GE(In(OverLine(1e8, 4, sequence)).products.size(), 4u) << sequence;
    // Gradients of weights, beside sums: four products of a layer have some.
    EXPECT_GE(In(OverLine(1e8, 4, sequence)).behind.size(), 4u) << sequence;
  }
  EXPECT_TRUE(In(OverLine(1e8, 1)).products.empty());
  EXPECT_TRUE(In(OverLine(1, 4)).products.empty());  // messages take all the time there is
}

// Each chunk reads all of a weight: of few rows that takes longer than what is hidden.
TEST(Overlapping, IsDeclinedWhereChunksWouldReadLargeWeights) {
  for (double bandwidth : {3e8, 1e9}) {
    SmallGpt given = OverLine(bandwidth, 4);
    given.batch = 1;
    given.context = 32;
    EXPECT_TRUE(In(given).products.empty()) << bandwidth;
  }
}

// Where messages take time, a stage works on a second micro-batch meanwhile, at the price of its activations;
// where they take none, or one micro-batch is all there is, it does not.
TEST(Overlapping, FillsTheTimeOfMessagesWithASecondMicroBatch) {
  for (const char* sequence : {"tp", ""})
    for (int micro_batches : {1, 2, 4}) {
      SmallGpt given = OverLine(1e8, 1, sequence);
      given.micro_batches = micro_batches;
      const auto plan_of = [&](const Overlap& overlap) {
        given.overlap = overlap;
        return GptProgram(given).MakeTrain().impl()->compiled.logical;
      };
      const LogicalPlan plain = plan_of({}), filled = plan_of({.chunks = 2}),
                        chunked = plan_of({.chunks = 2, .gain = 0.5});
      EXPECT_EQ(plain.beside, 1);
      EXPECT_EQ(chunked.beside, 1);
      EXPECT_EQ(filled.beside, micro_batches > 1 ? 2 : 1) << given.str();
      if (micro_batches > 1) {
        EXPECT_LT(filled.makespan, 0.97 * plain.makespan) << given.str();
      }
      given.model_options.link = {};
      EXPECT_EQ(plan_of({.chunks = 2}).beside, 1) << given.str();
    }
}

// Every schedule keeps to its limits: of those with waits of their own there is no second one.
TEST(Overlapping, SchedulesAllowASecondMicroBatch) {
  for (PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kGPipe,
                                    PipelineSchedule::kZeroBubble, PipelineSchedule::kInterleaved})
    for (int micro_batches : {1, 2, 5}) {
      SmallGpt given = {.mesh = "cpu:tp=2,pp=2", .micro_batches = micro_batches, .schedule = schedule};
      const bool interleaved = schedule == PipelineSchedule::kInterleaved;
      given.batch = 10;
      given.layers = 4;
      if (interleaved && micro_batches < 2) continue;
      if (interleaved) given.model_options.pipeline.virtual_stages = 2;
      const Session plain = GptProgram(given).MakeTrain();
      given.overlap = kAlways;
      GptProgram program(given);
      const Session train = program.MakeTrain();
      const LogicalPlan &before = plain.impl()->compiled.logical, &plan = train.impl()->compiled.logical;
      const bool fills = micro_batches > 1 && !interleaved && schedule != PipelineSchedule::kZeroBubble;
      EXPECT_EQ(plan.beside, fills ? 2 : 1) << given.str();
      int most = 0, most_before = 0;
      for (const StageLimit& limit : LimitsOf(plan, micro_batches))
        most = std::max(most, limit.micro_batches);
      for (const StageLimit& limit : LimitsOf(before, micro_batches))
        most_before = std::max(most_before, limit.micro_batches);
      EXPECT_EQ(most, std::min(most_before + fills, micro_batches)) << given.str();
    }
}

// In the play of the whole step too, with all that runs beside.
TEST(Overlapping, ShortensTheEstimatedStep) {
  for (const char* sequence : {"tp", ""})
    for (double bandwidth : {3e7, 1e8, 3e8, 1e9}) {
      double step[2];
      for (int i : {0, 1})
        step[i] = GptProgram(OverLine(bandwidth, i ? 8 : 1, sequence))
                      .MakeTrain()
                      .impl()
                      ->compiled.logical.makespan;
      std::printf("%9.2g bytes/s, sequence '%s': a step of %.3f s for %.3f s by estimate\n", bandwidth,
                  sequence, step[1], step[0]);
      // The estimate is of a product and its message: with others beside it a fast line may lose a little.
      EXPECT_LE(step[1], 1.002 * step[0]) << bandwidth << " " << sequence;
      if (bandwidth == 1e8) {
        EXPECT_LT(step[1], .92 * step[0]) << sequence;
      }
    }
}

// Four layers of 64 experts, of which a token uses six, dealt to a node of eight H100: width 2,048, inner
// 1,408, micro-batches of 4,096 tokens a device.
struct ExpertsOfNode {
  double room;  // nn::ExpertsOptions::room; 0: the first form
  int chunks;
};
// The part of the time of all-to-alls, one after another, by which a step is not longer than one whose
// messages take none.
double HiddenOf(const ExpertsOfNode& given) {
  constexpr int kMicroBatches = 2;
  const std::string topology = OFL_SOURCE_DIR "/examples/topologies/h100_cluster.txt";
  Model model(Mesh::Parse("cpu:dp=8"), {.topology = topology});
  Tensor x = model.Input("x", {8 * kMicroBatches, 4096, 2048}, DType::kFloat32, {{"dp", S(0)}});
  nn::ExpertsOptions experts;
  experts.experts = 64;
  experts.inner = 1408;
  experts.gated = true;
  experts.top_k = 6;
  experts.room = given.room;
  experts.ep = "dp";
  Tensor y = nn::layers(model.scope(), x, 4, [&](Scope s, Tensor h, int64_t) {
    return h + nn::Experts(s / "experts", nn::RmsNorm(s / "norm", h), experts).y;
  });
  TrainOptions options;
  options.parallel.batch = "dp";
  options.dtype = DType::kBFloat16;
  options.micro_batches = kMicroBatches;
  options.overlap.chunks = given.chunks;
  const Session train = Train(mean(square(y)), Sgd{.lr = .1}, options);
  const Compiled& compiled = train.impl()->compiled;
  double messages = 0;
  for (const Segment& segment : compiled.logical.segments)
    if (compiled.graph.node(segment.nodes[0]).op == "all_to_all") messages += segment.seconds * kMicroBatches;
  Machine machine = ReadTopology(topology);
  const double seconds = Simulate(train, machine).seconds;
  for (Topology::Link& link : machine.topology.links) link.latency = 0, link.bandwidth = 1e18;
  machine.collectives.clear();
  const double without = Simulate(train, machine).seconds;
  std::printf("room %g, chunks %d: a step of %.2f ms, %.2f without the %.2f of messages\n", given.room,
              given.chunks, 1e3 * seconds, 1e3 * without, 1e3 * messages);
  return 1 - (seconds - without) / messages;
}

// The all-to-alls of one micro-batch are under way while another's experts are multiplied.
TEST(Overlapping, HidesTheExchangeOfExperts) {
  for (double room : {0., 1.25}) {
    EXPECT_LT(HiddenOf({room, 1}), .5);
    EXPECT_GE(HiddenOf({room, 2}), .8);
  }
}

TEST(Overlapping, IsExplained) {
  Session train = GptProgram(OverLine(1e8, 4)).MakeTrain();
  for (const char* words : {" products in chunks beside their messages", " gradients of weights beside sums"})
    EXPECT_NE(train.SummaryText().find(words), std::string::npos) << words;
  for (const char* words : {"chunk 1 of ", ", beside the gather of 'block0/norm1/",
                            " over tp: ", "put behind ", " ms by estimate"})
    EXPECT_NE(train.ExplainText().find(words), std::string::npos) << words;
  EXPECT_NE(GptProgram(OverLine(0, 4)).MakeTrain().SummaryText().find("no product is estimated to gain"),
            std::string::npos);
}

TEST(Overlapping, RefusesSenselessNumbers) {
  for (auto [chunks, gain, words] :
       {std::tuple(0, .03, "overlap.chunks is 0"), std::tuple(4, -.1, "overlap.gain is -0.1"),
        std::tuple(4, 1.0, "overlap.gain is 1")}) {
    SmallGpt given{.overlap = {.chunks = chunks, .gain = gain}};
    const std::string error = ErrorOf([&] { GptProgram(given).MakeTrain(); });
    EXPECT_NE(error.find(words), std::string::npos) << error;
  }
  EXPECT_NE(ErrorOf([] { Model(Mesh::Parse("cpu:dp=1"), {.link = {-1}}); }).find("link: bandwidth is -1"),
            std::string::npos);
}

}  // namespace
}  // namespace oneflow_like
