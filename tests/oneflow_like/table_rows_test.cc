// Tables of which a step updates only the rows that its batch looked up: the curve of the whole gradient on
// every mesh, under every schedule and for every number of micro-batches, and no memory of the table's size.
#include <cmath>

#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

constexpr int64_t kRows = 4800, kWidth = 4, kRoom = 3;

enum class Lookup { kPlain, kMean, kWeighted };

// One training: a lookup on the first stage, a layer on the last; `rounds` times a layer on each.
struct Case {
  const char* mesh = "cpu:dp=1";
  Annotation cut = {};
  Lookup lookup = Lookup::kPlain;
  int64_t batch = 6;
  int rounds = 1;
  TrainOptions options = {};
  Zero zero = {};

  std::string str() const {
    std::string text = Cat(mesh, " batch ", batch, " in ", options.micro_batches, " lookup ",
                           static_cast<int>(lookup), " schedule ", static_cast<int>(options.schedule),
                           " clip ", options.clip_norm, " zero ", zero.axis, zero.stage, " cut");
    for (const auto& [axis, sbp] : cut) text += " " + axis + ":" + sbp.str();
    return text;
  }
};

struct Curve {
  std::vector<float> losses, rows;
  int64_t transient = 0;  // bytes of the rank that needs most
};

Curve TrainedCurve(const Case& c, Optimizer optimizer, bool by_rows) {
  optimizer.by_rows = optimizer.by_rows && by_rows;
  Model model(FullMesh(c.mesh), {.zero = c.zero});
  const int last = model.mesh().axis_size(2) - 1;
  Scope first = model.scope().Stage("pp", 0), second = model.scope().Stage("pp", last);
  const Annotation batch = {{"dp", S(0)}};
  Tensor ids = model.Input("ids", {c.batch, kRoom}, DType::kInt32, batch);
  Tensor lengths = model.Input("lengths", {c.batch}, DType::kInt32, batch);
  Tensor shares = model.Input("shares", {c.batch, kRoom}, DType::kFloat32, batch);
  Tensor table = first.Weight("table", {kRows, kWidth}, Normal(1), c.cut);
  Tensor seen = c.lookup == Lookup::kPlain  ? mean(embedding(table, ids), {1})
                : c.lookup == Lookup::kMean ? embedding_bag(table, ids, lengths, Bag::kMean)
                                            : embedding_bag(table, ids, lengths, shares);
  Tensor y = tanh(seen);
  for (int round = 0; round < c.rounds; ++round) {
    if (round > 0)
      y = tanh(matmul(to_stage(y, "pp", 0), first.Weight(Cat("up", round), {2, kWidth}, Normal(1))));
    y = matmul(to_stage(y, "pp", last), second.Weight(Cat("down", round), {kWidth, 2}, Normal(.5)));
  }
  Session train = Train(mean(square(y - 1)), optimizer, c.options);
  Curve curve;
  for (int step = 0; step < 5; ++step)
    curve.losses.push_back(train
                               .Run({{"ids", Ids(step, {c.batch, kRoom}, 40)},
                                     {"lengths", Ids(step, {c.batch}, kRoom + 1)},
                                     {"shares", Floats(step, {c.batch, kRoom})}})
                               .Scalar("loss"));
  const HostTensor now = model.Read("table");
  curve.rows.assign(now.as<float>(), now.as<float>() + 50 * kWidth);
  for (const RankSummary& rank : train.Summaries())
    curve.transient = std::max(curve.transient, rank.transient_bytes);
  return curve;
}

void ExpectSame(const Curve& got, const Curve& wanted, const std::string& where) {
  for (size_t step = 0; step < wanted.losses.size(); ++step)
    EXPECT_NEAR(got.losses[step] / wanted.losses[step], 1, 2e-5) << where << ", step " << step;
  for (size_t i = 0; i < wanted.rows.size(); ++i)
    ASSERT_NEAR(got.rows[i], wanted.rows[i], 2e-5) << where << ", element " << i;
}

// Pieces of tables and meshes that cut them.
const std::vector<std::pair<const char*, Annotation>> kMeshes = {
    {"cpu:dp=1", {}},           {"cpu:dp=2", {}},
    {"cpu:dp=3", "dp:S0"},      {"cpu:tp=2", "tp:S0"},
    {"cpu:tp=3", "tp:S1"},      {"cpu:pp=2", {}},
    {"cpu:dp=2,tp=2", "tp:S1"}, {"cpu:dp=2,pp=2", {}},
    {"cpu:tp=2,pp=2", "tp:S0"}, {"cpu:dp=2,tp=2,pp=2", "tp:S1"}};

const std::vector<Optimizer> kOptimizers = {Sgd{.lr = .5}, Adagrad{.lr = .1, .by_rows = true}};

