// One loss curve: the small GPT of the examples, trained on every kind of mesh, follows the single device.
// ctest: long=70 asan=250
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/random.h"
#include "examples/gpt_model.h"
#include "oneflow_like/oneflow_like.h"

namespace oneflow_like {

using namespace examples;
namespace {

constexpr int kBatch = 8, kContext = 16, kSteps = 30;

struct Training {
  std::string mesh;
  int micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::string zero_axis;
  int zero_stage = 1;
  Recompute recompute = Recompute::kNone;
  int threads = 0;
  int steps_in_flight = 2;
  double dropout = 0.1;
  int virtual_stages = 1;
  bool sequence_parallel = false;
  int64_t logits_tile = 0;
};

// Tokens that can be learnt: each is a function of the one before, with noise keyed by step and position.
HostTensor Tokens(int64_t step, int shift) {
  std::vector<int32_t> ids(kBatch * kContext);
  for (int b = 0; b < kBatch; ++b) {
    uint32_t token = RandomBits(7, step, b) % 64;
    for (int t = 0; t < kContext + shift; ++t) {
      if (t >= shift) ids[b * kContext + t - shift] = token;
      uint32_t noise = RandomBits(9, step, b * 1024 + t);
      token = noise % 8 == 0 ? noise / 8 % 64 : (token * 5 + 3) % 64;
    }
  }
  return ToHost(ids, {kBatch, kContext});
}

std::vector<float> Losses(const Training& run) {
  Mesh given = Mesh::Parse(run.mesh);
  std::vector<std::pair<std::string, int>> axes;
  for (const char* name : {"dp", "tp", "pp"}) {
    int a = given.FindAxis(name);
    axes.push_back({name, a < 0 ? 1 : given.axis_size(a)});
  }
  ModelOptions options;
  options.seed = 3;
  options.threads = run.threads;
  options.pipeline.virtual_stages = run.virtual_stages;
  options.zero = {.axis = run.zero_axis, .stage = run.zero_stage, .small = 0};
  Model model(Mesh("cpu", axes), options);
  GptConfig config;
  config.layers = 4;
  config.width = 64;
  config.heads = 4;
  config.context = kContext;
  config.vocabulary = 64;
  config.dropout = run.dropout;
  if (run.sequence_parallel) config.sequence = "tp";
  config.logits_tile = run.logits_tile;
  Tensor tokens = model.Input("tokens", {kBatch, kContext}, DType::kInt32, {{"dp", S(0)}});
  Tensor targets = model.Input("targets", {kBatch, kContext}, DType::kInt32, {{"dp", S(0)}});
  TrainOptions train;
  train.micro_batches = run.micro_batches;
  train.schedule = run.schedule;
  train.recompute = run.recompute;
  train.clip_norm = 1.0;
  train.steps_in_flight = run.steps_in_flight;
  train.lr_schedule = {.kind = Schedule::Kind::kLinearWarmup, .warmup = 5};
  Session session = Train(GptLoss(model.scope(), tokens, targets, config), AdamW{.lr = 1e-3}, train);
  std::vector<StepResult> results;
  for (int step = 0; step < kSteps; ++step)
    results.push_back(session.Run({{"tokens", Tokens(step, 0)}, {"targets", Tokens(step, 1)}}));
  std::vector<float> losses;
  for (const StepResult& r : results) losses.push_back(r.Scalar("loss"));
  return losses;
}

const std::vector<float>& OneDevice() {
  static const std::vector<float> losses = Losses({"cpu:dp=1"});
  return losses;
}

class LossCurve : public testing::TestWithParam<Training> {};

TEST_P(LossCurve, FollowsOneDevice) {
  std::vector<float> losses = Losses(GetParam());
  double worst = 0;
  for (int step = 0; step < kSteps; ++step) {
    double difference = std::abs(losses[step] - OneDevice()[step]) / OneDevice()[step];
    worst = std::max(worst, difference);
    EXPECT_LE(difference, 1e-5) << "step " << step << ": " << losses[step] << " against "
                                << OneDevice()[step];
  }
  RecordProperty("worst", std::to_string(worst));
  std::printf("%s, %d micro-batches: worst relative difference %.1e\n", GetParam().mesh.c_str(),
              GetParam().micro_batches, worst);
}

// The head in tiles: whole, its classes cut, its tokens cut, on the last of two stages; tiles that do not
// divide a device's tokens, and that are larger.
INSTANTIATE_TEST_SUITE_P(HeadInTiles, LossCurve,
                         testing::Values(Training{.mesh = "cpu:dp=1", .logits_tile = 24},
                                         Training{.mesh = "cpu:tp=2", .logits_tile = 24},
                                         Training{.mesh = "cpu:tp=3", .logits_tile = 1000},
                                         Training{
                                             .mesh = "cpu:dp=2,tp=2", .micro_batches = 2, .logits_tile = 5},
                                         Training{.mesh = "cpu:dp=2,tp=2,pp=2",
                                                  .micro_batches = 4,
                                                  .zero_axis = "dp",
                                                  .zero_stage = 3,
                                                  .recompute = Recompute::kFull,
                                                  .logits_tile = 7}),
                         [](const auto& info) {
                           std::string name =
                               info.param.mesh.substr(4) + "_tile" + std::to_string(info.param.logits_tile);
                           for (char& c : name)
                             if (!isalnum(c)) c = '_';
                           return name;
                         });

INSTANTIATE_TEST_SUITE_P(
    Meshes, LossCurve,
    testing::Values(Training{"cpu:dp=1", 4}, Training{"cpu:dp=2"}, Training{"cpu:dp=3"}, Training{"cpu:tp=2"},
                    Training{"cpu:tp=4"}, Training{"cpu:pp=2", 8}, Training{"cpu:pp=4", 8},
                    Training{"cpu:pp=2", 8, PipelineSchedule::kGPipe}, Training{"cpu:dp=2,tp=2,pp=2"},
                    Training{"cpu:dp=2,tp=2,pp=2", 4}, Training{"cpu:dp=3", 3},
                    Training{"cpu:dp=2", 2, PipelineSchedule::k1F1B, "dp"},
                    Training{"cpu:dp=2,tp=2,pp=2", 4, PipelineSchedule::k1F1B, "dp", 2, Recompute::kFull},
                    Training{"cpu:dp=2,tp=2,pp=2", 4, PipelineSchedule::kGPipe, "dp", 3, Recompute::kFull},
                    Training{"cpu:dp=4", 2, PipelineSchedule::k1F1B, "dp", 3},
                    Training{"cpu:dp=3", 3, PipelineSchedule::k1F1B, "dp", 2, Recompute::kSelective},
                    Training{"cpu:pp=4", 8, PipelineSchedule::kZeroBubble},
                    Training{"cpu:dp=2,pp=2", 4, PipelineSchedule::kZeroBubble, "dp", 2}),
    [](const auto& info) {
      std::string name = info.param.mesh.substr(4) + "_m" + std::to_string(info.param.micro_batches);
      if (info.param.schedule != PipelineSchedule::k1F1B) name += Cat("_", Name(info.param.schedule));
      if (!info.param.zero_axis.empty()) name += Cat("_zero", info.param.zero_stage);
      if (info.param.recompute != Recompute::kNone) name += Cat("_", Name(info.param.recompute));
      for (char& c : name)
        if (!isalnum(c)) c = '_';
      return name;
    });

// dp2 tp2 pp2 with every stage of ZeRO, schedule, recomputation and sequence parallelism: one in `each`.
void ExpectFeaturesTogetherToFollow(int each) {
  int number = 0;
  for (int zero : {0, 1, 2, 3})
    for (PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B,
                                      PipelineSchedule::kInterleaved, PipelineSchedule::kZeroBubble})
      for (Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
        for (bool sequence_parallel : {false, true}) {
          if (++number % each != 0) continue;
          Training run{"cpu:dp=2,tp=2,pp=2", 4, schedule};
          if (zero > 0) run.zero_axis = "dp", run.zero_stage = zero;
          run.recompute = recompute;
          run.virtual_stages = schedule == PipelineSchedule::kInterleaved || number % 2 == 0 ? 2 : 1;
          run.sequence_parallel = sequence_parallel;
          const std::vector<float> losses = Losses(run);
          double worst = 0;
          for (int step = 0; step < kSteps; ++step)
            worst = std::max(worst, std::abs(double(losses[step]) - OneDevice()[step]) / OneDevice()[step]);
          EXPECT_LE(worst, 1e-5) << "ZeRO " << zero << " " << Name(schedule) << " " << Name(recompute)
                                 << " virtual stages " << run.virtual_stages
                                 << (sequence_parallel ? " sequence parallel" : "");
        }
  EXPECT_EQ(number, 96);
}

TEST(LossCurve, FeaturesTogetherFollowOneDevice) { ExpectFeaturesTogetherToFollow(11); }
TEST(LongLossCurve, AllFeaturesTogetherFollowOneDevice) { ExpectFeaturesTogetherToFollow(1); }

TEST(LossCurve, FallsOnLearnableTokens) {
  EXPECT_NEAR(OneDevice()[0], std::log(64.0), 0.2);
  EXPECT_LT(OneDevice()[kSteps - 1], OneDevice()[0] - 0.3);
}

// Without dropout the gradients of norms add what comes by the residual branch, where a mesh lets them: not
// on the last one.
TEST(LossCurve, FollowsOneDeviceWithoutDropout) {
  auto losses = [](const char* mesh, int micro_batches) {
    Training run{mesh, micro_batches};
    run.dropout = 0;
    return Losses(run);
  };
  const std::vector<float> one = losses("cpu:dp=1", 1);
  EXPECT_NE(one, OneDevice());
  for (const char* mesh : {"cpu:dp=2", "cpu:tp=2", "cpu:pp=2", "cpu:dp=2,tp=2,pp=2"}) {
    const std::vector<float> other = losses(mesh, 4);
    for (int step = 0; step < kSteps; ++step)
      EXPECT_NEAR(other[step], one[step], 1e-5 * one[step]) << mesh << " step " << step;
  }
}

TEST(LossCurve, RepetitionIsBitEqual) {
  for (const Training& run :
       {Training{"cpu:dp=2,tp=2,pp=2", 4}, Training{"cpu:dp=3"}, Training{"cpu:dp=1", 4}}) {
    std::vector<float> first = Losses(run), second = Losses(run);
    for (int step = 0; step < kSteps; ++step)
      EXPECT_EQ(first[step], second[step]) << run.mesh << " step " << step;
  }
}

}  // namespace
}  // namespace oneflow_like
