// Machines that were measured: their words in topology files, the fit of times to kernels, a small
// calibration, and simulations on processors that threads of several processes share.
// ctest: long=15
#include "oneflow_like/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "core/plan.pb.h"
#include "oneflow_like/simulate.h"
#include "oneflow_like/simulate/kernel_fit.h"
#include "ops/cpu/manifest.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/h100_kernels.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

std::string FileWith(const std::string& text) {
  const std::string path = testing::TempDir() + "calibrated.txt";
  std::ofstream(path) << text;
  return path;
}

// Any number of twelve orders of magnitude.
double Draw(std::mt19937* random) {
  const double digits = 1 + static_cast<double>((*random)() % 9'000) / 1'000;
  return digits * std::pow(10, static_cast<int>((*random)() % 12) - 6);
}

Work DrawAmounts(std::mt19937* random) {
  Work amounts;
  for (const NamedAmount& amount : kAmounts)
    amounts.*amount.value = static_cast<double>((*random)() % 2) * Draw(random);
  return amounts;
}

Machine DrawMachine(std::mt19937* random) {
  Machine m;
  const auto below = [&](int n) { return static_cast<int>((*random)() % n); };
  m.name = Cat("machine", below(100));
  m.memory_bytes = below(2) * std::clamp(Draw(random), 1.0, 1e18);
  m.topology.memory_bandwidth = Draw(random);
  m.flops = Draw(random);
  m.tf32_flops = Draw(random);
  m.narrow_flops = Draw(random);
  m.overhead = below(2) * Draw(random);
  m.efficiency = {
      .product = (1 + below(99)) / 100.0, .attention = (1 + below(99)) / 100.0, .half_extent = Draw(random)};
  m.threads = below(3);
  if (m.threads > 0 || below(2) == 1) m.tf32_flops = 0;
  m.message = below(2) * Draw(random);
  m.process_message = Draw(random);
  m.process_work = Draw(random);
  m.cache_bytes = below(2) * std::clamp(Draw(random), 1.0, 1e18);
  m.topology.links.clear();
  int devices = 1;
  for (int levels = 1 + below(3); levels > 0; --levels) {
    devices *= 2 + below(3);
    m.topology.links.push_back({.devices = levels == 1 && below(2) == 0 ? 0 : devices,
                                .latency = below(2) * Draw(random) * 1e-4,
                                .bandwidth = Draw(random)});
    m.shared.push_back(below(2) == 1);
  }
  for (Primitive p : {Primitive::kAllReduce, Primitive::kAllGather})
    if (below(2) == 1)
      m.collectives.push_back({p, 4, 2, {{8, Draw(random)}, {1e3 + below(9), Draw(random)}}});
  for (const char* name : {"einsum", "adamw", kCollectiveWork})
    for (DType type : {DType::kFloat32, DType::kBFloat16})
      for (bool crowded : {false, true})
        if ((m.threads > 0 || !crowded) && below(2) == 1)
          m.kernels.push_back({name, type, m.threads > 0 ? 1 + below(64) : 0, crowded, DrawAmounts(random)});
  if (below(2) == 1) m.host = {.latency = Draw(random) * 1e-4, .bandwidth = Draw(random), .known = true};
  return m;
}

TEST(CalibratedTopology, IsReadBackToTheLastBit) {
  for (int trial = 0; trial < 200; ++trial) {
    std::mt19937 random(trial);
    const Machine m = DrawMachine(&random);
    SCOPED_TRACE(Cat("seed ", trial));
    const Machine read = ReadTopology(FileWith(TopologyText(m)));
    EXPECT_EQ(read.name, m.name);
    EXPECT_EQ(read.memory_bytes, m.memory_bytes);
    EXPECT_EQ(read.topology.memory_bandwidth, m.topology.memory_bandwidth);
    EXPECT_EQ(read.flops, m.flops);
    EXPECT_EQ(read.tf32_flops, m.tf32_flops);
    EXPECT_EQ(read.narrow_flops, m.narrow_flops);
    EXPECT_EQ(read.overhead, m.overhead);
    EXPECT_EQ(read.efficiency.product, m.efficiency.product);
    EXPECT_EQ(read.efficiency.attention, m.efficiency.attention);
    EXPECT_EQ(read.efficiency.half_extent, m.efficiency.half_extent);
    EXPECT_EQ(read.threads, m.threads);
    EXPECT_EQ(read.message, m.message);
    EXPECT_EQ(read.process_message, m.process_message);
    EXPECT_EQ(read.process_work, m.process_work);
    EXPECT_EQ(read.cache_bytes, m.cache_bytes);
    EXPECT_EQ(read.shared, m.shared);
    ASSERT_EQ(read.topology.links.size(), m.topology.links.size());
    for (size_t l = 0; l < m.topology.links.size(); ++l) {
      EXPECT_EQ(read.topology.links[l].devices, m.topology.links[l].devices);
      EXPECT_EQ(read.topology.links[l].latency, m.topology.links[l].latency);
      EXPECT_EQ(read.topology.links[l].bandwidth, m.topology.links[l].bandwidth);
    }
    ASSERT_EQ(read.collectives.size(), m.collectives.size());
    for (size_t c = 0; c < m.collectives.size(); ++c)
      EXPECT_EQ(read.collectives[c].points, m.collectives[c].points);
    EXPECT_TRUE(read.kernels == m.kernels);
    EXPECT_EQ(read.host.known, m.host.known);
    EXPECT_EQ(TopologyText(read), TopologyText(m));
  }
}

const char* const kHost =
    "memory_bandwidth 1e10\nflops_fp32 1e11\nflops_16bit 1e11\nthreads 2\n"
    "level host devices 0 latency 1e-6 bandwidth 1e10\n";

TEST(CalibratedTopology, SaysWhichLineIsWrong) {
  const std::string good = "kernel einsum f32 threads 1 call 1e-6 flop 1e-12 byte 0";
  ReadTopology(FileWith(Cat(kHost, good, "\n")));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"kernel", ":6: kernel needs an operator and a type"},
      {"kernel einsum", ":6: kernel needs an operator and a type"},
      {"kernel einsum f33 threads 1 call 1 flop 1 byte 1",
       "is of type 'f33', which is none of f32, bf16, f16"},
      {"kernel einsum i32 threads 1 call 1 flop 1 byte 1", "is of type 'i32'"},
      {"kernel einsum f32 call 1 flop 1 byte 1",
       "describes a host of 2 cores, and kernel einsum lacks threads"},
      {"kernel einsum f32 crowded call 1 flop 1 byte 1",
       ":6: kernel einsum lacks threads, as cores are crowded"},
      {"kernel einsum f32 threads 1 call 1 flop 1", ":6: kernel einsum lacks byte"},
      {"kernel einsum f32 threads 1 flop 1 byte 1", ":6: kernel einsum lacks call"},
      {"kernel einsum f32 threads 0 call 1 flop 1 byte 1",
       "threads of kernel einsum is 0, must be at least 1"},
      {"kernel einsum f32 threads 1.5 call 1 flop 1 byte 1", "no whole number"},
      {"kernel einsum f32 threads 1 call -1 flop 1 byte 1",
       "call of kernel einsum is -1, must be at least 0"},
      {"kernel einsum f32 threads 1 call fast flop 1 byte 1", "call of kernel einsum is 'fast'"},
      {"kernel einsum f32 threads 1 call 1 flop 1 byte", "byte of kernel einsum has no number"},
      {"kernel einsum f32 threads 1 call 1 flop 1 byte 1 left 1 left 2", "is given left a second time"},
      {"kernel einsum f32 threads 1 lone call 1 flop 1 byte 1", ":6: 'lone' is not known of a kernel"},
      {Cat(good, "\n", good), ":7: kernel einsum f32 of 1 threads is given a second time"},
      {"message -1", ":6: message is -1, must be at least 0"},
      {"process_message", ":6: process_message has no number"},
      {"core_turn 4e-3",
       ":6: core_turn is a fact of earlier versions, as threads now share cores evenly; "
       "remove the line, or calibrate again"},
      {"crowded_work 1.1", ":6: crowded_work is a fact of earlier versions"},
      {"message 1\nmessage 1", ":7: message is given a second time"}};
  for (const auto& [line, expected] : cases) {
    const std::string error = ErrorOf([&] { ReadTopology(FileWith(Cat(kHost, line, "\n"))); });
    EXPECT_NE(error.find(expected), std::string::npos) << "'" << error << "' lacks '" << expected << "'";
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
  std::string apart = Cat(kHost, good, "\n");
  apart.erase(apart.find("threads 2\n"), 10);
  EXPECT_NE(ErrorOf([&] {
              ReadTopology(FileWith(apart));
            }).find("has kernels of a host's cores (kernel einsum), and does not say threads"),
            std::string::npos);
  // A device works by itself.
  std::string device = Cat(kHost, "kernel einsum f32 call 1 flop 1 byte 1\n");
  device.erase(device.find("threads 2\n"), 10);
  EXPECT_EQ(ReadTopology(FileWith(device)).kernels.at(0).threads, 0);
  EXPECT_NE(ErrorOf([&] {
              ReadTopology(FileWith(Cat(device, "kernel einsum f32 call 2 flop 1 byte 1\n")));
            }).find("kernel einsum f32 is given a second time"),
            std::string::npos);
  // Crowded or not, of each type and number of threads there may be one.
  std::string all = kHost;
  for (const char* type : {"f32", "bf16"})
    for (const char* threads : {"1", "2", "2 crowded"})
      all += Cat("kernel einsum ", type, " threads ", threads, " call 1 flop 1 byte 1\n");
  EXPECT_EQ(ReadTopology(FileWith(all)).kernels.size(), 6u);
}

