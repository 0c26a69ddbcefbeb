// Every fast CPU kernel against the reference kernel of its operator on the cases of kernel_cases.h; the
// scalar bodies against the C++ library; programs of fused chains.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/parallel_for.h"
#include "core/random.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/manifest.h"
#include "ops/fused.h"
#include "ops/op.h"
#include "ops/scalar.h"
#include "tests/ops/kernel_cases.h"

namespace oneflow_like {
namespace {

const KernelRegistry& Registry() {
  static const KernelRegistry* const registry = [] {
    auto* all = new KernelRegistry;
    AddReferenceKernels(BuiltinCatalog(), all);
    AddCpuKernels(all);
    return all;
  }();
  return *registry;
}

// Repeated on other threads, but for products: how oneDNN cuts those depends on the threads.
KernelCases& Cases() {
  static auto* cases = new KernelCases({
      [](const std::string& name) { return Registry().Has(name, "cpu"); },
      [](const KernelSpec& spec) { return Registry().Make(spec, "cpu"); },
      [](const std::string& op, const std::function<void()>& run) {
        int threads = ParallelThreads();
        if (op != "matmul" && op != "einsum") SetParallelThreads(threads == 3 ? 2 : 3);
        run();
        SetParallelThreads(threads);
      },
  });
  return *cases;
}

// Bits of many elements at once are those of each, wherever they begin; far up too, where blocks of four pass
// 2^32.
TEST(FillRandomBits, AreThoseOfEachElement) {
  for (uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{63}, uint64_t{1} << 32, (uint64_t{1} << 34) - 70,
                         (uint64_t{1} << 34) + 5, (uint64_t{3} << 50) + 2})
    for (int64_t n : {1, 3, 64, 200})
      for (uint64_t step : {uint64_t{0}, uint64_t{7}, uint64_t{1} << 33}) {
        std::vector<uint32_t> bits(n);
        cpu::FillRandomBits(RandomKey(3, 5), step, first, n, bits.data());
        for (int64_t i = 0; i < n; ++i)
          ASSERT_EQ(bits[i], RandomBits(RandomKey(3, 5), step, first + static_cast<uint64_t>(i)))
              << first << " + " << i << " step " << step;
      }
}

TEST(CpuKernels, TableSamples) { Cases().TableSamples(); }

TEST(CpuKernels, EveryFastKernelBelongsToAnOperator) {
  for (const char* name : {"matmul", "attention", "adamw", "fused", "sum_to", "gelu"}) {
    EXPECT_TRUE(Registry().Has(name, "cpu")) << name;
    EXPECT_NE(BuiltinCatalog().Find(name), nullptr) << name;
  }
}

TEST(CpuKernels, Products) { Cases().Products(); }

TEST(CpuKernels, LaterActsMayBeSmaller) { Cases().LaterActsMayBeSmaller(); }

TEST(CpuKernels, ElementwiseShapes) { Cases().ElementwiseShapes(); }

TEST(CpuKernels, ReductionsAndShapes) { Cases().ReductionsAndShapes(); }

TEST(CpuKernels, RowsOperators) { Cases().RowsOperators(); }

TEST(CpuKernels, CrossEntropyIgnoresNegativeTargetsAndCutClasses) {
  Cases().CrossEntropyIgnoresNegativeTargetsAndCutClasses();
}

TEST(CpuKernels, EmbeddingRowsAndColumns) { Cases().EmbeddingRowsAndColumns(); }

TEST(CpuKernels, Attention) { Cases().Attention(); }

TEST(CpuKernels, UpdatesInPlaceAndApart) { Cases().UpdatesInPlaceAndApart(); }

TEST(CpuKernels, DropoutByGlobalPosition) { Cases().DropoutByGlobalPosition(); }

// --- Fused chains ---

TEST(Fused, ProgramsReadBack) {
  std::vector<FusedStep> steps = {{"add", {0, 1}, {}}, {"dropout", {2}, {{"key", int64_t{17}}, {"p", 0.1}}}};
  std::string text = FusedProgram(steps);
  std::vector<FusedStep> back = ParseFused(text, 2);
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(FusedProgram(back), text);
  EXPECT_EQ(back[1].attrs, steps[1].attrs);
  EXPECT_THROW(ParseFused("add 0 2", 2), Error);
  EXPECT_THROW(ParseFused("matmul 0 1", 2), Error);
}

TEST(Fused, SameAsReference) { Cases().FusedChains(); }

// A chain so long that blocks shrink: every term lives until the end.
TEST(Fused, ManyLiveValues) { Cases().ManyLiveValues(); }

// --- Scalar bodies ---

// Greatest error of f on [low, high], in units in the last place of the exact value.
template <typename F, typename G>
double UlpError(F f, G exact, double low, double high) {
  double worst = 0;
  constexpr int kSteps = 400000;
  for (int i = 0; i <= kSteps; ++i) {
    float x = static_cast<float>(low + (high - low) * i / kSteps);
    double want = exact(static_cast<double>(x)), got = f(x);
    float near = static_cast<float>(std::abs(want));
    double ulp = std::nextafter(std::max(near, 1.2e-38f), INFINITY) - std::max(near, 1.2e-38f);
    worst = std::max(worst, std::abs(got - want) / ulp);
  }
  return worst;
}

TEST(Scalars, CloseToTheLibrary) {
  auto exp = [](double x) { return std::exp(x); };
  EXPECT_LE(UlpError(scalar::ExpOf, exp, -87, 88.5), 2);
  EXPECT_LE(UlpError(scalar::ExpOf, exp, -1, 1), 2);
  auto log = [](double x) { return std::log(x); };
  EXPECT_LE(UlpError(scalar::LogOf, log, 1e-30, 1e-3), 2);
  EXPECT_LE(UlpError(scalar::LogOf, log, 0.01, 4), 3);
  EXPECT_LE(UlpError(scalar::LogOf, log, 4, 1e30), 2);
  auto tanh = [](double x) { return std::tanh(x); };
  EXPECT_LE(UlpError(scalar::TanhOf, tanh, -12, 12), 3);
  EXPECT_LE(UlpError(scalar::TanhOf, tanh, -0.01, 0.01), 3);
  auto erf = [](double x) { return std::erf(x); };
  EXPECT_LE(UlpError(scalar::ErfOf, erf, -5, 5), 3);
  EXPECT_LE(UlpError(scalar::ErfOf, erf, -0.01, 0.01), 3);
  auto softplus = [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); };
  EXPECT_LE(UlpError(scalar::Softplus(), softplus, -80, 80), 4);
  EXPECT_LE(UlpError(scalar::Softplus(), softplus, -1, 1), 4);
}

