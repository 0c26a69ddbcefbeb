// Optimizers and learning-rate schedules beside PyTorch's. A small network is trained for twenty steps by
// each optimizer; its batches, and its weights before each step and after the last, go to a file from which
// optimizers.py trains the same network in double. Schedules go there as their factors. Skipped where python3
// (or the program that OFL_PYTHON names) lacks torch.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "core/random.h"
#include "oneflow_like/session.h"
#include "ops/language/schedule.h"
#include "tests/peers/tensor_file.h"

namespace oneflow_like::peers {
namespace {

constexpr int kSteps = 20;
constexpr int kScheduleSteps = 50;

struct OptimizerCase {
  std::string name;
  Optimizer optimizer;
  TrainOptions options = {};
};

TrainOptions Clipped(double norm) {
  TrainOptions options;
  options.clip_norm = norm;
  return options;
}
TrainOptions Scheduled(const Schedule& schedule) {
  TrainOptions options;
  options.lr_schedule = schedule;
  return options;
}

// optimizers.py has the same numbers.
std::vector<OptimizerCase> OptimizerCases() {
  const Schedule cosine = {.kind = Schedule::Kind::kCosine, .warmup = 5, .total = 18, .final = 0.1};
  return {
      {"sgd", Sgd{.lr = 0.1}},
      {"sgd/momentum", Sgd{.lr = 0.1, .momentum = 0.9}},
      {"sgd/nesterov", Sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true}},
      {"sgd/decay", Sgd{.lr = 0.1, .weight_decay = 0.05}},
      {"sgd/all", Sgd{.lr = 0.1, .momentum = 0.8, .weight_decay = 0.05, .nesterov = true}},
      {"sgd/clipped", Sgd{.lr = 0.1, .momentum = 0.9}, Clipped(0.3)},
      {"sgd/cosine", Sgd{.lr = 0.1, .momentum = 0.9}, Scheduled(cosine)},
      {"adam", Adam{.lr = 0.01}},
      {"adam/numbers", Adam{.lr = 0.01, .beta1 = 0.7, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.05}},
      {"adamw", AdamW{.lr = 0.01}},
      {"adamw/numbers", AdamW{.lr = 0.01, .beta1 = 0.7, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.3}},
      {"adamw/cosine", AdamW{.lr = 0.01, .weight_decay = 0.3}, Scheduled(cosine)},
      {"rmsprop", RmsProp{}},
      {"rmsprop/momentum", RmsProp{.momentum = 0.9}},
      {"rmsprop/numbers",
       RmsProp{.lr = 0.02, .alpha = 0.9, .eps = 1e-3, .momentum = 0.5, .weight_decay = 0.05}},
      {"adagrad", Adagrad{}},
      {"adagrad/numbers", Adagrad{.lr = 0.05, .eps = 1e-3, .initial = 0.1, .weight_decay = 0.05}},
      {"muon", Muon{.others = Sgd{.lr = 0.1}}},
      {"muon/plain", Muon{.momentum = 0.8, .weight_decay = 0, .nesterov = false, .others = Sgd{.lr = 0.1}}},
  };
}

// In [-1, 1).
HostTensor Drawn(uint64_t seed, const Dims& shape) {
  HostTensor t = HostTensor::Make(DType::kFloat32, shape);
  for (int64_t i = 0; i < t.elements(); ++i) t.as<float>()[i] = 2 * ToUniform(RandomBits(seed, 0, i)) - 1;
  return t;
}

void Keep(const std::string& name, const HostTensor& t, TensorFile* file) {
  file->Add(name, t.dtype, t.shape, t.data.get());
}

void RunCase(const OptimizerCase& c, const std::vector<Feeds>& batches, TensorFile* file) {
  SCOPED_TRACE(c.name);
  Model model(Mesh::Parse("cpu:dp=1"));
  const Scope s = model.scope();
  Tensor x = model.Input("x", {16, 6}, DType::kFloat32), y = model.Input("y", {16, 3}, DType::kFloat32);
  Tensor first = s.Weight("first", {6, 5}, Normal(0.5)), second = s.Weight("second", {5, 3}, Normal(0.5));
  // PyTorch's optimizers let biases decay too.
  Tensor bias = s.Weight("bias", {5}, Normal(0.5), WeightOptions{.decay = 1});
  Tensor out = matmul(tanh(matmul(x, first) + bias), second);
  Session train = Train(mean(square(out - y)), c.optimizer, c.options);
  for (int step = 0; step <= kSteps; ++step) {
    for (const char* weight : {"first", "bias", "second"})
      Keep(Cat(c.name, ":", weight, ":", step), model.Read(weight), file);
    if (step < kSteps) train.Run(batches[step]).Wait();
  }
}

// {name, schedule}; those that PyTorch has.
std::vector<std::pair<std::string, Schedule>> ScheduleCases() {
  using enum Schedule::Kind;
  return {
      {"constant", {}},
      {"linear_warmup", {.kind = kLinearWarmup, .warmup = 8}},
      {"linear", {.kind = kLinear, .total = 30, .final = 0.1}},
      {"linear/warmup", {.kind = kLinear, .warmup = 8, .total = 30}},
      {"cosine", {.kind = kCosine, .total = 30, .final = 0.05}},
      {"cosine/warmup", {.kind = kCosine, .warmup = 5, .total = 18, .final = 0.1}},
      {"polynomial", {.kind = kPolynomial, .total = 30, .power = 2.5}},
      {"polynomial/warmup", {.kind = kPolynomial, .warmup = 8, .total = 30, .power = 0.5}},
      {"step", {.kind = kStep, .every = 7, .gamma = 0.3}},
      {"step/warmup", {.kind = kStep, .warmup = 5, .every = 7, .gamma = 0.3}},
      {"one_cycle", {.kind = kOneCycle, .warmup = 9, .total = 40, .final = 0.001}},
      {"warmup_stable_decay",
       {.kind = kWarmupStableDecay, .warmup = 8, .total = 40, .final = 0.2, .decay = 12}},
  };
}

// Runs optimizers.py on the file, which has what `part` says.
void Compare(const std::string& python, const std::string& part, const TensorFile& file) {
  const std::string path = Cat(OFL_BINARY_DIR, "/optimizers_test.", part, ".safetensors");
  file.Write(path);
  const std::string program = Cat(OFL_SOURCE_DIR, "/tests/peers/optimizers.py ");
  EXPECT_EQ(std::system(Cat(python, " -B ", program, part, " ", path).c_str()), 0);
  std::filesystem::remove(path);
}

TEST(Peers, OptimizersAreThoseOfPyTorch) {
  const std::string python = PythonWithTorch();
  if (python.empty()) GTEST_SKIP() << "python3, or what OFL_PYTHON names, lacks torch";
  TensorFile file;
  std::vector<Feeds> batches;
  for (int step = 0; step < kSteps; ++step) {
    batches.push_back({{"x", Drawn(2 * step, {16, 6})}, {"y", Drawn(2 * step + 1, {16, 3})}});
    for (const auto& [name, tensor] : batches.back()) Keep(Cat("batch:", name, ":", step), tensor, &file);
  }
  for (const OptimizerCase& c : OptimizerCases()) RunCase(c, batches, &file);
  Compare(python, "optimizers", file);
}

TEST(Peers, SchedulesAreThoseOfPyTorch) {
  const std::string python = PythonWithTorch();
  if (python.empty()) GTEST_SKIP() << "python3, or what OFL_PYTHON names, lacks torch";
  TensorFile file;
  for (const auto& [name, schedule] : ScheduleCases()) {
    std::vector<double> factors;
    for (int step = 0; step < kScheduleSteps; ++step) factors.push_back(LearningRateFactor(schedule, step));
    file.Add(name, factors);
  }
  Compare(python, "schedules", file);
}

}  // namespace
}  // namespace oneflow_like::peers