const KernelRegistry& Kernels() {
  static const KernelRegistry kernels = [] {
    KernelRegistry all;
    AddCpuKernels(&all);
    return all;
  }();
  return kernels;
}

Work WorkOnHost(const plan::Kernel& kernel, double near_bytes = 0) {
  return HostWorkOf(kernel, Kernels(), near_bytes).work;
}

plan::Kernel ProductKernel(const std::string& equation, DType type, const std::vector<Dims>& operands) {
  plan::Kernel kernel;
  kernel.set_name(equation.empty() ? "matmul" : "einsum");
  plan::Attr* attr = kernel.add_attr();
  attr->set_name("equation");
  attr->set_s(equation);
  for (size_t i = 0; i < operands.size(); ++i) {
    plan::Operand* operand = i < 2 ? kernel.add_in() : kernel.add_out();
    operand->set_dtype(static_cast<int>(type));
    plan::Box* box = operand->add_box();
    for (int axis = 0; axis < operands[i].rank(); ++axis) {
      operand->mutable_global()->add_at(operands[i][axis]);
      box->add_begin(0);
      box->add_extent(operands[i][axis]);
    }
  }
  return kernel;
}

// --- The fit ---

TEST(KernelFit, FindsTheConstantsOfExactTimes) {
  for (int trial = 0; trial < 50; ++trial) {
    std::mt19937 random(trial);
    std::map<std::string, MeasuredKernel> truth;
    std::vector<KernelSample> samples;
    for (const char* name : {"einsum", "attention", "adamw"})
      for (bool crowded : {false, true}) {
        const std::string key = Cat(name, crowded);
        truth[key].each = {.calls = static_cast<double>(random() % 3) * 1e-6,
                           .flops = 1e-12 * static_cast<double>(1 + random() % 9),
                           .bytes = 1e-11 * static_cast<double>(random() % 3)};
        for (int i = 0; i < 12; ++i) {
          KernelSample s;
          s.name = name;
          s.crowded = crowded;
          s.work.calls = 1;
          s.work.bytes = std::pow(10, 4 + static_cast<double>(random() % 300) / 100);
          s.work.flops = s.work.bytes * std::pow(10, static_cast<double>(random() % 250) / 100);
          s.seconds = truth[key].SecondsOf(s.work);
          samples.push_back(s);
        }
      }
    const std::vector<MeasuredKernel> fit = FitKernels(samples);
    ASSERT_EQ(fit.size(), 6u);
    for (const KernelSample& s : samples) {
      const auto k = std::find_if(fit.begin(), fit.end(), [&](const MeasuredKernel& m) {
        return m.name == s.name && m.crowded == s.crowded;
      });
      ASSERT_NE(k, fit.end());
      EXPECT_NEAR(k->SecondsOf(s.work), s.seconds, 2e-3 * s.seconds) << "seed " << trial << " " << s.name;
    }
  }
}

