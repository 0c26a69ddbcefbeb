// Values of the whole batch that are read within micro-batches: they are whole when they are read, whatever
// the number of micro-batches, and the memory for that is predicted. Random models of this kind are in
// random_models_test.cc.
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

TrainOptions Options(int micro_batches, PipelineSchedule schedule = PipelineSchedule::k1F1B) {
  TrainOptions options;
  options.micro_batches = micro_batches;
  options.schedule = schedule;
  return options;
}

TEST(WholeBatch, CentredFeatures) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2"})
    for (int micro_batches : {1, 2, 4}) {
      Model model(FullMesh(mesh));
      Tensor x = model.Input("x", {4}, DType::kFloat32);
      Session session =
          Evaluate({{"y", x - mean(x, {0}, true)}, {"z", x - max(x, {0}, true)}}, Options(micro_batches));
      StepResult r = session.Run({{"x", ToHost<float>({1, 2, 3, 4}, {4})}});
      EXPECT_TRUE(SameBytes(r.Get("y"), ToHost<float>({-1.5, -.5, .5, 1.5}, {4}))) << mesh << micro_batches;
      EXPECT_TRUE(SameBytes(r.Get("z"), ToHost<float>({-3, -2, -1, 0}, {4}))) << mesh << micro_batches;
    }
}

// A constant that all of the batch makes has no input to wait for, and is whole all the same.
TEST(WholeBatch, OfAConstant) {
  for (int micro_batches : {1, 3}) {
    Model model(FullMesh("cpu:dp=1"));
    Tensor x = model.Input("x", {6, 2}, DType::kFloat32);
    Tensor w = model.scope().Weight("w", {2}, Ones());
    Session session =
        Evaluate({{"y", x / sum(broadcast_to(w, {6, 2}) + scale(x, 0), {0}, true)}}, Options(micro_batches));
    HostTensor feed = Floats(1, {6, 2}), wanted = Floats(1, {6, 2});
    for (int i = 0; i < 12; ++i) wanted.as<float>()[i] /= 6;
    EXPECT_LE(Difference(session.Run({{"x", feed}}).Get("y"), wanted), 1e-6) << micro_batches;
  }
}

// A sum of the batch that one reader takes in parts and another whole, in both orders.
TEST(WholeBatch, ReadInPartsAndWhole) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2", "cpu:dp=2,tp=2"})
    for (bool parts_first : {true, false}) {
      std::vector<HostTensor> wanted;
      for (int micro_batches : {1, 2, 3}) {
        Model model(FullMesh(mesh));
        Tensor x = model.Input("x", {6, 4}, DType::kFloat32, {{"dp", S(0)}});
        Tensor total = sum(x, {0}), parts, whole;
        auto in_parts = [&] { return sum(scale(annotate(total, {{"dp", B()}}), 3), {0}); };
        if (parts_first) parts = in_parts();
        whole = relu(total);
        if (!parts_first) parts = in_parts();
        Session session = Evaluate({{"parts", parts}, {"whole", whole}}, Options(micro_batches));
        StepResult r = session.Run({{"x", Floats(9, {6, 4})}});
        if (wanted.empty()) wanted = {r.Get("parts"), r.Get("whole")};
        EXPECT_LE(Difference(r.Get("parts"), wanted[0]), 1e-5) << mesh << " " << micro_batches;
        EXPECT_LE(Difference(r.Get("whole"), wanted[1]), 1e-5) << mesh << " " << micro_batches;
      }
    }
}

