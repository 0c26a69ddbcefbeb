// TrainOptions::gather_again: no bit of a loss changes, what a device keeps shrinks with the axis that cuts
// sequences, and messages are those of the formulas.
// ctest: seconds=12
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "oneflow_like/simulate.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

constexpr int64_t kFloat = 4;  // bytes

// Messages of a step that are sent again.
int SentAgain(const Session& session) {
  const Graph& graph = session.impl()->compiled.graph;
  int all = 0;
  for (int n : graph.Order()) all += graph.node(n).why.starts_with(kSentAgain);
  return all;
}

// Bytes that the forward pass makes of a micro-batch and gradients read, on a rank.
double KeptOfRank(const Session& session) {
  const LogicalPlan& plan = session.impl()->compiled.logical;
  const Graph& graph = session.impl()->compiled.graph;
  const std::vector<int> sizes = graph.Sizes();
  double bytes = 0;
  for (const LogicalBuffer& buffer : plan.buffers) {
    if (buffer.writer < 0 || !buffer.variable.empty()) continue;
    const Segment& writer = plan.segments[buffer.writer];
    if (writer.stream < 0 || writer.phase != Phase::kForward) continue;
    if (std::none_of(buffer.readers.begin(), buffer.readers.end(),
                     [&](int reader) { return plan.segments[reader].phase == Phase::kBackward; }))
      continue;
    const Value& value = graph.value(buffer.value);
    if (!value.sbp[0].is_split()) continue;  // the same in all micro-batches
    double mine = static_cast<double>(value.shape.elements()) * SizeOf(value.dtype);
    for (size_t e = 0; e < sizes.size(); ++e)
      if (value.sbp[e].is_split()) mine /= sizes[e];
    bytes += mine;
  }
  return bytes;
}

// Of buffers and scratch, on the fullest rank: positions are weights, which grow with sequences.
int64_t PeakOf(const Session& session) {
  int64_t bytes = 0;
  for (const RankSummary& rank : session.Summaries()) bytes = std::max(bytes, rank.transient_bytes);
  return bytes;
}

// A GPT over sequences that grow with the axis, so that each rank has as many tokens.
SmallGpt LongSequences(int ranks, bool gather_again) {
  SmallGpt given{.mesh = Cat("cpu:cp=", ranks), .batch = 2, .context = 32 * ranks, .sequence = "cp"};
  given.parallel.context = "cp";
  given.gather_again = gather_again;
  return given;
}

// Keys of a rank's tokens in one layer; values are as many.
int64_t KeyBytes(const SmallGpt& given, int ranks) {
  return kFloat * given.batch * given.context / ranks * given.width;
}

TEST(GatherAgain, WhatARankKeepsIsFlatUnderContextParallelism) {
  SmallGpt alone = LongSequences(1, false);
  alone.micro_batches = 2;
  const double least = KeptOfRank(GptProgram(alone).MakeTrain());
  for (int ranks : {1, 2, 4, 8})
    for (bool again : {false, true}) {
      SmallGpt given = LongSequences(ranks, again);
      given.micro_batches = 2;
      // Each layer keeps keys and values of all ranks, or of one.
      const int64_t keys = KeyBytes(given, ranks) / given.micro_batches;
      const int64_t more = again ? 0 : given.layers * 2 * (ranks - 1) * keys;
      EXPECT_NEAR(KeptOfRank(GptProgram(given).MakeTrain()), least + static_cast<double>(more), .01 * least)
          << given.str();
    }
}

// Keys and values of a layer, whole, are all that comes on top, beside their gradients before the sum over
// ranks, which are whole in any case.
TEST(GatherAgain, ThePeakGrowsByOneLayersKeysAndValues) {
  const int64_t alone = PeakOf(GptProgram(LongSequences(1, true)).MakeTrain());
  for (int ranks : {2, 4, 8}) {
    const SmallGpt kept = LongSequences(ranks, false), again = LongSequences(ranks, true);
    const int64_t peak = PeakOf(GptProgram(again).MakeTrain());
    const int64_t keys = KeyBytes(again, ranks), of_layer = 2 * ranks * keys,
                  gradients = 2 * (ranks - 1) * keys;
    EXPECT_LE(peak, static_cast<int64_t>(1.01 * static_cast<double>(alone)) + of_layer + gradients)
        << again.str();
    EXPECT_GE(PeakOf(GptProgram(kept).MakeTrain()), peak + (kept.layers - 2) * 2 * (ranks - 1) * keys)
        << again.str();
  }
}