// Of products whose rate depends on their shape, shapes that were not measured are predicted: here a machine
// that packs the right operand and computes whole tiles, measured with a little noise.
TEST(KernelFit, PredictsProductsOfOtherShapes) {
  for (int trial = 0; trial < 50; ++trial) {
    std::mt19937 random(trial);
    const auto draw = [&](int64_t tile) { return tile * (1 + static_cast<int64_t>(random() % 24)); };
    const auto sample = [&](double noise) {
      const int64_t m = draw(16), n = draw(64), k = draw(16);
      KernelSample s;
      s.name = "product";
      s.work = WorkOnHost(ProductKernel("mk,kn->mn", DType::kFloat32, {{m, k}, {k, n}, {m, n}}));
      s.work.flops = 2.0 * static_cast<double>(m * n * k);
      s.seconds = 3e-6 + 8e-12 * s.work.flops + 4e-10 * s.work.right + 1e-10 * s.work.result;
      s.seconds *= 1 + noise * (static_cast<double>(random() % 201) - 100) / 100;
      return s;
    };
    std::vector<KernelSample> samples;
    for (int i = 0; i < 40; ++i) samples.push_back(sample(0.01));
    const std::vector<MeasuredKernel> fit = FitKernels(samples);
    ASSERT_EQ(fit.size(), 1u);
    for (int i = 0; i < 30; ++i) {
      const KernelSample other = sample(0);
      EXPECT_NEAR(fit[0].SecondsOf(other.work), other.seconds, 0.1 * other.seconds) << "seed " << trial;
    }
  }
}

// A card's products and attention, of which most of a step consists: few take another time than their fit.
TEST(KernelFit, FindsTheTimesOfACard) {
  std::vector<KernelSample> samples;
  std::istringstream lines(kH100Kernels);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    KernelSample s;
    s.threads = 0;
    s.dtype = DType::kBFloat16;
    s.work.calls = 1;
    if (!(words >> s.name)) continue;
    s.work.kind = s.name.starts_with("attention") ? Work::Kind::kAttention : Work::Kind::kProduct;
    double value = 0;
    for (std::string word; words >> word >> value;) {
      if (word == "seconds") s.seconds = value;
      for (const NamedAmount& amount : kAmounts)
        if (word == amount.name) s.work.*amount.value = value;
    }
    samples.push_back(s);
  }
  ASSERT_GT(samples.size(), 100u);
  const std::vector<MeasuredKernel> fit = FitKernels(samples);
  ASSERT_EQ(fit.size(), 6u);
  double all = 0, off = 0, errors = 0;
  for (const KernelSample& s : samples) {
    const auto k =
        std::find_if(fit.begin(), fit.end(), [&](const MeasuredKernel& m) { return m.name == s.name; });
    ASSERT_NE(k, fit.end());
    const double error = std::abs(k->SecondsOf(s.work) - s.seconds);
    all += s.seconds;
    errors += error;
    if (error > 0.15 * s.seconds) off += s.seconds;
  }
  std::printf("of the time %.1f %% is of kernels whose fit is off by over 15 %%; fits are off by %.1f %%\n",
              100 * off / all, 100 * errors / all);
  EXPECT_LT(off, 0.05 * all);
  EXPECT_LT(errors, 0.055 * all);
}

