// Sequences that are dealt over a mesh axis: every position once, even causal work, one loss curve.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "examples/gpt_model.h"
#include "examples/llama_model.h"
#include "ops/cpu/attention_tile.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {

using namespace examples;
namespace {

// Pairs of a query and a key that it sees, of each part, over their mean.
double LargestOverMean(int64_t length, int64_t parts) {
  const std::vector<int32_t> positions = nn::DealtPositions(length, parts);
  double largest = 0;
  for (int64_t p = 0; p < parts; ++p) {
    const Interval places = Cut({0, length}, parts, p, 1);
    double pairs = 0;
    for (int64_t i = 0; i < places.extent; ++i) pairs += positions[places.begin + i] + 1;
    largest = std::max(largest, pairs);
  }
  return largest * static_cast<double>(parts) /
         (static_cast<double>(length) * static_cast<double>(length + 1) / 2);
}

TEST(DealtPositions, AreEachThereOnceAndEven) {
  for (int64_t parts = 1; parts <= 9; ++parts)
    for (int64_t length = 0; length <= 150; ++length) {
      std::vector<int32_t> positions = nn::DealtPositions(length, parts);
      std::sort(positions.begin(), positions.end());
      for (int64_t i = 0; i < length; ++i) ASSERT_EQ(positions[i], i) << length << " over " << parts;
      if (length == 0) continue;
      if (length % (2 * parts) == 0) {
        EXPECT_NEAR(LargestOverMean(length, parts), 1, 1e-12);
      }
      if (length >= 20 * parts) {
        EXPECT_LE(LargestOverMean(length, parts), 1.1) << length << " over " << parts;
      }
    }
  EXPECT_EQ(nn::DealtPositions(8, 2), (std::vector<int32_t>{0, 1, 6, 7, 2, 3, 4, 5}));
}

// Tiles of queries and keys that the kernel of part p works on, of those that positions do not mask
// throughout.
int64_t TilesOf(const std::vector<int32_t>& positions, int64_t parts, int64_t p) {
  const int64_t length = std::ssize(positions);
  const Interval mine = Cut({0, length}, parts, p, 1);
  std::vector<int32_t> all = positions;
  TensorArg q{.global = {1, length, 1, 8}, .begin = {0, mine.begin, 0, 0}, .extent = {1, mine.extent, 1, 8}};
  TensorArg k{.global = {1, length, 1, 8}, .begin = {0, 0, 0, 0}, .extent = {1, length, 1, 8}};
  TensorArg of_q{all.data() + mine.begin, DType::kInt32, {length}, {mine.begin}, {mine.extent}};
  TensorArg of_k{all.data(), DType::kInt32, {length}, {0}, {length}};
  KernelSpec spec;
  spec.attrs = {{"causal", int64_t{1}}, {"masks", "query_positions key_positions"}};
  const std::vector<TensorArg> in = {q, k, k, of_q, of_k};
  const KernelContext context{.spec = spec, .in = in, .out = {}};
  const cpu::AttentionCall call(context, 0, 3);
  int64_t tiles = 0;
  for (int64_t s = 0; s < mine.extent; s += cpu::kLanes) {
    cpu::BlockMask mask(call, 0, 0, s, std::min(cpu::kLanes, mine.extent - s));
    for (int64_t t = 0; t < length; t += cpu::kTileKeys)
      tiles += mask.Sees(t, std::min(cpu::kTileKeys, length - t));
  }
  return tiles;
}

TEST(DealtPositions, GiveKernelsEvenWork) {
  for (int64_t parts : {2, 3, 4, 8})
    for (int64_t tiles_of_block : {1, 2, 5}) {
      const int64_t length = 2 * parts * tiles_of_block * cpu::kLanes;
      std::vector<int32_t> in_order(length);
      std::iota(in_order.begin(), in_order.end(), 0);
      for (bool dealt : {false, true}) {
        double largest = 0, sum = 0;
        for (int64_t p = 0; p < parts; ++p) {
          const int64_t tiles = TilesOf(dealt ? nn::DealtPositions(length, parts) : in_order, parts, p);
          largest = std::max(largest, static_cast<double>(tiles));
          sum += static_cast<double>(tiles);
        }
        const double over_mean = largest * static_cast<double>(parts) / sum;
        std::printf("%ld positions over %ld devices%s: the largest has %.2f of the mean work\n", length,
                    parts, dealt ? ", dealt" : "", over_mean);
        if (dealt) {
          EXPECT_LE(over_mean, 1.1);
        } else {
          EXPECT_GT(over_mean, 1.3);
        }
      }
    }
}

struct DealtRun {
  std::string mesh = "cpu:cp=1";
  int64_t context = 16;
  int micro_batches = 1;
  bool llama = false;
  bool dealt = true;
  DType dtype = DType::kFloat32;
  Recompute recompute = Recompute::kNone;
};

Mesh MeshOf(const std::string& text) {
  const Mesh mesh = Mesh::Parse(text);
  std::vector<std::pair<std::string, int>> axes;
  for (const char* name : {"dp", "tp", "pp", "cp"}) {
    const int a = mesh.FindAxis(name);
    axes.push_back({name, a < 0 ? 1 : mesh.axis_size(a)});
  }
  return Mesh(mesh.kind(), axes);
}

constexpr int64_t kBatch = 4, kTokens = 37;

Feeds Tokens(int step, int64_t context) {
  return {{"tokens", Ids(2 * step, {kBatch, context}, kTokens)},
          {"targets", Ids(2 * step + 1, {kBatch, context}, kTokens)}};
}

struct Program {
  explicit Program(const DealtRun& run) : run(run), model(MeshOf(run.mesh)) {
    const bool cut = model.mesh().axis_size(3) > 1;
    const Annotation how = {{"dp", S(0)}, {"cp", S(1)}};
    Tensor tokens = model.Input("tokens", {kBatch, run.context}, DType::kInt32, how);
    Tensor targets = model.Input("targets", {kBatch, run.context}, DType::kInt32, how);
    const nn::DealtSequence dealt(model.scope(), run.context, run.dealt ? "cp" : "");
    tokens = dealt.Deal(tokens);
    const std::string sequence = cut ? "cp" : "";
    if (run.llama) {
      LlamaConfig config;
      config.layers = 2;
      config.vocabulary = kTokens;
      config.sequence = sequence;
      logits = LlamaLogits(model.scope(), tokens, config, dealt.positions());
    } else {
      const GptConfig config{.layers = 2,
                             .width = 32,
                             .heads = 2,
                             .context = run.context + 3,
                             .vocabulary = kTokens,
                             .sequence = sequence};
      logits = GptLogits(model.scope(), tokens, config, dealt.positions());
    }
    Tensor each = cross_entropy(logits, dealt.Deal(targets));
    loss = mean(each);
    in_order = dealt.Restore(each);
  }

