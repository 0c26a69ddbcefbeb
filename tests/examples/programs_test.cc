// The models of the example programs beside GPT and Llama: one loss curve for each on every mesh, in
// micro-batches, with every schedule, ZeRO and recomputation.
// ctest: long=30
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/examples/one_curve.h"
#include "tests/examples/small_models.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {

void PrintTo(const SmallModel& small, std::ostream* out) { *out << small.name; }

namespace {

constexpr int kSteps = 6;

std::vector<float> Losses(const SmallModel& small, const CurveRun& run) {
  Model model(run.mesh.find("ep=") == std::string::npos ? FullMesh(run.mesh) : Mesh::Parse(run.mesh),
              ModelOptionsOf(run));
  TrainOptions train = TrainOptionsOf(run);
  train.parallel = {.batch = "dp", .tensor = "tp"};
  train.lr_schedule = {.kind = Schedule::Kind::kLinearWarmup, .warmup = 3};
  Session session = TrainSmall(model, small, train);
  return LossesOf(session, kSteps, [&](int64_t step) { return SmallFeeds(small, step); });
}

class Programs : public ::testing::TestWithParam<SmallModel> {};
class LongPrograms : public Programs {};

// On all meshes, or on every second one, of which neighbours in the list of models have different ones.
void ExpectOneLossCurve(const SmallModel& small, bool all) {
  using enum PipelineSchedule;
  std::vector<CurveRun> runs = {
      {"cpu:dp=1", 4},
      {"cpu:dp=2"},
      {"cpu:dp=3", 2},
      {"cpu:tp=2", 3},
      {"cpu:tp=3"},
      {"cpu:pp=2", 4},
      {"cpu:pp=4", 4, kGPipe},
      {"cpu:pp=2", 4, kZeroBubble},
      {"cpu:pp=2", 4, kInterleaved, 0, Recompute::kNone, 2},
      {"cpu:dp=2,tp=2,pp=2", 2},
      {"cpu:dp=4", 1, k1F1B, 3},
      {"cpu:dp=2,pp=2", 2, k1F1B, 2, Recompute::kFull},
      {"cpu:dp=2,tp=2", 2, k1F1B, 1, Recompute::kSelective},
  };
  if (!all) {
    const std::vector<SmallModel> models = SmallModels();
    const auto at = std::find_if(models.begin(), models.end(),
                                 [&](const SmallModel& model) { return model.name == small.name; });
    std::vector<CurveRun> some;
    for (size_t i = static_cast<size_t>(at - models.begin()) % 2; i < runs.size(); i += 2)
      some.push_back(runs[i]);
    runs = some;
  }
  for (const std::string& mesh : small.meshes) runs.push_back({mesh, 2});
  const std::vector<float> one = Losses(small, {"cpu:dp=1"});
  EXPECT_LT(*std::min_element(one.begin(), one.end()), one[0]) << "it learns";
  for (const CurveRun& run : runs) {
    const Mesh mesh = Mesh::Parse(run.mesh);
    auto extent = [&](const char* axis) {
      return mesh.FindAxis(axis) < 0 ? 1 : mesh.axis_size(mesh.FindAxis(axis));
    };
    if (small.parts % run.micro_batches != 0 || extent("pp") > small.most_stages) continue;
    const std::vector<float> other = Losses(small, run);
    EXPECT_LE(Apart(one, other), 1e-5) << TextOf(run) << "\n"
                                       << ::testing::PrintToString(one) << "\n"
                                       << ::testing::PrintToString(other);
  }
}

TEST_P(Programs, HaveOneLossCurveOnMeshes) { ExpectOneLossCurve(GetParam(), false); }
TEST_P(LongPrograms, HaveOneLossCurveOnEveryMesh) { ExpectOneLossCurve(GetParam(), true); }

INSTANTIATE_TEST_SUITE_P(Small, Programs, ::testing::ValuesIn(SmallModels()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Small, LongPrograms, ::testing::ValuesIn(SmallModels()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace oneflow_like