// Of devices, arithmetic and memory overlap in products: what takes exactly so long is found, also where one
// of the two decides everywhere.
TEST(KernelFit, FindsProductsThatOverlap) {
  for (const double narrowest : {1e6, 1e8}) {
    MeasuredKernel truth{"product",
                         DType::kBFloat16,
                         0,
                         false,
                         {.calls = 3e-6, .flops = 1.5e-15, .left = 3e-13, .result = 4e-13},
                         true};
    std::mt19937 random(1);
    std::vector<KernelSample> samples;
    for (int i = 0; i < 40; ++i) {
      KernelSample s;
      s.name = "product";
      s.dtype = DType::kBFloat16;
      s.threads = 0;
      s.work = {.calls = 1, .kind = Work::Kind::kProduct};
      s.work.left = narrowest * (1 + static_cast<double>(random() % 100));
      s.work.result = narrowest * (1 + static_cast<double>(random() % 100));
      s.work.flops = 1e9 * (1 + static_cast<double>(random() % 100));
      s.seconds = truth.SecondsOf(s.work);
      samples.push_back(s);
    }
    const std::vector<MeasuredKernel> fit = FitKernels(samples);
    ASSERT_EQ(fit.size(), 1u);
    EXPECT_TRUE(fit[0].overlap);
    for (const KernelSample& s : samples)
      EXPECT_NEAR(fit[0].SecondsOf(s.work), s.seconds, 0.01 * s.seconds) << narrowest;
  }
}

// Where an exact solution would need a negative constant, the best without one is found: no step to either
// side of an unknown is better.
TEST(KernelFit, NoNeighbourIsBetter) {
  for (int trial = 0; trial < 100; ++trial) {
    std::mt19937 random(trial);
    const size_t n = 1 + random() % 5;
    std::vector<std::vector<double>> rows;
    std::vector<double> values, weights;
    for (size_t i = 0; i < 3 * n; ++i) {
      rows.emplace_back();
      for (size_t j = 0; j < n; ++j) rows.back().push_back(static_cast<double>(random() % 100));
      values.push_back(static_cast<double>(random() % 100) - 30);
      weights.push_back(0.1 + static_cast<double>(random() % 10));
    }
    const std::vector<double> x = FitNonNegative(rows, values, weights);
    const auto error = [&](const std::vector<double>& at) {
      double sum = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        double off = -values[i];
        for (size_t j = 0; j < n; ++j) off += rows[i][j] * at[j];
        sum += weights[i] * off * off;
      }
      return sum;
    };
    for (size_t j = 0; j < n; ++j) {
      EXPECT_GE(x[j], 0);
      for (double step : {-1e-3, 1e-3}) {
        std::vector<double> beside = x;
        beside[j] = std::max(0.0, beside[j] + step);
        EXPECT_GE(error(beside), error(x) * (1 - 1e-9)) << "seed " << trial << " unknown " << j;
      }
    }
  }
}

// Times that scatter, and sizes alone do not explain: what all samples take together is kept. (Fitted to
// short ones first, such kernels would be estimated at a half.)
TEST(KernelFit, KeepsTheSumOfTimes) {
  for (int trial = 0; trial < 50; ++trial) {
    std::mt19937 random(trial);
    std::vector<KernelSample> samples;
    double measured = 0;
    for (int i = 0; i < 40; ++i) {
      KernelSample s;
      s.name = "collective";
      s.work = {.calls = 1, .bytes = std::pow(10, 3 + static_cast<double>(random() % 400) / 100)};
      s.seconds = 1e-6 + 1e-11 * s.work.bytes * (1 + static_cast<double>(random() % 20));
      measured += s.seconds;
      samples.push_back(s);
    }
    const std::vector<MeasuredKernel> fit = FitKernels(samples);
    ASSERT_EQ(fit.size(), 1u);
    double fitted = 0;
    for (const KernelSample& s : samples) fitted += fit[0].SecondsOf(s.work);
    EXPECT_NEAR(fitted, measured, 0.01 * measured) << "seed " << trial;
  }
}