TEST(Scalars, Edges) {
  float inf = INFINITY, nan = NAN;
  EXPECT_EQ(scalar::ExpOf(-inf), 0);
  EXPECT_EQ(scalar::ExpOf(-1000), 0);
  EXPECT_EQ(scalar::ExpOf(inf), inf);
  EXPECT_EQ(scalar::ExpOf(89), inf);
  EXPECT_EQ(scalar::ExpOf(0), 1);
  EXPECT_EQ(scalar::LogOf(0), -inf);
  EXPECT_EQ(scalar::LogOf(inf), inf);
  EXPECT_EQ(scalar::LogOf(1), 0);
  EXPECT_TRUE(std::isnan(scalar::LogOf(-1)));
  EXPECT_EQ(scalar::TanhOf(inf), 1);
  EXPECT_EQ(scalar::TanhOf(-50), -1);
  EXPECT_EQ(scalar::ErfOf(-inf), -1);
  EXPECT_EQ(scalar::ErfOf(10), 1);
  EXPECT_EQ(scalar::Softplus()(inf), inf);
  EXPECT_EQ(scalar::Softplus()(-inf), 0);
  for (float got : {scalar::ExpOf(nan), scalar::LogOf(nan), scalar::TanhOf(nan), scalar::ErfOf(nan),
                    scalar::Softplus()(nan)}) {
    EXPECT_TRUE(std::isnan(got));
  }
}

}  // namespace
}  // namespace oneflow_like
