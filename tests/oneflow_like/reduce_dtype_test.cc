// Gradients summed over devices in bf16 (TrainOptions::reduce_dtype): half the bytes, the same training.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

SmallGpt Bf16(SmallGpt given) {
  given.reduce_dtype = DType::kBFloat16;
  return given;
}

// --- Bytes ---

// In (n-1)/n of the weights' bytes: a reduce-scatter is 1 in fp32 and a half in bf16, a gather of weights 1.
// Where the sums of a few biases are made is left to cost.
TEST(ReduceDtype, HalvesWhatSumsOfGradientsSend) {
  for (int n : {2, 4}) {
    SmallGpt given{.mesh = Cat("cpu:dp=", n), .dropout = 0, .parallel = {.batch = "dp"}};
    for (int m : {1, 2, 4}) {
      given.micro_batches = m;
      given.zero_axis = "";
      EXPECT_NEAR(SharesSent(given, n), 2, .02) << given.str();
      EXPECT_NEAR(SharesSent(Bf16(given), n), 1, .02) << "added up before they are sent: " << given.str();
      given.zero_axis = "dp";
      given.zero_stage = 1;
      EXPECT_NEAR(SharesSent(Bf16(given), n), 1.5, .02) << given.str();
      given.zero_stage = 2;
      const double sums = SharesSent(given, n) - 1;
      EXPECT_NEAR(sums, m, .1) << given.str();
      EXPECT_NEAR(SharesSent(Bf16(given), n), 1 + sums / 2, .005) << given.str();
      given.zero_stage = 3;
      EXPECT_NEAR(SharesSent(given, n) - SharesSent(Bf16(given), n), sums / 2, .005) << given.str();
    }
  }
}

// Whatever an optimizer does with the gradient, and whatever reads it before: all-reduces of all weights send
// 2 (n-1)/n of their bytes.
TEST(ReduceDtype, HalvesThemForEveryOptimizer) {
  constexpr double kWeights = 4 * (32 * 64 + 64 + 64 * 32);
  const auto sent = [](const Optimizer& optimizer, DType to, double clip) {
    Model model(Mesh::Parse("cpu:dp=4"));
    Tensor x = model.Input("x", {8, 32}, DType::kFloat32, {{"dp", S(0)}});
    Scope s = model.scope();
    Tensor hidden = matmul(x, s.Weight("up", {32, 64}, XavierUniform())) + s.Weight("bias", {64}, Zeros());
    Tensor loss = mean(square(matmul(relu(hidden), s.Weight("down", {64, 32}, XavierUniform())) - x));
    TrainOptions options;
    options.parallel.batch = "dp";
    options.clip_norm = clip;
    options.reduce_dtype = to;
    return BytesSent(Train(loss, optimizer, options));
  };
  const Optimizer own("own",
                      [](WeightUpdate& u) { u.Assign(u.weight(), u.weight() - scale(u.gradient(), 0.1)); });
  for (const Optimizer& optimizer : {Optimizer(Sgd{.lr = 0.1}), Optimizer(AdamW{}), Optimizer(Lamb{}), own})
    for (double clip : {0.0, 1.0}) {
      const double less = sent(optimizer, DType::kFloat32, clip) - sent(optimizer, DType::kBFloat16, clip);
      EXPECT_NEAR(less / (kWeights * 3 / 4), 1, 0.05) << optimizer.name << " clip " << clip;
    }
}

// --- Training ---

struct Trained {
  std::vector<float> losses;
  double held_out = 0;
};

Trained TrainIt(const SmallGpt& given, int steps) {
  GptProgram program(given);
  Session train = program.MakeTrain();
  Trained trained;
  trained.losses = program.Losses(train, steps);
  Session eval = program.MakeEvaluate();
  constexpr int kBatches = 4;
  for (int i = 0; i < kBatches; ++i)
    trained.held_out += eval.Run(program.MakeFeeds(1'000'000 + i)).Scalar("loss") / kBatches;
  return trained;
}

TEST(ReduceDtype, ChangesNoBitOnOneDevice) {
  const SmallGpt given{.micro_batches = 4, .dropout = 0};
  EXPECT_EQ(TrainIt(given, 10).losses, TrainIt(Bf16(given), 10).losses);
}

TEST(ReduceDtype, LearnsAsMuchOnEveryMeshOfOneSize) {
  constexpr int kSteps = 200;
  const auto zero = [](int stage, int micro_batches) {
    SmallGpt given{.mesh = "cpu:dp=4", .micro_batches = micro_batches, .zero_axis = "dp", .dropout = 0};
    given.zero_stage = stage;
    return given;
  };
  const std::vector<SmallGpt> runs = {{.mesh = "cpu:dp=4", .dropout = 0},
                                      {.mesh = "cpu:dp=2,tp=2", .micro_batches = 2, .dropout = 0},
                                      {.mesh = "cpu:dp=2,pp=2", .micro_batches = 4, .dropout = 0},
                                      zero(1, 2),
                                      zero(2, 2),
                                      zero(3, 2)};
  const double wide = TrainIt(runs[0], kSteps).held_out;
  std::vector<double> narrow;
  for (const SmallGpt& given : runs) {
    narrow.push_back(TrainIt(Bf16(given), kSteps).held_out);
    std::printf("%s: %.5f, in fp32 %.5f\n", given.str().c_str(), narrow.back(), wide);
    EXPECT_NEAR(narrow.back() / wide, 1, 1e-2) << given.str();
    EXPECT_NEAR(narrow.back() / narrow[0], 1, 2e-3) << given.str();
  }
}

// --- What makes no sense ---

TEST(ReduceDtype, RefusesTypesThatCannotHoldSums) {
  Model model(Mesh::Parse("cpu:dp=2"));
  Tensor loss = mean(model.scope().Weight("w", {4}, Zeros()));
  const auto refused = [&](DType to, DType dtype) {
    TrainOptions options;
    options.reduce_dtype = to;
    options.dtype = dtype;
    const std::string error = ErrorOf([&] { Train(loss, Sgd{}, options); });
    return error.substr(error.find(": ") + 2);
  };
  EXPECT_EQ(refused(DType::kInt32, DType::kFloat32), "reduce_dtype is i32, must be f32, bf16 or f16");
  EXPECT_EQ(
      refused(DType::kFloat16, DType::kBFloat16),
      "reduce_dtype is f16 but dtype is bf16; sums in f16 overflow, which only the loss scale of dtype f16 "
      "notices; use bf16");
  TrainOptions fits;
  fits.reduce_dtype = fits.dtype = DType::kFloat16;
  Train(loss, Sgd{}, fits);
}

}  // namespace
}  // namespace oneflow_like