// A fused kernel takes one call and one pass over memory, and the arithmetic of each of its steps.
TEST(KernelFit, TellsTheStepsOfFusedKernelsApart) {
  std::mt19937 random(3);
  const std::map<std::string, double> truth = {{"add", 1e-10}, {"gelu", 4e-10}, {"dropout", 9e-10}};
  std::vector<KernelSample> samples;
  for (const std::vector<std::string>& steps : std::vector<std::vector<std::string>>{
           {"add", "gelu"}, {"add", "dropout"}, {"add", "dropout", "add"}, {}, {}}) {
    for (double elements : {1e3, 1e4, 3e5}) {
      KernelSample s;
      s.name = steps.empty() ? "add" : "fused";
      s.steps = steps;
      const std::vector<std::string> does = steps.empty() ? std::vector<std::string>{"add"} : steps;
      s.work = {.calls = 1,
                .flops = elements * static_cast<double>(does.size()),
                .bytes = elements * static_cast<double>(8 + 4 * (random() % 3))};
      s.seconds = 2e-6 + 1e-11 * s.work.bytes;
      for (const std::string& step : does) s.seconds += truth.at(step) * elements;
      samples.push_back(s);
    }
  }
  Machine machine;
  machine.kernels = FitKernels(samples);
  ASSERT_EQ(machine.kernels.size(), 3u);
  for (const MeasuredKernel& k : machine.kernels)
    EXPECT_NEAR(k.each.flops, truth.at(k.name), 0.01 * truth.at(k.name));
  // A chain that was never measured, of steps that were.
  plan::Kernel kernel;
  kernel.set_name("fused");
  plan::Attr* program = kernel.add_attr();
  program->set_name("program");
  program->set_s("gelu 0;dropout 1 key=1 p=0.1");
  kernel.add_in();
  kernel.set_flops(2e4);
  kernel.set_bytes(8e4);
  const double expected = 2e-6 + 1e-11 * 8e4 + (4e-10 + 9e-10) * 1e4;
  EXPECT_NEAR(SecondsOnThreads(machine, kernel, Kernels(), 1).alone, expected, 0.01 * expected);
}

// As it happens with few samples of a busy machine: an operator that takes nothing would make plans of it
// free.
TEST(KernelFit, LeavesOutWhatGetsNoTime) {
  std::vector<KernelSample> samples;
  for (double flops : {1e4, 1e5, 1e6})
    for (const std::string name : {"add", "gelu"}) {
      KernelSample s;
      s.name = name;
      s.threads = 1;
      s.steps = {name};
      s.work = {.calls = 1, .flops = flops, .bytes = 1};
      s.seconds = name == "add" ? 1e-10 * flops : 0;
      samples.push_back(s);
    }
  const std::vector<MeasuredKernel> kernels = FitKernels(samples);
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0].name, "add");
  EXPECT_NEAR(kernels[0].each.flops, 1e-10, 1e-12);
}

// It would predict that smaller ones take none.
TEST(KernelFit, LeavesOutWhatGetsTimeOfFarBytesAlone) {
  std::vector<KernelSample> samples;
  for (double far : {0.0, 1e6, 2e6}) {
    KernelSample s;
    s.name = "gelu";
    s.threads = 1;
    s.steps = {"gelu"};
    s.work = {.calls = 1, .flops = 1e5 + far, .bytes = 1e5 + far, .far = far};
    s.seconds = 1e-10 * far;
    samples.push_back(s);
  }
  EXPECT_TRUE(FitKernels(samples).empty());
  for (KernelSample& s : samples) s.seconds += 1e-6;
  EXPECT_EQ(FitKernels(samples).size(), 1u);
}

// Bytes that caches do not hold take longer: of operators alone, and of chains, whose steps share one pass.
// Without a number for them times of large kernels could not be told from those of small ones.
TEST(KernelFit, TellsBytesInCachesFromOthers) {
  Machine machine;
  machine.cache_bytes = 2e6;
  std::vector<KernelSample> samples;
  const auto seconds = [](const std::string& name, double bytes, int threads) {
    return (name == "rope" ? 1e-10 : 2e-10) * bytes / 4 + 1e-6 + 2e-11 * bytes +
           3e-11 * std::max(0.0, bytes - 1e6 * threads);
  };
  plan::Kernel kernel;
  kernel.add_in()->set_dtype(static_cast<int>(DType::kFloat32));
  const auto resize = [&](double bytes) {
    kernel.set_bytes(bytes);
    kernel.set_flops(bytes / 4);
  };
  for (int threads : {1, 2})
    for (const std::string name : {"rope", "silu"})
      for (double bytes : {2e4, 3e5, 9e5, 2e6, 5e6}) {
        KernelSample s;
        s.name = name;
        s.threads = threads;
        if (name == "silu") s.steps = {"silu"};
        kernel.set_name(name);
        resize(bytes);
        s.work = WorkOnHost(kernel, machine.NearBytes(threads));
        s.seconds = seconds(name, bytes, threads);
        samples.push_back(s);
      }
  machine.kernels = FitKernels(samples);
  plan::Attr* program = kernel.add_attr();
  program->set_name("program");
  program->set_s("silu 0");
  for (int threads : {1, 2})
    for (double bytes : {1e5, 1.5e6, 4e7}) {
      resize(bytes);
      for (const char* name : {"rope", "silu", "fused"}) {
        kernel.set_name(name);
        const double expected = seconds(name, bytes, threads);
        EXPECT_NEAR(SecondsOnThreads(machine, kernel, Kernels(), threads).alone, expected, 0.01 * expected)
            << name << " of " << bytes << " bytes on " << threads;
      }
    }
  machine.cache_bytes = 0;  // of a machine whose caches are not known nothing is far
  EXPECT_EQ(WorkOnHost(kernel, machine.NearBytes(1)).far, 0);
}