// One micro-batch or several, on every mesh: what the whole gradient would make on one device.
TEST(TableRows, FollowTheWholeGradient) {
  for (const Optimizer& optimizer : kOptimizers)
    for (double clip : {0., .2})
      for (Lookup lookup : {Lookup::kPlain, Lookup::kMean, Lookup::kWeighted})
        for (int64_t batch : {6, 7}) {
          Case one{.lookup = lookup, .batch = batch};
          one.options.clip_norm = clip;
          const Curve wanted = TrainedCurve(one, optimizer, /*by_rows=*/false);
          EXPECT_GT(wanted.transient, kRows * kWidth * 4);
          int more =
              static_cast<int>(clip * 10 + batch);  // so that each case has two numbers of micro-batches
          for (const auto& [mesh, cut] : kMeshes) {
            for (int micro_batches : {1, 2 + more++ % 4}) {
              Case run = one;
              run.mesh = mesh;
              run.cut = cut;
              run.options.micro_batches = micro_batches;
              const Curve got = TrainedCurve(run, optimizer, /*by_rows=*/true);
              ExpectSame(got, wanted, Cat(optimizer.name, " ", run.str()));
              EXPECT_LT(got.transient, kRows * kWidth * 4) << run.str();
            }
          }
        }
}

TEST(TableRows, FollowTheWholeGradientUnderSchedulesAndZero) {
  for (const Optimizer& optimizer : kOptimizers) {
    Case one{.batch = 7};
    one.options.clip_norm = .3;
    const Curve wanted = TrainedCurve(one, optimizer, /*by_rows=*/false);
    for (PipelineSchedule schedule :
         {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble})
      for (int stage : {0, 1, 2, 3}) {
        Case run = one;
        run.mesh = stage == 0 ? "cpu:tp=2,pp=2" : "cpu:dp=2,pp=2";
        if (stage > 0) run.zero = {.axis = "dp", .stage = stage, .small = 16};
        run.options.schedule = schedule;
        run.options.micro_batches = 2 + stage;
        const Curve got = TrainedCurve(run, optimizer, /*by_rows=*/true);
        ExpectSame(got, wanted, Cat(optimizer.name, " ", run.str()));
        // ZeRO gathers the table that is looked up in; of gradients there is none of its size.
        EXPECT_LT(got.transient, TrainedCurve(run, optimizer, /*by_rows=*/false).transient) << run.str();
      }
  }
}

TEST(TableRows, FollowTheWholeGradientRoundTheStages) {
  for (const Optimizer& optimizer : kOptimizers) {
    Case one{.cut = "tp:S0", .batch = 9, .rounds = 3};
    const Curve wanted = TrainedCurve(one, optimizer, /*by_rows=*/false);
    for (const char* mesh : {"cpu:pp=2", "cpu:dp=2,tp=2,pp=2"})
      for (int micro_batches = 1; micro_batches <= 5; ++micro_batches) {
        Case run = one;
        run.mesh = mesh;
        run.options.schedule = PipelineSchedule::kInterleaved;
        run.options.micro_batches = micro_batches;
        const Curve got = TrainedCurve(run, optimizer, /*by_rows=*/true);
        ExpectSame(got, wanted, Cat(optimizer.name, " ", run.str()));
        EXPECT_LT(got.transient, kRows * kWidth * 4) << run.str();
      }
  }
}

// The table and the sums of its rows stay fp32; what is computed of them is rounded alike with and without.
TEST(TableRows, FollowTheWholeGradientInSixteenBits) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16})
    for (int micro_batches : {1, 4}) {
      Case run{.mesh = "cpu:dp=2,pp=2", .batch = 8};
      run.options.dtype = dtype;
      run.options.micro_batches = micro_batches;
      run.options.clip_norm = .5;
      const Curve got = TrainedCurve(run, kOptimizers[1], true),
                  wanted = TrainedCurve(run, kOptimizers[1], false);
      for (size_t step = 0; step < wanted.losses.size(); ++step)
        EXPECT_NEAR(got.losses[step] / wanted.losses[step], 1, 1e-2) << run.str() << ", step " << step;
      EXPECT_LT(got.transient, wanted.transient) << run.str();
    }
}

// A batch that looks up most of a table, or an optimizer that changes all rows: the whole gradient.
TEST(TableRows, AreNotUsedWhereTheyAreMany) {
  for (int micro_batches : {1, 3}) {
    Case most{.batch = kRows / kRoom};
    most.options.micro_batches = micro_batches;
    EXPECT_GT(TrainedCurve(most, Sgd{.lr = .5}, true).transient, kRows * kWidth * 4);
    Case few;
    few.options.micro_batches = micro_batches;
    EXPECT_GT(TrainedCurve(few, AdamW{}, true).transient, kRows * kWidth * 4);
  }
}

}  // namespace
}  // namespace oneflow_like
