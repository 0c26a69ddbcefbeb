// The machine's ceilings: the best rate of a matrix product through the library the kernels use, and STREAM's
// triad.
#include <dnnl.h>

#include <dnnl.hpp>
#include <map>
#include <memory>
#include <vector>

#include "core/device/device.h"
#include "core/device/parallel_for.h"
#include "ops/cpu/loops.h"
#include "tests/bench/bench.h"

namespace oneflow_like::bench {
namespace {

// Best of several runs: what disturbs a run only ever makes it slower.
template <typename F>
double BestSeconds(int runs, F&& run) {
  double best = 1e30;
  for (int i = 0; i < runs; ++i) {
    double start = Now();
    run();
    best = std::min(best, Now() - start);
  }
  return best;
}

double MeasureSgemm() {
  double best = 0;
  for (int64_t n : {1024, 2048, 3072}) {
    std::vector<float> a(n * n, 0.5f), b(n * n, 0.25f), c(n * n);
    double seconds = BestSeconds(
        8, [&] { dnnl_sgemm('N', 'N', n, n, n, 1.0f, a.data(), n, b.data(), n, 0.0f, c.data(), n); });
    best = std::max(best, 2.0 * n * n * n / seconds);
  }
  return best;
}

double MeasureBf16() {
  using dnnl::memory;
  double best = 0;
  try {
    dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    for (int64_t n : {1024, 2048}) {
      memory::desc plain({n, n}, memory::data_type::bf16, memory::format_tag::ab);
      memory::desc any({n, n}, memory::data_type::bf16, memory::format_tag::any);
      dnnl::matmul::primitive_desc described(dnnl::matmul::desc(plain, any, plain), engine);
      memory a(plain, engine), b(described.weights_desc(), engine), c(plain, engine);
      for (const memory* m : {&a, &b, &c}) {
        auto* at = static_cast<uint16_t*>(m->get_data_handle());
        std::fill_n(at, m->get_desc().get_size() / 2, uint16_t{0x3f00});
      }
      dnnl::matmul product(described);
      double seconds = BestSeconds(8, [&] {
        product.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
        stream.wait();
      });
      best = std::max(best, 2.0 * n * n * n / seconds);
    }
  } catch (const dnnl::error&) {
    return 0;  // no such product on this processor
  }
  return best;
}

double MeasureTriad() {
  constexpr int64_t kElements = int64_t{24} << 20;  // 96 MiB each, several times the caches of one socket
  std::unique_ptr<float[]> a(new float[kElements]), b(new float[kElements]), c(new float[kElements]);
  float *x = a.get(), *y = b.get(), *z = c.get();
  // Pages belong to the thread that touches them first.
  ParallelFor(kElements, 1, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) x[i] = 0, y[i] = 1, z[i] = 2;
  });
  float scale = 3;
  benchmark::DoNotOptimize(scale);
  double seconds = BestSeconds(12, [&] {
    ParallelFor(kElements, 1, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) x[i] = y[i] + scale * z[i];
    });
    benchmark::DoNotOptimize(x[0]);
    benchmark::ClobberMemory();
  });
  return 3.0 * sizeof(float) * kElements / seconds;
}

// Sums 512 MiB of a device's memory, which has large pages: what reading weights can come to, which decoding
// a token does.
void ReportReading(benchmark::State& state) {
  typedef float Four __attribute__((vector_size(16), may_alias));  // of any x86-64
  constexpr int kSums = 8;
  constexpr int64_t kElements = int64_t{128} << 20, kLanes = 4 * kSums;
  const int before = ParallelThreads();
  SetParallelThreads(static_cast<int>(state.range(0)));
  const std::unique_ptr<Device> device = MakeHostDevice(0);
  const std::unique_ptr<Memory> memory = device->Allocate(kElements * sizeof(float), "what is read");
  float* x = static_cast<float*>(memory->data());
  ParallelFor(kElements, 1, [&](int64_t i, int64_t end) { std::fill(x + i, x + end, 1.0f); });
  std::vector<double> seconds;
  for (auto _ : state) {
    const double start = Now();
    ParallelFor(kElements / kLanes, 1, [&](int64_t row, int64_t end) {
      Four sums[kSums] = {};
      for (; row < end; ++row) {
        OFL_UNROLL(8)
        for (int i = 0; i < kSums; ++i) sums[i] += reinterpret_cast<const Four*>(x + row * kLanes)[i];
      }
      for (int i = 1; i < kSums; ++i) sums[0] += sums[i];
      float sum = sums[0][0] + sums[0][1] + sums[0][2] + sums[0][3];
      benchmark::DoNotOptimize(sum);
    });
    seconds.push_back(Now() - start);
  }
  SetParallelThreads(before);
  constexpr double kBytes = static_cast<double>(kElements * sizeof(float));
  state.counters["GB/s"] = kBytes / Median(seconds) / 1e9;
  state.counters["best_GB/s"] = kBytes / *std::min_element(seconds.begin(), seconds.end()) / 1e9;
}
BENCHMARK(ReportReading)->Name("Reading")->ArgName("threads")->Arg(1)->Arg(2)->Iterations(20)->UseRealTime();

void ReportCeiling(benchmark::State& state) {
  const Ceiling& ceiling = CeilingOf(static_cast<int>(state.range(0)));
  for (auto _ : state) {
  }
  state.counters["sgemm_GFLOP/s"] = ceiling.sgemm / 1e9;
  state.counters["bf16_GFLOP/s"] = ceiling.bf16 / 1e9;
  state.counters["triad_GB/s"] = ceiling.triad / 1e9;
}
BENCHMARK(ReportCeiling)->Name("Ceiling")->ArgName("threads")->Arg(1)->Arg(2)->Iterations(1);

}  // namespace

const Ceiling& CeilingOf(int threads) {
  static std::map<int, Ceiling> known;
  auto [at, added] = known.try_emplace(threads);
  if (added) {
    int before = ParallelThreads();
    SetParallelThreads(threads);
    at->second = {MeasureSgemm(), MeasureBf16(), MeasureTriad()};
    SetParallelThreads(before);
  }
  return at->second;
}

}  // namespace oneflow_like::bench