// --- Times on threads ---

TEST(SecondsOnThreads, TakesTheNearestMeasurement) {
  Machine machine;
  machine.kernels = {{"gelu", DType::kFloat32, 1, false, {.flops = 8e-12}},
                     {"gelu", DType::kFloat32, 1, true, {.flops = 9e-12}},
                     {"gelu", DType::kFloat32, 4, false, {.flops = 2e-12}},
                     {"gelu", DType::kBFloat16, 1, false, {.flops = 3e-12}}};
  plan::Kernel kernel;
  kernel.set_name("gelu");
  kernel.set_flops(1e9);
  kernel.add_in()->set_dtype(static_cast<int>(DType::kFloat32));
  const auto alone = [&](int threads) { return SecondsOnThreads(machine, kernel, Kernels(), threads).alone; };
  EXPECT_DOUBLE_EQ(alone(1), 8e-3);
  EXPECT_DOUBLE_EQ(alone(3), 8e-3);  // of fewer threads rather than of more
  EXPECT_DOUBLE_EQ(alone(4), 2e-3);
  EXPECT_DOUBLE_EQ(alone(64), 2e-3);
  EXPECT_DOUBLE_EQ(SecondsOnThreads(machine, kernel, Kernels(), 1).crowded, 9e-3);
  kernel.mutable_in(0)->set_dtype(static_cast<int>(DType::kBFloat16));
  EXPECT_DOUBLE_EQ(alone(1), 3e-3);
  kernel.mutable_in(0)->set_dtype(static_cast<int>(DType::kFloat16));
  EXPECT_DOUBLE_EQ(alone(1), 8e-3);  // of another type, where there is none of its own
  kernel.set_name("conv2d");         // not measured: by peak and bandwidth
  EXPECT_DOUBLE_EQ(alone(1), SecondsOf(machine, kernel));
}

// Attention works on whole tiles of 64 queries, up to the last key that one of them sees, and takes time for
// their scores and for dropout of these; where a piece of the sequence lies decides how many that are.
TEST(SecondsOnThreads, CountsTheTilesOfAttention) {
  struct Case {
    int64_t queries, first, keys, first_key, all;  // `all`: of the sequence
    bool causal;
    double pairs;  // of a head
  };
  const std::vector<Case> cases = {{96, 0, 96, 0, 96, true, 64 * 64 + 64 * 96},
                                   {96, 0, 96, 0, 96, false, 2 * 64 * 96},
                                   {64, 0, 64, 0, 64, true, 64 * 64},
                                   {5, 0, 5, 0, 5, true, 64 * 5},
                                   {4, 96, 100, 0, 100, true, 4 * 100},  // few: not in tiles
                                   {130, 0, 130, 0, 130, true, 64 * (64 + 128 + 130)},
                                   {64, 64, 128, 0, 128, true, 64 * 128},
                                   {64, 0, 64, 64, 128, true, 0},
                                   {64, 64, 64, 64, 128, true, 64 * 64}};
  for (const char* name : {"attention", "attention_grad"})
    for (const Case& c : cases) {
      constexpr int64_t kBatch = 3, kHeads = 5, kWidth = 16;
      plan::Kernel kernel;
      kernel.set_name(name);
      plan::Attr* causal = kernel.add_attr();
      causal->set_name("causal");
      causal->set_i(c.causal);
      if (kernel.name() == "attention_grad") kernel.add_in();
      const auto add = [&](int64_t length, int64_t first) {
        plan::Operand* operand = kernel.add_in();
        plan::Box* box = operand->add_box();
        const int64_t begins[] = {0, first, 0, 0}, extents[] = {kBatch, length, kHeads, kWidth};
        for (int axis = 0; axis < 4; ++axis) {
          operand->mutable_global()->add_at(axis == 1 ? c.all : extents[axis]);
          box->add_begin(begins[axis]);
          box->add_extent(extents[axis]);
        }
      };
      add(c.queries, c.first);
      for (int operand = 0; operand < 2; ++operand) add(c.keys, c.first_key);  // keys and values
      kernel.set_flops(static_cast<double>(4 * kWidth * kBatch * kHeads * c.queries * c.keys));
      kernel.set_bytes(12345);
      const Work work = WorkOnHost(kernel);
      const bool whole = kernel.name() == "attention_grad" && c.queries < 5;  // its tiles are
      const double pairs = whole ? 64.0 * static_cast<double>(c.keys) : c.pairs;
      EXPECT_DOUBLE_EQ(work.flops, 4 * kWidth * kBatch * kHeads * pairs) << name << " " << c.queries;
      EXPECT_DOUBLE_EQ(work.score, kBatch * kHeads * pairs) << name << " " << c.queries;
      EXPECT_EQ(work.bytes, 12345);
      EXPECT_EQ(work.dropped, 0);
      plan::Attr* dropout = kernel.add_attr();
      dropout->set_name("dropout");
      dropout->set_f(0.1F);
      const Work dropping = WorkOnHost(kernel);  // of few queries, too, in tiles
      EXPECT_EQ(dropping.dropped, dropping.score);
      EXPECT_GE(dropping.score, work.score);
    }
}