  std::vector<float> Losses(HostTensor* each = nullptr) {
    TrainOptions options;
    options.micro_batches = run.micro_batches;
    options.dtype = run.dtype;
    options.recompute = run.recompute;
    options.parallel = {.batch = "dp", .tensor = "tp", .context = "cp"};
    options.outputs = {{"each", in_order}};
    Session train = Train(loss, AdamW{.lr = 1e-2}, options);
    std::vector<float> losses;
    for (int step = 0; step < 4; ++step) {
      const StepResult result = train.Run(Tokens(step, run.context));
      losses.push_back(result.Scalar("loss"));
      if (each != nullptr) *each = result.Get("each");
    }
    return losses;
  }

  DealtRun run;
  Model model;
  Tensor logits, loss, in_order;
};

TEST(DealtSequence, HasTheLossesOfOneDevice) {
  for (bool llama : {false, true})
    for (int64_t context : {16, 17, 13, 9}) {
      HostTensor whole;
      const std::vector<float> alone = Program({.context = context, .llama = llama}).Losses(&whole);
      for (DealtRun run : {DealtRun{.mesh = "cpu:cp=2"}, DealtRun{.mesh = "cpu:cp=3", .micro_batches = 2},
                           DealtRun{.mesh = "cpu:cp=4", .recompute = Recompute::kFull},
                           DealtRun{.mesh = "cpu:dp=2,cp=2", .micro_batches = 2},
                           DealtRun{.mesh = "cpu:tp=2,cp=2", .recompute = Recompute::kSelective},
                           DealtRun{.mesh = "cpu:pp=2,cp=2", .micro_batches = 2}}) {
        run.context = context;
        run.llama = llama;
        SCOPED_TRACE(Cat(run.mesh, " context ", context, llama ? " llama" : ""));
        HostTensor each;
        const std::vector<float> losses = Program(run).Losses(&each);
        for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], alone[i], 1e-5 * alone[i]);
        for (int64_t i = 0; i < each.elements(); ++i)
          ASSERT_NEAR(each.as<float>()[i], whole.as<float>()[i], 1e-3) << "place " << i;
      }
    }
}

TEST(DealtSequence, RefusesAnotherLength) {
  Model model(MeshOf("cpu:cp=2"));
  const nn::DealtSequence dealt(model.scope(), 8, "cp");
  Tensor x = model.Input("x", {2, 6}, DType::kFloat32);
  const std::string error = ErrorOf([&] { dealt.Deal(x); });
  for (const char* words : {"DealtSequence::Deal at dealt_sequence_test.cc:", "axis 1 of [2,6]", "of 8"})
    EXPECT_NE(error.find(words), std::string::npos) << error;
}

}  // namespace
}  // namespace oneflow_like
