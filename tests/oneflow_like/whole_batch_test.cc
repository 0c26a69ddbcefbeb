// Values of the whole batch that are read within micro-batches: they are whole when they are read, whatever
// the number of micro-batches, and the memory for that is predicted. Random models of this kind are in
// random_models_test.cc.
#include <optional>

#include "oneflow_like/session/session_impl.h"
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

// --- whole_batch() ---

// Two towers, whose loss tells each row of one from all rows of the other, and a third network that reads the
// ranks of the batch's numbers: on the first stage, on the last one, or on both. The last rows weigh nothing.
struct Contrast {
  Contrast(const char* mesh, const TrainOptions& given, int rows, int zero = 0, bool plain = false)
      : model(FullMesh(mesh), OptionsOf(zero)), options(given) {
    const int last = model.mesh().axis_size(2) - 1;
    const Annotation cut = rows % 2 == 0 ? Annotation{{"dp", S(0)}} : Annotation{};
    Tensor x = model.Input("x", {rows, 5}, DType::kFloat32, cut);
    Tensor y = model.Input("y", {rows, 3}, DType::kFloat32, cut);
    const Scope scope = model.scope();
    auto tower = [&](const std::string& name, Tensor of, int stage) {
      const Scope s = (scope / name).Stage("pp", stage);
      s.Region();
      Tensor h = gelu(
          matmul(to_stage(of, "pp", stage), s.Weight("up", {of.shape()[1], 6}, Normal(0.4), {{"tp", S(1)}})));
      h = matmul(h, s.Weight("down", {6, 4}, Normal(0.4)));
      return to_stage(h / sqrt(sum(square(h), {1}, true)), "pp", last);
    };
    Tensor u = tower("u", x, 0), v = tower("v", y, last);
    // Rows of a micro-batch against all, and all against all. `plain`: on one device the batch is whole.
    auto whole = [&](Tensor of) { return plain ? of : whole_batch(of); };
    Tensor rows_of_all = matmul(u, transpose(whole(v), {1, 0}));
    Tensor all = matmul(whole(v), transpose(whole(u), {1, 0}));
    Tensor place = model.Input("place", {rows}, DType::kInt32, cut);
    Tensor loss = mean(cross_entropy(scale(rows_of_all, 3), place)) +
                  mean(cross_entropy(scale(all, 3), whole(to_stage(place, "pp", last))));
    Sorted order = sort(whole(sum(u, {1})), 0);
    options.outputs = {{"order", order.indices}, {"similar", rows_of_all}};
    train.emplace(Train(loss + scale(mean(square(order.values - 0.5)), 0.3), AdamW{.lr = 0.02}, options));
  }
  static ModelOptions OptionsOf(int zero) {
    ModelOptions made;
    if (zero > 0) made.zero = {.axis = "dp", .stage = zero, .small = 0};
    return made;
  }
  // Losses of three steps, outputs of the last, and the weights that they leave.
  Outputs Run() {
    const int rows =
        static_cast<int>(train->impl()->compiled.graph.value(train->impl()->inputs.at("x")).shape[0]);
    std::vector<int32_t> places(rows);
    for (int i = 0; i < rows; ++i) places[i] = i;
    Outputs seen;
    for (int step = 0; step < 3; ++step) {
      StepResult r = train->Run({{"x", Floats(step, {rows, 5})},
                                 {"y", Floats(50 + step, {rows, 3})},
                                 {"place", ToHost<int32_t>(places, {rows})}});
      seen[Cat("loss", step)] = r.Get("loss");
      for (const char* name : {"order", "similar"}) seen[name] = r.Get(name);
    }
    for (const char* name : {"u/up", "u/down", "v/up", "v/down"}) seen[name] = model.Read(name);
    return seen;
  }
  Model model;
  TrainOptions options;
  std::optional<Session> train;
};

TEST(WholeBatch, IsGatheredOnEveryMeshAndSchedule) {
  const struct {
    const char* mesh;
    int zero;
    Recompute recompute;
    PipelineSchedule schedule;
  } kRuns[] = {{"cpu:dp=2", 0, Recompute::kNone, PipelineSchedule::k1F1B},
               {"cpu:dp=2", 3, Recompute::kFull, PipelineSchedule::k1F1B},
               {"cpu:tp=2", 0, Recompute::kNone, PipelineSchedule::k1F1B},
               {"cpu:pp=2", 0, Recompute::kNone, PipelineSchedule::k1F1B},
               {"cpu:pp=2", 0, Recompute::kFull, PipelineSchedule::kGPipe},
               {"cpu:pp=2", 0, Recompute::kNone, PipelineSchedule::kZeroBubble},
               {"cpu:dp=2,tp=2,pp=2", 2, Recompute::kNone, PipelineSchedule::k1F1B}};
  for (int rows : {12, 7}) {
    const Outputs wanted = Contrast("cpu:dp=1", {}, rows, 0, true).Run();
    for (const auto& run : kRuns)
      for (int micro_batches : {1, 2, 3}) {
        TrainOptions options = Options(micro_batches, run.schedule);
        options.recompute = run.recompute;
        ExpectNear(Contrast(run.mesh, options, rows, run.zero).Run(), wanted, 5e-6,
                   Cat(run.mesh, " of ", rows, " in ", micro_batches));
      }
  }
}

// Without it the operator is refused, with the way out.
TEST(WholeBatch, IsAskedForByName) {
  Model model(FullMesh("cpu:dp=2"));
  Tensor x = model.Input("x", {6, 2}, DType::kFloat32);
  const std::string error = ErrorOf([&] { Evaluate({{"y", softmax(x, 0)}}, Options(3)); });
  EXPECT_NE(error.find("it needs the whole batch of "), std::string::npos) << error;
  EXPECT_NE(error.find("whole_batch()"), std::string::npos) << error;
  Session all = Evaluate({{"y", softmax(whole_batch(x), 0)}}, Options(3));
  Session one = Evaluate({{"y", softmax(x, 0)}}, Options(1));
  EXPECT_LE(
      Difference(all.Run({{"x", Floats(1, {6, 2})}}).Get("y"), one.Run({{"x", Floats(1, {6, 2})}}).Get("y")),
      1e-6);
  EXPECT_NE(ErrorOf([&] { whole_batch(x, 2); }).find("whole_batch at whole_batch_test.cc:"),
            std::string::npos);
}

}  // namespace
}  // namespace oneflow_like