// A product's work has bytes of each matrix apart; one whose result is stored transposed has its operands
// exchanged. Operands packed along columns take longer where their neighbours are a page apart.
TEST(SecondsOnThreads, CountsTheMatricesOfProducts) {
  struct Case {
    std::string equation;  // empty: a matmul
    std::vector<Dims> operands;
    Work elements;
  };
  const std::vector<Case> cases = {
      {"bsw,whd->bshd",
       {{2, 8, 16}, {16, 3, 4}, {2, 8, 3, 4}},
       {.left = 2 * 8 * 16, .right = 16 * 12, .result = 2 * 8 * 12}},
      {"bsw,vw->bsv",
       {{2, 8, 16}, {5, 16}, {2, 8, 5}},
       {.left = 2 * 8 * 16, .right = 5 * 16, .turned = 5 * 16, .result = 2 * 8 * 5}},
      {"bsw,bsv->wv",
       {{2, 8, 16}, {2, 8, 5}, {16, 5}},
       {.left = 2 * 8 * 16, .right = 2 * 8 * 5, .result = 16 * 5}},
      {"bsw,bsv->vw",
       {{2, 8, 16}, {2, 8, 5}, {5, 16}},
       {.left = 2 * 8 * 5, .right = 2 * 8 * 16, .result = 16 * 5}},
      {"mk,kn->mn",
       {{3, 4}, {4, 2048}, {3, 2048}},
       {.left = 3 * 4, .right = 4 * 2048, .strided = 4 * 2048, .result = 3 * 2048}},
      {"km,kn->mn",
       {{3, 2048}, {3, 4}, {2048, 4}},
       {.left = 3 * 2048, .right = 3 * 4, .strided = 3 * 2048, .result = 2048 * 4}},
      {"mk,nk->mn",
       {{3, 2048}, {4, 2048}, {3, 4}},
       {.left = 3 * 2048, .right = 4 * 2048, .turned = 4 * 2048, .result = 3 * 4}},
      {"bqd,bkd->bqk",
       {{6, 8, 4}, {6, 7, 4}, {6, 8, 7}},
       {.left = 6 * 8 * 4, .right = 6 * 7 * 4, .turned = 6 * 7 * 4, .result = 6 * 8 * 7}},
      {"", {{2, 8, 16}, {16, 5}, {2, 8, 5}}, {.left = 2 * 8 * 16, .right = 16 * 5, .result = 2 * 8 * 5}},
      {"",
       {{3, 8, 16}, {3, 16, 5}, {3, 8, 5}},
       {.left = 3 * 8 * 16, .right = 3 * 16 * 5, .result = 3 * 8 * 5}}};
  for (const Case& c : cases)
    for (DType type : {DType::kFloat32, DType::kBFloat16}) {
      plan::Kernel kernel = ProductKernel(c.equation, type, c.operands);
      kernel.set_flops(7);
      kernel.set_bytes(8);
      Work expected;
      for (const NamedAmount& amount : kAmounts)
        expected.*amount.value = static_cast<double>(SizeOf(type)) * c.elements.*amount.value;
      expected.calls = 1;
      expected.flops = 7;
      EXPECT_EQ(WorkOnHost(kernel), expected) << c.equation << " " << Name(type);
      EXPECT_EQ(HostWorkOf(kernel, Kernels(), 0).name, "product");
      plan::Attr* attr = kernel.add_attr();
      attr->set_name("accumulates");
      attr->set_i(1);
      EXPECT_EQ(WorkOnHost(kernel).sum, expected.result);
    }
}

// --- Simulations ---

// A host whose kernels take seconds for their flops alone, the same whether others work or not.
Machine EvenHost(int cores) {
  Machine machine = ReadTopology(FileWith(kHost));
  machine.threads = cores;
  machine.flops = machine.narrow_flops = 1e9;
  machine.topology.memory_bandwidth = 1e15;
  return machine;
}

Simulated SimulateGpt(SmallGpt given, const Machine& machine, int processes) {
  GptProgram program(given);
  return Simulate(program.MakeTrain(), machine, {.processes = processes});
}

// Data parallelism over more ranks than cores does not become faster, however ranks are dealt over processes:
// the cores have to do the same work. With twice the cores it takes half of the time.
TEST(SimulateProcesses, CoresAreShared) {
  for (int dp : {2, 4, 8}) {
    SmallGpt given;
    given.mesh = Cat("cpu:dp=", dp);
    given.batch = 16;
    given.model_options.kernel_threads = 1;
    const double one = SimulateGpt(given, EvenHost(1), 1).seconds;
    for (int processes = 1; processes <= dp; processes *= 2)
      for (int cores : {1, 2, 4}) {
        const double seconds = SimulateGpt(given, EvenHost(cores), processes).seconds;
        EXPECT_NEAR(seconds, one / std::min(cores, dp), 0.03 * one)
            << dp << " ranks in " << processes << " processes on " << cores << " cores";
      }
  }
}