// A stack of layers on `stages` stages; the loss divides by the number of tokens of the whole batch, or its
// last activations are centred over it.
enum class Kind { kPlain, kTokens, kCentred };
struct Trained {
  float loss;
  std::vector<RankSummary> summaries;
};
Trained TrainStack(Kind kind, int stages, TrainOptions options, int batch = 32) {
  constexpr int kWidth = 64, kLayers = 6;
  Model model(FullMesh(Cat("cpu:pp=", stages)));
  Tensor h = model.Input("x", {batch, kWidth}, DType::kFloat32);
  Tensor mask = model.Input("mask", {batch}, DType::kFloat32);
  for (int layer = 0; layer < kLayers; ++layer) {
    const int stage = layer * stages / kLayers;
    Scope s = (model.scope() / Cat("layer", layer)).Stage("pp", stage);
    h = gelu(matmul(to_stage(h, "pp", stage), s.Weight("w", {kWidth, kWidth}, KaimingNormal())));
  }
  if (kind == Kind::kCentred) h = h - mean(h, {0}, true);
  Tensor each = mean(square(h), {1});
  Tensor loss = kind == Kind::kTokens ? sum(each * mask / sum(mask)) : mean(each * mask);
  Session session = Train(loss, Sgd{}, options);
  HostTensor ones = ToHost<float>(std::vector<float>(batch, 1), {batch});
  return {session.Run({{"x", Floats(3, {batch, kWidth})}, {"mask", ones}}).Scalar("loss"),
          session.Summaries()};
}

TEST(WholeBatch, BothSchedulesTakeIt) {
  for (Kind kind : {Kind::kTokens, Kind::kCentred}) {
    const float alone = TrainStack(kind, 1, Options(1)).loss;
    for (int stages : {1, 2, 3})
      for (PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kGPipe})
        for (int micro_batches : {2, 4, 8})
          EXPECT_NEAR(TrainStack(kind, stages, Options(micro_batches, schedule)).loss, alone, 1e-6 * alone);
  }
}

int64_t TransientOf(const Trained& t, int rank) {
  for (const RankSummary& s : t.summaries)
    if (std::find(s.ranks.begin(), s.ranks.end(), rank) != s.ranks.end()) return s.transient_bytes;
  return -1;
}

// Counting tokens needs the whole mask and nothing else: activations are held as long as without it. Centring
// needs all activations of the last stage, and then those of the others too: their backward waits for it.
TEST(WholeBatch, HoldsWhatItMustAndNoMore) {
  constexpr int64_t kMaskBytes = 32 * 4, kSlack = 8 * (kMaskBytes + 64 * 8);
  constexpr int64_t kActivation = 4 * 64 * 4;  // of a micro-batch of four rows
  for (int stages : {1, 2}) {
    const Trained plain = TrainStack(Kind::kPlain, stages, Options(8));
    const Trained tokens = TrainStack(Kind::kTokens, stages, Options(8));
    const Trained centred = TrainStack(Kind::kCentred, stages, Options(8));
    for (int rank = 0; rank < stages; ++rank) {
      EXPECT_LE(TransientOf(tokens, rank), TransientOf(plain, rank) + kSlack) << stages << " " << rank;
      // One slot of each of two activations, at most as many as there are stages, becomes eight.
      EXPECT_GE(TransientOf(centred, rank), TransientOf(plain, rank) + 2 * (8 - stages - 1) * kActivation)
          << stages << " " << rank;
    }
  }
}

// The dry run says for what a value is held.
TEST(WholeBatch, TheSummaryNamesWhatIsWaitedFor) {
  for (Kind kind : {Kind::kPlain, Kind::kTokens, Kind::kCentred}) {
    std::string said;
    for (const RankSummary& s : TrainStack(kind, 1, Options(8), 512).summaries)
      for (const auto& [what, bytes] : s.consumers)
        if (what.find("has the whole batch") != std::string::npos) said += what + "\n";
    if (kind != Kind::kCentred) {
      EXPECT_EQ(said, "");  // the masks are not among the largest
      continue;
    }
    EXPECT_NE(said.find("(8 slots, "), std::string::npos) << said;
    EXPECT_NE(said.find(", held until mean 'layer5/mean' at whole_batch_test.cc:"), std::string::npos)
        << said;
  }
}

}  // namespace
}  // namespace oneflow_like
