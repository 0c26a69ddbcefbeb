// Work within one micro-batch: per_micro_batch() divides the batch, micro_batch_index() counts. A router that
// sorts its tokens, beside one that computes every expert for every token, on every mesh.
#include <regex>

#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

constexpr int kRows = 12, kWidth = 4, kExperts = 3, kInner = 5;

struct Setting {
  const char* mesh = "cpu:dp=1";
  int micro_batches = 1;
  int zero = 0;
  Recompute recompute = Recompute::kNone;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::string str() const { return Cat(mesh, " in ", micro_batches, " zero ", zero); }
};
constexpr Setting kSettings[] = {
    {"cpu:dp=1", 3},
    {"cpu:dp=2", 3},
    {"cpu:dp=2", 2, 3, Recompute::kFull},
    {"cpu:tp=2", 6, 0, Recompute::kFull},
    {"cpu:pp=2", 3},
    {"cpu:pp=2", 6, 0, Recompute::kNone, PipelineSchedule::kZeroBubble},
    {"cpu:dp=2,tp=2,pp=2", 3, 2, Recompute::kFull},
};

Tensor Rows(Tensor places, int64_t width) {
  const Dims shape = places.shape();
  return broadcast_to(unsqueeze(places, 2), {shape[0], shape[1], width});
}

// Each row goes to the expert that its gate likes best. `sorted`: the rows of a part are sorted by expert,
// and each expert computes its own; else each expert computes all rows.
Tensor Experts(Scope s, Tensor x, int parts, bool sorted) {
  Tensor gates = softmax(matmul(x, s.Weight("gate", {kWidth, kExperts}, Normal(1))));
  Tensor up = s.Weight("up", {kExperts, kWidth, kInner}, Normal(0.5), {{"tp", S(2)}});
  Tensor down = s.Weight("down", {kExperts, kInner, kWidth}, Normal(0.5), {{"tp", S(1)}});
  if (!sorted) {
    Extremes best = max_with_indices(gates);
    Tensor each = einsum("bef,efw->bew", gelu(einsum("bw,ewf->bef", x, up)), down);
    return einsum("bew,be->bw", each, one_hot(best.indices, kExperts) * unsqueeze(best.values, 1));
  }
  Tensor h = per_micro_batch(x, parts);
  Extremes best = max_with_indices(per_micro_batch(gates, parts));
  Tensor order = argsort(best.indices, 1),
         counts = cast(sum(one_hot(best.indices, kExperts), {1}), DType::kInt32);
  Tensor y = take_along_axis(h, Rows(order, kWidth), 1);
  y = grouped_matmul(gelu(grouped_matmul(y, up, counts)), down, counts);
  y = take_along_axis(y, Rows(argsort(order, 1), kWidth), 1) * unsqueeze(best.values, 2);
  return reshape(y, {-1, kWidth});
}

Outputs TrainExperts(const Setting& run, int parts, bool sorted) {
  ModelOptions model_options;
  if (run.zero > 0) model_options.zero = {.axis = "dp", .stage = run.zero, .small = 0};
  Model model(FullMesh(run.mesh), model_options);
  Tensor x = model.Input("x", {kRows, kWidth}, DType::kFloat32, {{"dp", S(0)}});
  for (int layer = 0; layer < 2; ++layer) {
    const int stage = layer * model.mesh().axis_size(2) / 2;
    const Scope s = (model.scope() / Cat("layer", layer)).Stage("pp", stage);
    s.Region();
    x = s.Run([&] {
      Tensor h = to_stage(x, "pp", stage);
      return h + Experts(s, h, parts, sorted);
    });
  }
  TrainOptions options;
  options.micro_batches = run.micro_batches;
  options.recompute = run.recompute;
  options.schedule = run.schedule;
  options.outputs = {{"y", x}};
  Session session = Train(mean(square(x - 1)), AdamW{.lr = 0.02}, options);
  Outputs seen;
  for (int step = 0; step < 3; ++step) {
    StepResult r = session.Run({{"x", Floats(step, {kRows, kWidth})}});
    seen[Cat("loss", step)] = r.Get("loss");
    seen[Cat("y", step)] = r.Get("y");
  }
  for (const char* layer : {"layer0/", "layer1/"})
    for (const char* name : {"gate", "up", "down"}) seen[Cat(layer, name)] = model.Read(Cat(layer, name));
  return seen;
}

TEST(Parts, ARouterThatSortsIsOneThatComputesAll) {
  const Outputs wanted = TrainExperts({}, 1, false);
  for (int parts : {1, 6}) ExpectNear(TrainExperts({}, parts, true), wanted, 5e-6, Cat(parts, " parts"));
  for (const Setting& run : kSettings)
    for (int parts : {6, 12})
      ExpectNear(TrainExperts(run, parts, true), wanted, 5e-6, Cat(run.str(), " ", parts));
}