TEST(SimulateProcesses, MessagesBetweenProcessesTakeTheirTime) {
  SmallGpt given;
  given.mesh = "cpu:tp=2";
  given.model_options.kernel_threads = 1;
  std::vector<double> seconds;
  for (double message : {0.0, 1e-3, 2e-3}) {
    Machine machine = EvenHost(2);
    machine.process_message = message;
    seconds.push_back(SimulateGpt(given, machine, 2).seconds);
    EXPECT_DOUBLE_EQ(SimulateGpt(given, machine, 1).seconds, seconds[0]) << "inside a process";
  }
  EXPECT_GT(seconds[1], seconds[0] + 8e-3);  // at least two sums of each of four layers
  EXPECT_NEAR(seconds[2] - seconds[1], seconds[1] - seconds[0], 0.05 * (seconds[1] - seconds[0]));
}

TEST(SimulateProcesses, RefusesWhatProcessesCannotShare) {
  SmallGpt given;
  given.mesh = "cpu:dp=2";
  EXPECT_NE(ErrorOf([&] {
              SimulateGpt(given, EvenHost(2), 3);
            }).find("processes is 3, which cannot share 2 devices"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&] { SimulateGpt(given, EvenHost(2), 0); }).find("SimulateOptions::processes"),
            std::string::npos);
}

// What a simulation says of memory is what a run takes.
TEST(Simulate, MemoryIsThatOfTheRun) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2", "cpu:tp=2", "cpu:pp=2", "cpu:dp=2,pp=2"})
    for (int zero : {0, 3})
      for (Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
        SmallGpt given;
        given.mesh = mesh;
        given.recompute = recompute;
        given.micro_batches = 2;
        if (zero > 0) given.zero_axis = "dp", given.zero_stage = zero;
        GptProgram program(given);
        Session train = program.MakeTrain();
        const Simulated simulated = Simulate(train, EvenHost(2));
        train.Run(program.MakeFeeds(0)).Wait();
        const Store& store = *train.impl()->model->store;
        for (const SimulatedStage& stage : simulated.stages) {
          int64_t fullest = 0;
          for (int rank : stage.memory.ranks)
            fullest = std::max(fullest, store.PersistentBytes(rank) + store.ArenaBytes(rank));
          EXPECT_EQ(stage.memory.peak_bytes, fullest) << given.str() << " " << stage.stage;
        }
      }
}

// --- Calibration ---

// Of all cores if 0.
void ExpectAFileThatSimulates(int cores) {
  CalibrateOptions options;
  options.rounds = 3;
  options.models = 1;
  options.cores = cores;
  int told = 0;
  options.progress = [&](const std::string&) { ++told; };
  const std::string file = testing::TempDir() + "here.txt";
  CalibrateTo(file, options);
  EXPECT_GT(told, 0);
  const Machine machine = ReadTopology(file);
  EXPECT_GE(machine.threads, 1);
  EXPECT_GT(machine.memory_bytes, 1e8);
  EXPECT_GT(machine.flops, 1e6);
  std::set<std::string> names;
  for (const MeasuredKernel& k : machine.kernels) {
    names.insert(Cat(k.name, " ", Name(k.dtype)));
    Work near;
    for (const NamedAmount& amount : kAmounts) near.*amount.value = 1;
    near.far = 0;
    EXPECT_GT(k.SecondsOf(near), 0) << k.name;
  }
  for (const char* name : {"product f32", "product bf16", "attention f32", "attention_grad bf16",
                           "layer_norm f32", "gelu f32", "dropout f32", "sum_to f32", "adamw f32"})
    EXPECT_EQ(names.count(name), 1u) << name;
  SmallGpt given;
  given.mesh = "cpu:dp=2,pp=2";
  given.micro_batches = 2;
  for (int processes : {1, 2, 4}) {
    std::set<std::string> texts;
    for (int repetition = 0; repetition < 3; ++repetition)
      texts.insert(SimulateGpt(given, ReadTopology(file), processes).Text(64, "tokens"));
    EXPECT_EQ(texts.size(), 1u);
  }
}

TEST(Calibrate, WritesAFileThatSimulates) { ExpectAFileThatSimulates(1); }
TEST(LongCalibrate, WritesAFileThatSimulates) { ExpectAFileThatSimulates(0); }

TEST(Calibrate, RefusesNumbersOutOfRange) {
  const auto error = [](const CalibrateOptions& options) { return ErrorOf([&] { Calibrate(options); }); };
  EXPECT_NE(error({.rounds = 2}).find("CalibrateOptions::rounds is 2"), std::string::npos);
  EXPECT_NE(error({.models = 0}).find("CalibrateOptions::models is 0"), std::string::npos);
  EXPECT_NE(error({.models = kMostModels + 1}).find("CalibrateOptions::models"), std::string::npos);
  EXPECT_NE(error({.cores = 1 << 20}).find("CalibrateOptions::cores"), std::string::npos);
  EXPECT_NE(ErrorOf([] { CheckCalibration("tpu:dp=1"); }).find("\"tpu\" does not exist"), std::string::npos);
  EXPECT_NE(ErrorOf([] { CheckCalibration("cpu+cuda:pp=2"); }).find("measures devices of one kind"),
            std::string::npos);
  EXPECT_EQ(CheckCalibration("cpu:dp=2"), "cpu");
}

}  // namespace
}  // namespace oneflow_like