// With kv the keys of a rank's tokens, a layer gathers keys and values in the forward pass and sums their
// gradients, 4 (N-1) kv, and gathers them once more. A layer that is computed again does so in any case.
TEST(GatherAgain, SendsWhatTheFormulasSay) {
  for (int ranks : {2, 4})
    for (Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
      for (bool again : {false, true}) {
        SmallGpt few = LongSequences(ranks, again);
        few.recompute = recompute;
        few.layers = 2;
        SmallGpt many = few;
        many.layers = 6;
        const double weights = 2.0 * kFloat *
                               static_cast<double>(12 * few.width * few.width + 13 * few.width) *
                               (ranks - 1) / ranks;
        const double each_layer = (BytesSent(many) - BytesSent(few)) / 4 - weights;
        const double of_keys = each_layer / static_cast<double>((ranks - 1) * KeyBytes(few, ranks));
        std::printf("%s: %.3f (N-1) kv a layer\n", few.str().c_str(), of_keys);
        EXPECT_NEAR(of_keys, again || recompute == Recompute::kFull ? 6 : 4, .02) << few.str();
      }
}

// Korthikanti et al. 2022, with the gather of what enters the products sent again: 10 (t-1)/t elements for
// each of [batch, context, width] and layer, and all that is kept cut over t; in 16 bits at most 34/t bytes.
TEST(GatherAgain, SequenceParallelismSendsAndKeepsWhatTheFormulasSay) {
  for (int t : {2, 4}) {
    const auto of_layer = [&](bool again, DType dtype, const auto& measure, int chunks = 1) {
      SmallGpt few{.mesh = Cat("cpu:tp=", t), .micro_batches = 2, .context = 64, .layers = 2, .dtype = dtype};
      few.sequence = "tp";
      few.gather_again = again;
      few.overlap = {.chunks = chunks, .always = true};
      SmallGpt many = few;
      many.layers = 6;
      const double values = static_cast<double>(few.batch * few.context * few.width);
      return (measure(GptProgram(many).MakeTrain()) - measure(GptProgram(few).MakeTrain())) / 4 / values;
    };
    const auto sent = [](const Session& session) { return BytesSent(session); };
    const auto stash = [](const Session& session) {  // of a micro-batch
      return KeptOfRank(session) * session.impl()->compiled.graph.times();
    };
    const double kept = of_layer(false, DType::kFloat32, sent), again = of_layer(true, DType::kFloat32, sent);
    EXPECT_NEAR(again - kept, 2.0 * kFloat * (t - 1) / t, 1e-3);
    EXPECT_NEAR(again, 10.0 * kFloat * (t - 1) / t, .05 * again);
    const double whole = of_layer(false, DType::kBFloat16, stash),
                 cut = of_layer(true, DType::kBFloat16, stash);
    std::printf("t=%d: %.3f (t-1)/t elements sent, %.2f/t bytes kept, %.2f/t with what is gathered\n", t,
                again / kFloat * t / (t - 1), cut * t, whole * t);
    EXPECT_LE(cut * t, 34);
    // The same of products in chunks, which are joined for the gradients.
    EXPECT_NEAR(of_layer(true, DType::kFloat32, sent, 4), again, 1e-3);
    EXPECT_NEAR(of_layer(true, DType::kBFloat16, stash, 4), cut, 1e-3);
    EXPECT_NEAR(whole - cut, 2 * 2 * (1 - 1.0 / t), 1e-3);  // two values a layer, of two bytes
  }
}

// Ulysses exchanges queries, keys, values and attention's result. The last is kept as attention made it, so
// it is not kept as the product reads it: a ninth exchange of a layer, for one value less. The others are
// kept once.
TEST(GatherAgain, UlyssesSendsAttentionsResultAgain) {
  constexpr int kRanks = 2;
  const auto of_layer = [&](bool again, const auto& measure) {
    SmallGpt few{.mesh = "cpu:sp=2", .context = 128, .layers = 2, .sequence = "sp", .ulysses = true};
    few.parallel.context = "sp";
    few.gather_again = again;
    SmallGpt many = few;
    many.layers = 6;
    return (measure(GptProgram(many).MakeTrain()) - measure(GptProgram(few).MakeTrain())) / 4;
  };
  const auto sent = [](const Session& session) { return BytesSent(session); };
  const auto peak = [](const Session& session) { return static_cast<double>(PeakOf(session)); };
  const SmallGpt given{.context = 128};
  const double value = static_cast<double>(kFloat * given.batch * given.context * given.width) / kRanks;
  EXPECT_NEAR(of_layer(true, sent) - of_layer(false, sent), value * (kRanks - 1) / kRanks, 1);
  EXPECT_NEAR(of_layer(false, peak) - of_layer(true, peak), value, .1 * value);
}

std::vector<float> Losses(const SmallGpt& given, int steps, int* sent_again) {
  GptProgram program(given);
  Session train = program.MakeTrain();
  *sent_again = SentAgain(train);
  return program.Losses(train, steps);
}

TEST(GatherAgain, ChangesNoBit) {
  const SmallGpt settings[] = {
      {.mesh = "cpu:dp=2,tp=2,pp=2",
       .micro_batches = 4,
       .zero_axis = "dp",
       .zero_stage = 1,
       .sequence = "tp"},
      {.mesh = "cpu:dp=2,tp=2,pp=2",
       .micro_batches = 4,
       .schedule = PipelineSchedule::kGPipe,
       .zero_axis = "dp",
       .zero_stage = 2,
       .dtype = DType::kBFloat16,
       .sequence = "tp"},
      {.mesh = "cpu:dp=2,tp=2,pp=2",
       .micro_batches = 2,
       .schedule = PipelineSchedule::kZeroBubble,
       .zero_axis = "dp",
       .zero_stage = 3,
       .sequence = "tp"},
      {.mesh = "cpu:tp=2,pp=2",
       .micro_batches = 4,
       .schedule = PipelineSchedule::kInterleaved,
       .recompute = Recompute::kSelective,
       .model_options = {.pipeline = {.virtual_stages = 2}},
       .sequence = "tp"},
      {.mesh = "cpu:tp=2",
       .micro_batches = 2,
       .batch = 16,
       .sequence = "tp",
       .overlap = {.chunks = 4, .always = true}},
      {.mesh = "cpu:dp=2,pp=2,cp=2",
       .micro_batches = 4,
       .zero_axis = "dp",
       .zero_stage = 3,
       .sequence = "cp"},
      {.mesh = "cpu:cp=4", .dtype = DType::kBFloat16, .sequence = "cp"},
      {.mesh = "cpu:pp=2,cp=2",
       .micro_batches = 3,
       .schedule = PipelineSchedule::kZeroBubble,
       .recompute = Recompute::kSelective,
       .sequence = "cp"},
      {.mesh = "cpu:tp=2,sp=2",
       .micro_batches = 2,
       .zero_axis = "sp",
       .zero_stage = 2,
       .sequence = "sp",
       .ulysses = true},
  };
  constexpr int kSteps = 20;
  for (SmallGpt given : settings) {
    given.width = 32;
    int messages = 0;
    given.gather_again = false;
    const std::vector<float> kept = Losses(given, kSteps, &messages);
    EXPECT_EQ(messages, 0);
    EXPECT_LT(kept.back(), kept.front());
    given.gather_again = true;
    EXPECT_EQ(Losses(given, kSteps, &messages), kept) << given.str();
    EXPECT_GE(messages, given.layers) << given.str();
  }
}

// Where nothing is cut there is nothing to send again, and the plan is the same.
TEST(GatherAgain, ChangesNoPlanWithoutMessages) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2", "cpu:dp=2,pp=2"}) {
    SmallGpt given{.mesh = mesh, .micro_batches = 2};
    const auto hash = [&] { return GptProgram(given).MakeTrain().impl()->compiled.logical.hash; };
    const uint64_t before = hash();
    given.gather_again = true;
    EXPECT_EQ(hash(), before) << given.str();
  }
}

// A gather that runs beside the backward pass of the products behind attention costs no time.
TEST(GatherAgain, BeginsBeforeItsResultsAreRead) {
  Machine machine;
  machine.topology.links = {{.devices = 0, .latency = 1e-6, .bandwidth = 2e9}};
  machine.flops = 1e11;
  SmallGpt given = LongSequences(2, false);
  given.batch = 16;
  given.context = 256;
  given.micro_batches = 4;
  const double kept = Simulate(GptProgram(given).MakeTrain(), machine).seconds;
  given.gather_again = true;
  const double again = Simulate(GptProgram(given).MakeTrain(), machine).seconds;
  std::printf("%.3f ms, gathered again %.3f ms\n", 1e3 * kept, 1e3 * again);
  EXPECT_LE(again, 1.01 * kept);
}

}  // namespace
}  // namespace oneflow_like