// What each part chooses of itself is the same in every number of micro-batches.
TEST(Parts, ChooseTheirOwn) {
  const HostTensor fed = Floats(3, {kRows, kWidth});
  for (const Setting& run : kSettings) {
    Model model(FullMesh(run.mesh));
    Tensor x = model.Input("x", {kRows, kWidth}, DType::kFloat32, {{"dp", S(0)}});
    Sorted best = top_k(sum(per_micro_batch(x, 6), {2}), 1, 1);
    SessionOptions options;
    options.micro_batches = run.micro_batches;
    Session session = Evaluate({{"values", best.values}, {"places", best.indices}}, options);
    StepResult r = session.Run({{"x", fed}});
    for (int part = 0; part < 6; ++part) {
      double sums[2] = {0, 0};
      for (int row = 0; row < 2; ++row)
        for (int i = 0; i < kWidth; ++i) sums[row] += fed.as<float>()[(2 * part + row) * kWidth + i];
      EXPECT_EQ(r.Get("places").as<int64_t>()[part], sums[1] > sums[0]) << run.str();
      EXPECT_NEAR(r.Get("values").as<float>()[part], std::max(sums[0], sums[1]), 1e-6) << run.str();
    }
  }
}

// A row of a table for each micro-batch, also in what a gradient reads.
TEST(MicroBatchIndex, ReadsATable) {
  for (const Setting& run : kSettings) {
    SCOPED_TRACE(run.str());
    Model model(FullMesh(run.mesh));
    const int last = model.mesh().axis_size(2) - 1, m = run.micro_batches;
    Tensor x = model.Input("x", {kRows, kWidth}, DType::kFloat32, {{"dp", S(0)}});
    Tensor table = model.Input("table", {6, kWidth}, DType::kFloat32, {}, -1);
    Tensor index = micro_batch_index(model.builder());
    Tensor w = model.scope().Stage("pp", last).Weight("w", {kWidth}, Ones());
    Tensor y = to_stage(x * dynamic_slice(table, 0, index, 1), "pp", last) * w;
    TrainOptions options;
    options.micro_batches = m;
    options.recompute = run.recompute;
    options.schedule = run.schedule;
    options.outputs = {{"y", y}, {"index", index}};
    Session session = Train(sum(y), Sgd{.lr = 1}, options);
    const HostTensor fed = Floats(5, {kRows, kWidth}), rows = Floats(6, {6, kWidth});
    StepResult r = session.Run({{"x", fed}, {"table", rows}});
    EXPECT_EQ(r.Get("index").as<int64_t>()[0], m - 1);
    std::vector<double> left(kWidth, 1);
    for (int i = 0; i < kRows * kWidth; ++i) {
      const double want =
          fed.as<float>()[i] * rows.as<float>()[i / kWidth / (kRows / m) * kWidth + i % kWidth];
      EXPECT_NEAR(r.Get("y").as<float>()[i], want, 1e-6) << i;
      left[i % kWidth] -= want;
    }
    for (int i = 0; i < kWidth; ++i) EXPECT_NEAR(model.Read("w").as<float>()[i], left[i], 1e-5);
  }
}

TEST(Parts, MistakesAreNamed) {
  auto refuse = [](const std::string& wanted, const std::function<void()>& make) {
    const std::string error = ErrorOf(make);
    EXPECT_TRUE(std::regex_search(error, std::regex(wanted))) << error << "\n  wanted: " << wanted;
  };
  Model model(FullMesh("cpu:dp=1"));
  Tensor x = model.Input("x", {kRows, kWidth}, DType::kFloat32);
  refuse(
      "^per_micro_batch at parts_test.cc:\\d+: parts is 5 but axis 0 of x has 12 elements, which it does not",
      [&] { per_micro_batch(x, 5); });
  refuse("^per_micro_batch at parts_test.cc:\\d+: parts is 0 but must be at least 1",
         [&] { per_micro_batch(x, 0); });
  refuse("^per_micro_batch at .*: x is one number", [&] { per_micro_batch(sum(x), 1); });
  refuse("^micro_batch_index at parts_test.cc:\\d+: no graph", [&] { micro_batch_index(nullptr); });
  SessionOptions three;
  three.micro_batches = 3;
  refuse("^Evaluate at .*: per_micro_batch at parts_test.cc:\\d+.*3 micro-batches", [&] {
    Evaluate({{"y", sort(per_micro_batch(x, 4), 1).values}}, three);
  });
  Tensor w = model.scope().Weight("w", {6, kWidth}, Ones());
  TrainOptions options;
  options.micro_batches = 3;
  refuse(
      "^Train at .*: the gradient of weight 'w' depends on micro_batch_index 'micro_batch_index' at "
      "parts_test.cc:\\d+, which differs between the 3 micro-batches; combine",
      [&] {
        Train(mean(square(x * dynamic_slice(w, 0, micro_batch_index(model.builder()), 1))), Sgd{}, options);
      });
}

}  // namespace
}  // namespace oneflow_like
