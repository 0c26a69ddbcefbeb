// Ten models of one's own (own_models.h): one curve on every mesh, in micro-batches and recomputed, beside
// PyTorch's in double (own_models.py; skipped where python3, or what OFL_PYTHON names, lacks torch); and what
// recomputed blocks keep.
// ctest: seconds=20 long=60
#include "tests/peers/own_models.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "oneflow_like/session/session_impl.h"
#include "tests/oneflow_like/kept_bytes.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/peers/tensor_file.h"

namespace oneflow_like::peers {
namespace {

constexpr int kOwnSteps = 5, kOwnLayers = 2;

std::vector<OwnModel> OwnModels() {
  std::vector<OwnModel> all = OwnSequences();
  for (OwnModel& model : OwnNetworks()) all.push_back(std::move(model));
  return all;
}

struct OwnPlan {
  const char* mesh = "cpu:dp=1";
  int micro_batches = 1;
  Recompute recompute = Recompute::kNone;
  int zero = 0;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::string str() const { return Cat(mesh, " in ", micro_batches, ", zero ", zero); }
};

struct OwnProgram {
  OwnProgram(const OwnModel& own, const OwnPlan& plan, int64_t layers = kOwnLayers)
      : own(own), model(FullMesh(plan.mesh), OptionsOf(own, plan)) {
    OwnInputs in;
    for (const OwnInput& input : own.inputs) {
      Dims shape = {kOwnBatch};
      for (int64_t extent : input.shape) shape.push_back(extent);
      in[input.name] =
          model.Input(input.name, shape, input.limit > 0 ? DType::kInt32 : DType::kFloat32, {{"dp", S(0)}});
    }
    const std::vector<OwnTraining> built = own.build(model, in, layers);
    for (const OwnTraining& one : built) {
      TrainOptions options;
      options.name = one.name;
      options.weights = one.weights;
      options.average = own.average;
      options.micro_batches = plan.micro_batches;
      options.recompute = plan.recompute;
      options.schedule = plan.schedule;
      trainings.push_back(Train(one.loss, one.optimizer, options));
    }
    if (own.average.decay > 0)
      by_average.push_back(Evaluate({{"loss", built[0].loss}}, {.weights = "average"}));
  }
  static ModelOptions OptionsOf(const OwnModel& own, const OwnPlan& plan) {
    ModelOptions options;
    options.weights = own.patterns;
    if (plan.zero > 0) options.zero = {.axis = "dp", .stage = plan.zero, .small = 0};
    return options;
  }
  Feeds MakeFeeds(int step) const {
    Feeds feeds;
    uint64_t seed = 100 * step;
    for (const OwnInput& input : own.inputs) {
      Dims shape = {kOwnBatch};
      for (int64_t extent : input.shape) shape.push_back(extent);
      feeds[input.name] = input.limit > 0 ? Ids(++seed, shape, input.limit) : Floats(++seed, shape);
    }
    return feeds;
  }
  // Of each step the losses of all trainings; in the end, if averages are kept, the first batch's by them.
  std::vector<double> Losses() {
    std::vector<double> losses;
    for (int step = 0; step < kOwnSteps; ++step)
      for (Session& train : trainings) losses.push_back(train.Run(MakeFeeds(step)).Scalar("loss"));
    for (Session& look : by_average) losses.push_back(look.Run(MakeFeeds(0)).Scalar("loss"));
    return losses;
  }

  const OwnModel& own;
  Model model;
  std::vector<Session> trainings, by_average;
};

void ExpectOneCurve(const OwnModel& own, const std::vector<double>& wanted, const OwnPlan& plan) {
  SCOPED_TRACE(Cat(own.name, " on ", plan.str()));
  const std::vector<double> got = OwnProgram(own, plan).Losses();
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], wanted[i], 1e-5 * (1 + std::abs(wanted[i]))) << i;
}

TEST(OwnModels, LearnTheSameOnEveryMesh) {
  constexpr OwnPlan kPlans[] = {
      {"cpu:dp=2", 3, Recompute::kFull}, {"cpu:tp=2", 3}, {"cpu:pp=2", 3, Recompute::kFull}};
  for (const OwnModel& own : OwnModels()) {
    const std::vector<double> wanted = OwnProgram(own, {}).Losses();
    for (const OwnPlan& plan : kPlans) ExpectOneCurve(own, wanted, plan);
  }
}

TEST(LongOwnModels, LearnTheSameOnEveryMesh) {
  using enum PipelineSchedule;
  constexpr OwnPlan kPlans[] = {{"cpu:dp=2,tp=2,pp=2", 3, Recompute::kFull, 2},
                                {"cpu:dp=2,pp=2", 2, Recompute::kNone, 3, kZeroBubble},
                                {"cpu:dp=3", 2, Recompute::kSelective, 1},
                                {"cpu:dp=2", 1, Recompute::kFull, 3},
                                {"cpu:tp=3", 6},
                                {"cpu:tp=2,pp=2", 6, Recompute::kFull, 0, kGPipe},
                                {"cpu:pp=2", 1},
                                {"cpu:dp=1", 3, Recompute::kFull}};
  for (const OwnModel& own : OwnModels()) {
    const std::vector<double> wanted = OwnProgram(own, {}).Losses();
    for (const OwnPlan& plan : kPlans) ExpectOneCurve(own, wanted, plan);
  }
}

TEST(OwnModels, LearnAsInPyTorch) {
  const std::string python = PythonWithTorch();
  if (python.empty()) GTEST_SKIP() << "python3, or what OFL_PYTHON names, lacks torch";
  TensorFile file;
  auto keep = [&](const std::string& name, const HostTensor& t) {
    file.Add(name, t.dtype, t.shape, t.data.get());
  };
  for (const OwnModel& own : OwnModels()) {
    OwnProgram program(own, {});
    for (const std::string& weight : program.model.Variables())
      if (weight.find(':') == std::string::npos)
        keep(Cat(own.name, ":weight:", weight), program.model.Read(weight));
    for (int step = 0; step < kOwnSteps; ++step)
      for (const auto& [input, tensor] : program.MakeFeeds(step))
        keep(Cat(own.name, ":", input, ":", step), tensor);
    file.Add(Cat(own.name, ":losses"), program.Losses());
  }
  const std::string path = Cat(OFL_BINARY_DIR, "/own_models_test.safetensors");
  file.Write(path);
  EXPECT_EQ(std::system(Cat(python, " -B ", OFL_SOURCE_DIR, "/tests/peers/own_models.py ", path).c_str()), 0);
  std::filesystem::remove(path);
}

// Of a recomputed block the forward pass keeps what goes into it, and nothing else.
TEST(OwnModels, KeepWhatGoesIntoTheirBlocks) {
  for (const OwnModel& own : OwnModels()) {
    if (own.kept == 0) continue;
    auto of_two = [&](Recompute recompute) {  // of two blocks more in each stack
      const OwnPlan plan = {"cpu:dp=1", 3, recompute};
      OwnProgram more(own, plan, 4), less(own, plan, 2);
      return KeptBytes(more.trainings[0]) - KeptBytes(less.trainings[0]);
    };
    EXPECT_EQ(of_two(Recompute::kFull), 2 * own.kept) << own.name;
    EXPECT_GT(of_two(Recompute::kNone), 2 * own.kept) << own.name;
  }
}

}  // namespace
}  // namespace oneflow_like::peers
