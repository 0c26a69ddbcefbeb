// Calibration of GPUs, on the emulator: what its file holds, and that every figure comes from its kernel. Its
// figures say nothing.
#include "oneflow_like/simulate/calibrate_devices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "core/plan.pb.h"
#include "core/plan/plan_values.h"
#include "oneflow_like/calibrate.h"
#include "oneflow_like/simulate.h"
#include "oneflow_like/simulate/device_timing.h"
#include "ops/cpu/manifest.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/small_gpt.h"

extern "C" oneflow_like::Backend* OflBackend();

namespace oneflow_like {
namespace {

class CalibrateDevices : public testing::Test {
 protected:
  void SetUp() override {
    cuda_emulator::Reset({.devices = 2});
    SetBackend("cuda", OflBackend());
  }
  void TearDown() override { SetBackend("cuda", nullptr); }

  static CalibrateOptions Small(int models) {
    CalibrateOptions options;
    options.kind = "cuda";
    options.models = models;
    options.small = true;
    return options;
  }
};

TEST_F(CalibrateDevices, WritesAFileThatSimulates) {
  int told = 0;
  CalibrateOptions options = Small(5);
  options.progress = [&](const std::string&) { ++told; };
  const std::string file = testing::TempDir() + "card.txt";
  CalibrateTo(file, options);
  EXPECT_GT(told, 3);
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  for (const char* word :
       {"\ndevice ", "\nmemory_bytes ", "\nflops_tf32 ", "\nhost latency ", "\nlevel inside devices 2 "})
    EXPECT_NE(text.str().find(word), std::string::npos) << word << "\n" << text.str();
  const Machine machine = ReadTopology(file);
  EXPECT_EQ(machine.threads, 0);
  EXPECT_TRUE(machine.host.known);
  EXPECT_GT(machine.host.bandwidth, 1e3);
  EXPECT_GT(machine.memory_bytes, 1e9);
  std::set<std::string> names;
  for (const MeasuredKernel& k : machine.kernels) {
    EXPECT_EQ(k.threads, 0) << k.name;
    names.insert(Cat(k.name, " ", Name(k.dtype)));
  }
  for (const char* name : {"product bf16",
                           "product f32",
                           "linear bf16",
                           "linear_grad_gelu bf16",
                           "linear_grad_weight bf16",
                           "attention bf16",
                           "attention_grad bf16",
                           "attention f32",
                           "layer_norm bf16",
                           "layer_norm_grad bf16",
                           "embedding bf16",
                           "cross_entropy bf16",
                           "adamw f32",
                           "rms_norm bf16",
                           "rope bf16",
                           "grouped_matmul bf16",
                           "conv2d bf16",
                           "conv2d_grad_input bf16",
                           "conv2d_grad_filter bf16",
                           "gelu_erf bf16",
                           "route f32",
                           "take_rows bf16",
                           "return_rows bf16",
                           "dot_rows bf16",
                           "channel_moments bf16",
                           "sgd f32"})
    EXPECT_EQ(names.count(name), 1u) << name << "\n" << text.str();
  EXPECT_NE(text.str().find("kernel product bf16 overlap call "), std::string::npos) << text.str();
  std::set<Primitive> collectives;
  for (const MeasuredCollective& c : machine.collectives) {
    EXPECT_EQ(c.members, 2);
    collectives.insert(c.primitive);
  }
  EXPECT_EQ(collectives.size(), 5u);
  SmallGpt given;
  given.mesh = "cuda:dp=2";
  given.model_options.topology = file;  // a model knows all kernels that it names
  std::set<std::string> texts;
  for (int repetition = 0; repetition < 2; ++repetition) {
    GptProgram program(given);
    texts.insert(Simulate(program.MakeTrain(), ReadTopology(file)).Text(64, "tokens"));
  }
  EXPECT_EQ(texts.size(), 1u);
}

// A clock that knows what each kernel takes: a call, its bytes, and one operator that is slow.
TEST_F(CalibrateDevices, TakesEachFigureFromItsKernel) {
  const auto machine_with = [&](const std::string& slow) {
    CalibrateOptions options = Small(4);
    options.time = [&](const plan::Kernel& kernel) {
      return (kernel.name() == slow ? 50 : 1) * (2e-6 + 1e-9 * kernel.bytes());
    };
    return Calibrate(options);
  };
  const Machine even = machine_with("");
  const auto amounts = [](const Machine& machine, const std::string& name) {
    Work sum;
    for (const MeasuredKernel& k : machine.kernels)
      if (k.name == name)
        for (const NamedAmount& amount : kAmounts) sum.*amount.value += k.each.*amount.value;
    return sum;
  };
  std::set<std::string> names;
  for (const MeasuredKernel& k : even.kernels) names.insert(k.name);
  EXPECT_GT(names.size(), 15u);
  for (const std::string slow : {"layer_norm_grad", "linear_grad_weight", "grouped_matmul", "rms_norm"}) {
    ASSERT_EQ(names.count(slow), 1u) << slow;
    const Machine uneven = machine_with(slow);
    for (const std::string& name : names) {
      const double times = name == slow ? 50 : 1;
      const Work before = amounts(even, name), after = amounts(uneven, name);
      for (const NamedAmount& amount : kAmounts)
        EXPECT_NEAR(after.*amount.value, times * (before.*amount.value),
                    2e-3 * times * (before.*amount.value))
            << slow << " is slow, and " << name << " has " << amount.name;
    }
  }
}

const KernelRegistry& Kernels() {
  static const KernelRegistry kernels = [] {
    KernelRegistry all;
    AddCpuKernels(&all);
    return all;
  }();
  return kernels;
}

// A card whose products fill waves of tiles, whose attention is bound by exponentials, and whose other
// kernels take a launch and then their bytes, at a rate of their own: nothing of it is linear.
double SecondsOfCard(const plan::Kernel& kernel) {
  const KernelSpec spec = ToSpec(kernel);
  const bool narrow = SizeOf(RateType(kernel)) == 2;
  const double bytes = kernel.bytes() / 2.8e12, flops = kernel.flops();
  if (kernel.category() == "matmul") {
    const double peak = narrow ? 724e12 : 50e12, cores = 132;
    const auto a = static_cast<double>(spec.in[0].elements()), b = static_cast<double>(spec.in[1].elements()),
               y = static_cast<double>(spec.out[0].elements());
    const double batch = std::max(1.0, 4 * a * b * y / (flops * flops));
    const double m = flops / 2 / b, n = flops / 2 / a, k = flops / 2 / y;
    const double tiles = batch * std::ceil(m / 128) * std::ceil(n / 256);
    const double splits = tiles < cores ? std::clamp(k / 256, 1.0, cores / tiles) : 1;
    const double waves = std::ceil(tiles * splits / cores);
    const double seconds = waves * (2 * 128 * 256 * std::ceil(k / splits / 64) * 64 * cores / peak + 1.5e-6);
    const double epilogue = kernel.name().starts_with("linear") ? 0.6 : 0.25;
    return 2e-6 + std::max(seconds, bytes) + epilogue * std::min(seconds, bytes);
  }
  if (kernel.category() == "convolution") {
    const double filters =
        static_cast<double>(spec.out[0].extent[0]);  // of the gradient of a filter, else rows
    return 4e-6 + std::max(flops / 380e12, 1.1 * bytes) * (1 + 8 / (8 + filters));
  }
  if (kernel.category() == "attention") {
    const bool grad = kernel.name() == "attention_grad";
    const TensorArg& q = spec.in[grad ? 1 : 0];
    const auto length = static_cast<double>(q.extent[1]),
               width = static_cast<double>(q.extent[q.extent.rank() - 1]);
    const double scores = static_cast<double>(q.elements()) / length / width * length * (length + 128) / 2;
    const double dropped = spec.attrs.Float("dropout", 0) > 0 ? 1.8 : 1;
    const double seconds = grad ? scores * (10 * width / 520e12 + 1.6e-12)
                                : scores * (std::max(4 * width / 620e12, 4e-13) + 2e-13);
    return (grad ? 30e-6 : 6e-6) + seconds * dropped * (narrow ? 1 : 12);
  }
  const double rate = kernel.name().find("norm") != std::string::npos ? 0.7 : 1;
  return 2.2e-6 + std::max(0.0, bytes / rate - 1e-6);
}

// Steps of models that were not calibrated, on that card.
TEST_F(CalibrateDevices, PredictsStepsOfACardThatIsNotLinear) {
  CalibrateOptions options = Small(kMostModels);
  options.small = false;
  options.time = SecondsOfCard;
  const Machine machine = Calibrate(options);
  struct Case {
    int64_t batch, context, width, heads, vocabulary;
    double dropout;
  };
  for (const Case& c : {Case{32, 1024, 768, 12, 256, 0}, Case{32, 1024, 768, 12, 256, 0.1},
                        Case{4, 2048, 1024, 16, 50304, 0}, Case{8, 1024, 2048, 16, 50304, 0}}) {
    SmallGpt given;
    given.mesh = "cuda:dp=1";
    given.dtype = DType::kBFloat16;
    given.layers = 12;
    given.batch = c.batch, given.context = c.context, given.width = c.width, given.heads = c.heads;
    given.vocabulary = c.vocabulary, given.dropout = c.dropout;
    GptProgram program(given);
    const Session train = program.MakeTrain();
    double truth = 0;
    const RankPlan made = PlanOf(train.impl()->compiled, 0);
    for (const plan::Actor& actor : made.plan.actor())
      for (const plan::Kernel& kernel : actor.kernel())
        if (actor.feed().empty() && actor.fetch().empty()) truth += actor.acts() * SecondsOfCard(kernel);
    EXPECT_NEAR(Simulate(train, machine).seconds, truth, 0.05 * truth)
        << "batch " << c.batch << ", width " << c.width << ", dropout " << c.dropout;
  }
}

// What a card that is busy for long does not have in kernels by themselves is found, and is in predictions:
// arithmetic that takes longer, and time between kernels.
TEST_F(CalibrateDevices, PredictsStepsOfACardThatGetsHot) {
  const auto seconds_of_step = [](const plan::Plan& plan) {
    double seconds = 0;
    for (const plan::Actor& actor : plan.actor())
      for (const plan::Kernel& kernel : actor.kernel())
        if (actor.feed().empty() && actor.fetch().empty())
          seconds +=
              actor.acts() * (5e-6 + SecondsOfCard(kernel) *
                                         (KindOfWork(kernel.category()) == Work::Kind::kOther ? 1 : 1.1));
    return seconds;
  };
  CalibrateOptions options = Small(kMostModels);
  options.small = false;
  options.time = SecondsOfCard;
  const Machine cold = Calibrate(options);
  options.time_step = seconds_of_step;
  const Machine hot = Calibrate(options);
  EXPECT_NEAR(hot.efficiency.attention, cold.efficiency.attention / 1.1, 0.05 * cold.efficiency.attention);
  SmallGpt given;
  given.mesh = "cuda:dp=1";
  given.dtype = DType::kBFloat16;
  given.layers = 12, given.batch = 16, given.context = 1024, given.width = 768, given.heads = 12;
  given.vocabulary = 50304, given.dropout = 0;
  GptProgram program(given);
  const Session train = program.MakeTrain();
  const double truth = seconds_of_step(PlanOf(train.impl()->compiled, 0).plan);
  EXPECT_NEAR(Simulate(train, hot).seconds, truth, 0.05 * truth);
  EXPECT_LT(Simulate(train, cold).seconds, 0.94 * truth);
}

// Networks of convolutions that were not calibrated.
TEST_F(CalibrateDevices, PredictsStepsOfConvolutions) {
  CalibrateOptions options = Small(kMostModels);
  options.small = false;
  options.time = SecondsOfCard;
  const Machine machine = Calibrate(options);
  Model model(Mesh("cuda", {{"dp", 1}}));
  const Scope scope = model.scope();
  Tensor x = model.Input("images", {32, 128, 128, 3}, DType::kFloat32);
  Tensor labels = model.Input("labels", {32}, DType::kInt32);
  for (int64_t block = 0; block < 8; ++block)
    x = nn::ConvBlock(scope / Cat("block", block), x, 48 << (block / 2), 3, {.stride = 1 + block % 2});
  const Tensor logits = nn::Linear(scope / "classes", mean(x, {1, 2}), 10);
  TrainOptions training;
  training.dtype = DType::kBFloat16;
  const Session train = Train(mean(cross_entropy(logits, labels)), Sgd{.lr = 0.1, .momentum = 0.9}, training);
  double truth = 0;
  const RankPlan made = PlanOf(train.impl()->compiled, 0);
  for (const plan::Actor& actor : made.plan.actor())
    for (const plan::Kernel& kernel : actor.kernel())
      if (actor.feed().empty() && actor.fetch().empty()) truth += actor.acts() * SecondsOfCard(kernel);
  EXPECT_NEAR(Simulate(train, machine).seconds, truth, 0.1 * truth);
}

TEST(FitSteps, FindsWhatStepsHaveBesideTheirKernels) {
  std::vector<StepSample> samples = {{0, 20e-3, 3e-3, 500}, {0, 3e-3, 6e-3, 800}, {0, 6e-3, 4e-3, 900}};
  for (StepSample& s : samples) s.seconds = 1.07 * s.arithmetic + s.others + 2e-6 * s.kernels;
  const StepFit fit = FitSteps(samples);
  EXPECT_NEAR(fit.arithmetic, 1.07, 1e-6);
  EXPECT_NEAR(fit.between, 2e-6, 1e-12);
  // Kernels that run together may take less than each by itself: nothing is between them.
  for (StepSample& s : samples) s.seconds = s.arithmetic + s.others - 1e-6 * s.kernels;
  EXPECT_EQ(FitSteps(samples).between, 0);
  // No card computes faster in a step.
  for (StepSample& s : samples) s.seconds = 0.85 * s.arithmetic + s.others;
  EXPECT_EQ(FitSteps(samples).arithmetic, 1);
  EXPECT_EQ(FitSteps({}).arithmetic, 1);
  EXPECT_EQ(FitSteps({}).between, 0);
}

// Steps of an H200: the four that calibration timed, two of which were too short for a training and one too
// long for its kernels, and four models that it does not train, by what their kernels take together.
TEST(FitSteps, PredictsModelsOfAnH200) {
  const StepFit fit = FitSteps({{25.8236e-3, 24.8018e-3, 2.76017e-3, 574},
                                {22.0169e-3, 17.4856e-3, 6.15556e-3, 511},
                                {28.5836e-3, 9.3473e-3, 16.4505e-3, 964},
                                {13.6277e-3, 5.41287e-3, 5.1469e-3, 766}});
  const std::map<std::string, StepSample> models = {{"GPT 124M", {41.825e-3, 37.17e-3, 3.98e-3, 846}},
                                                    {"Llama 160m", {33.042e-3, 24.57e-3, 8.69e-3, 757}},
                                                    {"64 experts", {21.132e-3, 7.02e-3, 12.38e-3, 730}},
                                                    {"ResNet-50", {17.813e-3, 9.22e-3, 8.17e-3, 1391}}};
  for (const auto& [name, step] : models)
    EXPECT_NEAR(fit.arithmetic * step.arithmetic + step.others + fit.between * step.kernels, step.seconds,
                0.1 * step.seconds)
        << name;
}

// A step on one device takes as long as its kernels together.
TEST_F(CalibrateDevices, SimulationsTakeTheTimesOfTheFile) {
  SmallGpt given;
  given.mesh = "cuda:dp=1";
  GptProgram program(given);
  Session train = program.MakeTrain();
  Machine machine;
  machine.topology.links = {{.devices = 0, .latency = 0, .bandwidth = 1e12}};
  machine.topology.memory_bandwidth = 1e15;
  machine.flops = machine.narrow_flops = 1e18;
  machine.overhead = 0;
  machine.shared = {false};
  machine.host = {.latency = 0, .bandwidth = 1e15, .known = true};
  const double without = Simulate(train, machine).seconds;
  machine.kernels = {{"attention", DType::kFloat32, 0, false, {.calls = 1e-3}}};
  const double one = Simulate(train, machine).seconds;
  machine.kernels.push_back({"attention_grad", DType::kFloat32, 0, false, {.calls = 3e-3}});
  const double both = Simulate(train, machine).seconds;
  const auto layers = static_cast<double>(given.layers);
  EXPECT_NEAR(one - without, layers * 1e-3, 1e-6);
  EXPECT_NEAR(both - one, layers * 3e-3, 1e-6);
}

// In 16 bits bf16 stands for f16, but not for fp32, whose products a device does in other units.
TEST_F(CalibrateDevices, TypesOfOneWidthStandForEachOther) {
  Machine machine;
  machine.kernels = {{"gelu", DType::kBFloat16, 0, false, {.flops = 3e-12}}};
  plan::Kernel kernel;
  kernel.set_name("gelu");
  kernel.set_flops(1e9);
  kernel.add_in()->set_dtype(static_cast<int>(DType::kFloat16));
  EXPECT_DOUBLE_EQ(SecondsOnThreads(machine, kernel, Kernels(), 0).alone, 3e-3);
  kernel.mutable_in(0)->set_dtype(static_cast<int>(DType::kFloat32));
  EXPECT_DOUBLE_EQ(SecondsOnThreads(machine, kernel, Kernels(), 0).alone, SecondsOf(machine, kernel));
}

// The constants of estimates, from kernels that take what these constants say.
TEST_F(CalibrateDevices, FindsTheEfficiencyThatTheSamplesHave) {
  Machine machine;
  machine.narrow_flops = 1e15;
  machine.topology.memory_bandwidth = 3e12;
  machine.overhead = 2e-6;
  machine.efficiency = {.product = 0.7, .attention = 0.4, .half_extent = 128};
  std::vector<EstimatedSample> samples;
  for (Work::Kind kind : {Work::Kind::kProduct, Work::Kind::kAttention})
    for (double extent : {64.0, 512.0, 4096.0}) {
      EstimatedSample s = {{.calls = 1, .flops = 2e6 * extent, .bytes = 5e6, .kind = kind, .largest = 1e6},
                           DType::kBFloat16};
      s.seconds = SecondsOf(machine, s.work, s.dtype) + machine.overhead;
      samples.push_back(s);
    }
  const Efficiency fit = FitEfficiency(machine, samples);
  EXPECT_NEAR(fit.product, 0.7, 1e-3);
  EXPECT_NEAR(fit.attention, 0.4, 1e-3);
}

// Copies to the host and from there take what they take, each way.
TEST_F(CalibrateDevices, MeasuresTheLinkToTheHost) {
  MeasuredDevice card(OpenBackend("cuda"), 0);
  const HostCopies fast = MeasureHostCopies(&card, /*small=*/true);
  cuda_emulator::SetCopyDelay(2000);
  const HostCopies slow = MeasureHostCopies(&card, /*small=*/true);
  EXPECT_GE(slow.latency, 2e-3);
  EXPECT_LT(fast.latency, slow.latency);
}

// The rate of products that round to TF32 is that of such a product, and of no other.
TEST_F(CalibrateDevices, MeasuresProductsThatRoundToTf32) {
  constexpr int kDelay = 3000;  // microseconds
  MeasuredDevice card(OpenBackend("cuda"), 0);
  cuda_emulator::SetTf32Delay(kDelay);
  const Ceilings ceilings = MeasureCeilings(&card, /*small=*/true);
  EXPECT_GT(ceilings.tf32, 0);
  EXPECT_LE(ceilings.tf32, 2.0 * 16 * 16 * 16 / (1e-6 * kDelay));
  EXPECT_LT(ceilings.tf32, ceilings.f32);
  CalibrateOptions options = Small(1);
  options.time = SecondsOfCard;
  EXPECT_LE(Calibrate(options).tf32_flops, 2.0 * 16 * 16 * 16 / (1e-6 * kDelay));
}

TEST_F(CalibrateDevices, RefusesWhatIsNotThere) {
  CalibrateOptions options = Small(1);
  options.devices = {2};
  EXPECT_NE(ErrorOf([&] { Calibrate(options); }).find("device 2 of --devices does not exist"),
            std::string::npos);
  EXPECT_EQ(CheckCalibration("cuda:dp=2"), "cuda");
  cuda_emulator::Reset({.driver = 0});
}

}  // namespace
}  // namespace oneflow_like
