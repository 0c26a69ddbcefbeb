// Every fast CPU kernel against the reference kernel of its operator on the cases of kernel_cases.h; the
// scalar bodies against the C++ library; programs of fused chains.
#include <gtest/gtest.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/device/parallel_for.h"
#include "core/random.h"
#include "ops/cpu/attention_few.h"
#include "ops/cpu/attention_narrow.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/manifest.h"
#include "ops/fused.h"
#include "ops/op.h"
#include "ops/scalar.h"
#include "tests/error_of.h"
#include "tests/ops/accumulate_cases.h"
#include "tests/ops/cpu_registry.h"
#include "tests/ops/kernel_cases.h"
#include "tests/ops/sparse_cases.h"
#include "tests/ops/vision_cases.h"

namespace oneflow_like {
namespace {

// Repeats a run on other threads, but for products and convolutions: how oneDNN cuts those depends on the
// threads.
void OnOtherThreads(const std::string& op, const std::function<void()>& run) {
  int threads = ParallelThreads();
  bool product =
      op == "matmul" || op == "einsum" || op.starts_with("grouped_matmul") || op.starts_with("conv2d");
  if (!product) SetParallelThreads(threads == 3 ? 2 : 3);
  run();
  SetParallelThreads(threads);
}

KernelCases& Cases() {
  static auto* cases = new KernelCases({
      [](const std::string& name) { return CpuRegistry().Has(name, "cpu"); },
      [](const KernelSpec& spec) { return MakeWithScratch(CpuRegistry(), spec); },
      OnOtherThreads,
  });
  return *cases;
}

// Bits of many elements at once are those of each, wherever they begin; far up too, where blocks of eight
// pass 2^32.
TEST(FillDropBits, AreThoseOfEachElement) {
  for (uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{127}, uint64_t{1} << 32,
                         (uint64_t{1} << 35) - 140, (uint64_t{1} << 35) + 5, (uint64_t{3} << 50) + 2})
    for (int64_t n : {1, 3, 128, 400})
      for (uint64_t step : {uint64_t{0}, uint64_t{7}, uint64_t{1} << 33}) {
        std::vector<uint16_t> bits(n);
        cpu::FillDropBits(RandomKey(3, 5), step, first, n, bits.data());
        for (int64_t i = 0; i < n; ++i)
          ASSERT_EQ(bits[i], DropBits(RandomKey(3, 5), step, first + static_cast<uint64_t>(i)))
              << first << " + " << i << " step " << step;
      }
}

TEST(CpuKernels, TableSamples) { Cases().TableSamples(); }

TEST(CpuKernels, EveryFastKernelBelongsToAnOperator) {
  for (const char* name : {"matmul", "attention", "adamw", "fused", "sum_to", "gelu"}) {
    EXPECT_TRUE(CpuRegistry().Has(name, "cpu")) << name;
    EXPECT_NE(BuiltinCatalog().Find(name), nullptr) << name;
  }
}

TEST(CpuKernels, Products) { Cases().Products(); }

TEST(CpuKernels, ProductsAddUpOverMicroBatches) {
  AccumulateCases([](const KernelSpec& spec) { return MakeWithScratch(CpuRegistry(), spec); }, false);
}
TEST(CpuKernels, ReferencesAddUpOverMicroBatches) {
  AccumulateCases([](const KernelSpec& spec) { return MakeWithScratch(CpuRegistry(), spec, "reference"); },
                  true);
}

TEST(CpuKernels, LaterActsMayBeSmaller) { Cases().LaterActsMayBeSmaller(); }

TEST(CpuKernels, ElementwiseShapes) { Cases().ElementwiseShapes(); }

TEST(CpuKernels, ElementwiseFunctions) { Cases().ElementwiseFunctions(); }

TEST(CpuKernels, ReductionsAndShapes) { Cases().ReductionsAndShapes(); }

TEST(CpuKernels, RowsOperators) { Cases().RowsOperators(); }

TEST(CpuKernels, CrossEntropyIgnoresNegativeTargetsAndCutClasses) {
  Cases().CrossEntropyIgnoresNegativeTargetsAndCutClasses();
}

TEST(CpuKernels, EmbeddingRowsAndColumns) { Cases().EmbeddingRowsAndColumns(); }
TEST(CpuKernels, Within) { Cases().Within(); }

TEST(CpuKernels, Order) { SparseCases(&Cases()).Order(); }
TEST(CpuKernels, SumsAndFlips) { SparseCases(&Cases()).SumsAndFlips(); }
TEST(CpuKernels, ByIndex) { SparseCases(&Cases()).ByIndex(); }
TEST(CpuKernels, MaximaByIndex) { SparseCases(&Cases()).MaximaByIndex(); }
TEST(CpuKernels, Spellings) { SparseCases(&Cases()).Spellings(); }
TEST(CpuKernels, Bags) { SparseCases(&Cases()).Bags(); }
TEST(CpuKernels, TouchedRows) { SparseCases(&Cases()).TouchedRows(); }
TEST(CpuKernels, Experts) { SparseCases(&Cases()).Experts(); }
TEST(CpuKernels, Routes) { SparseCases(&Cases()).Routes(); }

TEST(CpuKernels, Attention) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) Cases().Attention(dtype);
}

TEST(CpuKernels, MaskedAttention) { Cases().MaskedAttention(); }

TEST(CpuKernels, Rope) { Cases().Rope(); }
TEST(CpuKernels, Vision) { VisionCases(&Cases()); }

TEST(CpuKernels, CausalAttentionAtTheEdgesOfTiles) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) Cases().CausalAttentionAtTheEdgesOfTiles(dtype);
}

TEST(CpuKernels, AttentionToGrowingKeys) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) Cases().AttentionToGrowingKeys(dtype);
}

std::atomic<int> tiled_runs{0};

// Attention in bf16 on AMX's tiles, whatever this machine has; the gradient of a bias is not theirs.
template <Status (*kTiled)(const KernelContext&), int kQ>
Status OnTiles(const KernelContext& context) {
  const Status status = CpuRegistry().Make(context.spec, "cpu")->Run(context);
  if (!status.ok() || !cpu::NarrowFits(context.spec, kQ)) return status;
  if (kQ == 0 && cpu::FewQueriesFit(context.spec)) return status;
  ++tiled_runs;
  return kTiled(context);
}

TEST(CpuKernels, AttentionOnTiles) {
  static const KernelRegistry* const registry = [] {
    auto* tiled = new KernelRegistry;
    tiled->Add("attention", "cpu", OnTiles<cpu::TiledAttention, 0>, cpu::AttentionScratch);
    tiled->Add("attention_grad", "cpu", OnTiles<cpu::TiledAttentionGrad, 1>, cpu::AttentionGradScratch);
    return tiled;
  }();
  KernelCases cases({[](const std::string& name) { return registry->Has(name, "cpu"); },
                     [](const KernelSpec& spec) { return MakeWithScratch(*registry, spec); },
                     OnOtherThreads});
  tiled_runs = 0;
  cases.Attention(DType::kBFloat16);
  cases.MaskedAttention();
  cases.CausalAttentionAtTheEdgesOfTiles(DType::kBFloat16);
  cases.AttentionToGrowingKeys(DType::kBFloat16);
  if (tiled_runs == 0) GTEST_SKIP() << "needs a build for a machine with AVX-512 BF16";
  EXPECT_GT(tiled_runs, 200);
}

// Sums of small whole numbers are exact in any order: of every size about lanes, blocks, bands and chunks.
// With more than 2^20 elements chunks are no whole number of blocks.
TEST(CpuKernels, SumsTakeEveryElementOnce) {
  std::vector<int64_t> sizes;
  for (int64_t n = 0; n <= 2100; ++n) sizes.push_back(n);
  for (int64_t n : {4096, 8192, 1 << 20, (1 << 20) + 256, 1200000, 3000000})
    for (int64_t more : {-1, 0, 1, 77}) sizes.push_back(n + more);
  for (int64_t n : sizes) {
    struct Way {
      const char* op;
      Dims shape;
      std::vector<int64_t> axes;
    };
    std::vector<Way> ways = {{"sum", {n}, {0}}, {"square_sum", {n}, {}}};
    if (n <= 2100) {
      ways.push_back({"sum", {2, n}, {1}});
      ways.push_back({"sum", {n, 3}, {0}});
      ways.push_back({"sum", {2, n, 2}, {0, 1}});
    }
    for (const Way& way : ways) {
      const std::string op = way.op;
      Case c{op, {way.shape}, {}, {DType::kFloat32}};
      if (op == "sum") c.attrs = {{"axes", way.axes}, {"keep", int64_t{0}}};
      Operand x(DType::kFloat32, way.shape);
      Operands out = OutputsOf(c);
      std::vector<double> wanted(out[0].arg.elements());
      const int64_t inner =
          way.shape.rank() > 1 && way.axes.back() < way.shape.rank() - 1 ? way.shape.back() : 1;
      const int64_t run = x.arg.elements() / std::max<int64_t>(1, static_cast<int64_t>(wanted.size()));
      for (int64_t i = 0; i < x.arg.elements(); ++i) {
        const double value = static_cast<double>((5 * i + i / 64) % 4);
        x.Arg().as<float>()[i] = static_cast<float>(value);
        wanted[inner > 1 ? i % inner : i / run] += op == "sum" ? value : value * value;
      }
      KernelSpec spec;
      spec.name = op;
      spec.attrs = c.attrs;
      spec.in = {x.Arg()};
      spec.out = {out[0].Arg()};
      ASSERT_TRUE(MakeWithScratch(CpuRegistry(), spec)->Run({spec, spec.in, spec.out}).ok());
      for (size_t i = 0; i < wanted.size(); ++i)
        ASSERT_EQ(out[0].At(static_cast<int64_t>(i)), static_cast<float>(wanted[i]))
            << op << " of " << way.shape.str() << ", element " << i;
    }
  }
}

// Their order follows from the size alone. Halves that cancel leave of a sum what its order has rounded.
TEST(CpuKernels, SumsOverEverythingHaveTheSameBitsOnAnyNumberOfThreads) {
  const int threads_before = ParallelThreads();
  std::mt19937_64 random(41);
  for (int64_t n : {5000, 12345, 50001, 100003, 300007}) {
    Operand x(DType::kFloat32, {n});
    x.Draw(&random, -1, 1, 4);
    for (int64_t i = 0; i < n / 2; ++i) StoreFloat(x.Arg(), n / 2 + i, -x.At(i));
    if (n % 2 == 1) StoreFloat(x.Arg(), n - 1, 0);
    for (const char* op : {"sum", "mean", "square_sum"}) {
      Case c{op, {Dims{n}}, {}, {DType::kFloat32}};
      if (std::string(op) != "square_sum")
        c.attrs = {{"axes", std::vector<int64_t>{0}}, {"keep", int64_t{0}}};
      std::vector<char> wanted;
      for (int threads = 1; threads <= 5; ++threads) {
        SetParallelThreads(threads);
        Operands out = OutputsOf(c);
        KernelSpec spec;
        spec.name = op;
        spec.attrs = c.attrs;
        spec.in = {x.Arg()};
        spec.out = {out[0].Arg()};
        ASSERT_TRUE(MakeWithScratch(CpuRegistry(), spec)->Run({spec, spec.in, spec.out}).ok());
        if (threads == 1) wanted = out[0].memory;
        EXPECT_EQ(out[0].memory, wanted) << op << " of " << n << " on " << threads << " threads, seed 41";
      }
    }
  }
  SetParallelThreads(threads_before);
}

// Results that are stored past the caches (ops/cpu/streaming.h) have the bits of smaller pieces, which are
// not. Rows of odd width, so that pieces and blocks begin anywhere in a line.
TEST(CpuKernels, LargeResultsHaveTheBitsOfTheirPieces) {
  auto arg_of = [](std::vector<char>* memory, DType dtype, const Dims& shape, int64_t first = 0) {
    return TensorArg{memory->data() + first * static_cast<int64_t>(SizeOf(dtype)), dtype, shape,
                     Dims(shape.rank(), 0), shape};
  };
  auto run = [](const std::string& op, const Attrs& attrs, const std::vector<TensorArg>& in,
                const std::vector<TensorArg>& out) {
    KernelSpec spec;
    spec.name = op;
    spec.attrs = attrs;
    spec.in = in;
    spec.out = out;
    ASSERT_TRUE(MakeWithScratch(CpuRegistry(), spec)->Run({spec, spec.in, spec.out}).ok()) << op;
  };
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const int64_t size = static_cast<int64_t>(SizeOf(dtype)), width = 3001, parts = 4,
                  rows = parts * ((int64_t{33} << 20) / (parts * width * size) + 1);
    std::vector<char> x(rows * width * size), factor(width * size), whole[2], piece[2];
    const TensorArg all = arg_of(&x, dtype, {rows, width}), by = arg_of(&factor, dtype, {width});
    for (int64_t i = 0; i < rows * width; ++i) StoreFloat(all, i, static_cast<double>(i % 8191) / 64 - 50);
    for (int64_t i = 0; i < width; ++i) StoreFloat(by, i, static_cast<double>(i % 31) / 16 - 1);
    const Attrs chain = {{"program", std::string("mul 0 1;add 2 1")},
                         {"outputs", std::vector<int64_t>{2, 3}}};
    for (std::vector<char>& to : whole) to.resize(x.size());
    for (std::vector<char>& to : piece) to.resize(x.size());
    run("fused", chain, {all, by},
        {arg_of(&whole[0], dtype, {rows, width}), arg_of(&whole[1], dtype, {rows, width})});
    for (int64_t part = 0; part < parts; ++part) {
      const Dims shape = {rows / parts, width};
      const int64_t first = part * shape.elements();
      run("fused", chain, {arg_of(&x, dtype, shape, first), by},
          {arg_of(&piece[0], dtype, shape, first), arg_of(&piece[1], dtype, shape, first)});
    }
    for (int o : {0, 1}) EXPECT_TRUE(whole[o] == piece[o]) << "output " << o << " in " << Name(dtype);
  }
  const int64_t samples = 2, sample = int64_t{67} * 67 * 1000;
  std::vector<char> x(4 * samples * sample), whole(x.size()), piece(x.size()), ones(4000), means(80),
      rstds(80);
  const Dims plane = {samples, 67, 67, 1000}, one = {1, 67, 67, 1000}, c = {1000};
  const TensorArg all = arg_of(&x, DType::kFloat32, plane), gamma = arg_of(&ones, DType::kFloat32, c);
  for (int64_t i = 0; i < samples * sample; ++i) all.as<float>()[i] = static_cast<float>(i % 8191) / 64;
  std::fill_n(gamma.as<float>(), 1000, 1.5f);
  auto norm = [&](const Dims& shape, int64_t first, std::vector<char>* y) {
    const Dims statistic = {shape[0], 10};
    run("group_norm", {{"groups", int64_t{10}}, {"eps", 1e-5}},
        {arg_of(&x, DType::kFloat32, shape, first), gamma, gamma},
        {arg_of(y, DType::kFloat32, shape, first), arg_of(&means, DType::kFloat32, statistic),
         arg_of(&rstds, DType::kFloat32, statistic)});
  };
  norm(plane, 0, &whole);
  for (int64_t n = 0; n < samples; ++n) norm(one, n * sample, &piece);
  EXPECT_TRUE(whole == piece) << "group_norm";
}

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

// Its values are its operands and then its steps, and those alone can be outputs.
TEST(Fused, OutputsAreAmongItsValues) {
  const OpDef& def = BuiltinCatalog().Get("fused");
  for (int64_t output = -2; output <= 6; ++output) {
    const Attrs attrs = {{"program", std::string("add 0 1;tanh 2")},
                         {"outputs", std::vector<int64_t>{3, output}}};
    const OpCall call{"fused", "fused at here", {{4}, {4}}, {DType::kFloat32, DType::kFloat32}, &attrs};
    const bool is_one = output >= 0 && output < 4;
    EXPECT_EQ(
        ErrorOf([&] { Infer(def, call); }),
        is_one ? "" : Cat("fused at here: output ", output, " is not among the 4 values of the program"));
  }
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
  auto log1p = [](double x) { return std::log1p(x); };
  EXPECT_LE(UlpError(scalar::Log1p(), log1p, -0.99, 0.01), 4);
  EXPECT_LE(UlpError(scalar::Log1p(), log1p, -1e-5, 1e-5), 4);
  EXPECT_LE(UlpError(scalar::Log1p(), log1p, 0.01, 1e6), 4);
  auto expm1 = [](double x) { return std::expm1(x); };
  EXPECT_LE(UlpError(scalar::Expm1(), expm1, -30, 88), 4);
  EXPECT_LE(UlpError(scalar::Expm1(), expm1, -1, 1), 4);
  EXPECT_LE(UlpError(scalar::Expm1(), expm1, -1e-5, 1e-5), 4);
}

double InverseErf(double x) {
  double y = x;
  for (int i = 0; i < 60; ++i) {
    const double step = x > 0.5 ? (std::erfc(y) - (1 - x)) : -(std::erf(y) - x);
    y += std::clamp(step * std::exp(y * y) * 0.886226925452758, -0.5, 0.5);
  }
  return y;
}

TEST(Scalars, FunctionsOfStatisticsCloseToTheLibrary) {
  auto log2 = [](double x) { return std::log2(x); };
  EXPECT_LE(UlpError(scalar::Log2(), log2, 1e-30, 1e-3), 3);
  EXPECT_LE(UlpError(scalar::Log2(), log2, 0.01, 4), 4);
  EXPECT_LE(UlpError(scalar::Log2(), log2, 4, 1e30), 3);
  for (int n = -126; n < 128; ++n) EXPECT_EQ(scalar::Log2()(std::ldexp(1.0f, n)), n);
  auto exp2 = [](double x) { return std::exp2(x); };
  EXPECT_LE(UlpError(scalar::Exp2(), exp2, -125.9, 127.9), 3);
  EXPECT_LE(UlpError(scalar::Exp2(), exp2, -1, 1), 3);
  for (int n = -126; n < 128; ++n) EXPECT_EQ(scalar::Exp2()(static_cast<float>(n)), std::ldexp(1.0f, n));
  EXPECT_EQ(scalar::Exp2()(128), INFINITY);
  EXPECT_EQ(scalar::Exp2()(-INFINITY), 0);
  EXPECT_TRUE(std::isnan(scalar::Exp2()(NAN)));
  EXPECT_LE(UlpError(scalar::ErfInv(), InverseErf, 0, 0.9), 6);
  EXPECT_LE(UlpError(scalar::ErfInv(), InverseErf, 0.9, 1 - 0x1p-24), 6);
  EXPECT_LE(UlpError(
                scalar::ErfInv(), [](double x) { return 0.886226925452758 * x; }, -1e-5, 1e-5),
            6);
  EXPECT_EQ(scalar::ErfInv()(1), INFINITY);
  EXPECT_EQ(scalar::ErfInv()(-1), -INFINITY);
  EXPECT_TRUE(std::isnan(scalar::ErfInv()(1.5f)));
  // psi(1) is minus Euler's number, psi(1/2) is 2 log 2 less, psi'(1) is pi^2 / 6; psi(x + 1) = psi(x) + 1 /
  // x.
  EXPECT_NEAR(scalar::Digamma()(1), -0.5772156649, 3e-7);
  EXPECT_NEAR(scalar::Digamma()(0.5f), -0.5772156649 - 2 * std::log(2.0), 6e-7);
  EXPECT_NEAR(scalar::Trigamma()(1), 1.6449340668, 6e-7);
  for (float x : {-7.3f, -1.75f, -0.4f, 0.1f, 0.45f, 0.7f, 2.5f, 5.9f, 30.0f}) {
    EXPECT_NEAR(scalar::Digamma()(x + 1), scalar::Digamma()(x) + 1 / x, 4e-6 * (1 + std::abs(1 / x))) << x;
    EXPECT_NEAR(scalar::Trigamma()(x + 1), scalar::Trigamma()(x) - 1 / (x * x), 1e-5 * (1 + 1 / (x * x)))
        << x;
  }
  EXPECT_EQ(scalar::Digamma()(0.0f), -INFINITY);
  EXPECT_TRUE(std::isnan(scalar::Digamma()(-3)));
}

TEST(Scalars, AnglesOfPoints) {
  for (int i = 0; i < 720; ++i)
    for (double length : {1e-30, 1e-3, 1.0, 1e30}) {
      const float x = static_cast<float>(length * std::cos(i * 0.0087266462599716)),
                  y = static_cast<float>(length * std::sin(i * 0.0087266462599716));
      const double want = std::atan2(static_cast<double>(y), static_cast<double>(x));
      EXPECT_NEAR(scalar::Atan2()(y, x), want, 3e-7 * std::abs(want)) << y << " " << x;
    }
  const float inf = INFINITY;
  for (float y : {0.0f, -0.0f, 1.0f, -1.0f, inf, -inf})
    for (float x : {0.0f, -0.0f, 1.0f, -1.0f, inf, -inf})
      EXPECT_FLOAT_EQ(scalar::Atan2()(y, x), std::atan2(y, x)) << y << " " << x;
  EXPECT_TRUE(std::isnan(scalar::Atan2()(NAN, 1)));
  EXPECT_TRUE(std::isnan(scalar::Atan2()(1, NAN)));
}

TEST(Scalars, SumsOfExponentials) {
  const float inf = INFINITY;
  EXPECT_FLOAT_EQ(scalar::LogAddExp()(0, 0), std::log(2.0f));
  EXPECT_FLOAT_EQ(scalar::LogAddExp()(1000, 999), 1000 + std::log1p(std::exp(-1.0f)));
  EXPECT_EQ(scalar::LogAddExp()(-inf, -inf), -inf);
  EXPECT_EQ(scalar::LogAddExp()(inf, inf), inf);
  EXPECT_EQ(scalar::LogAddExp()(-inf, 3), 3);
  EXPECT_TRUE(std::isnan(scalar::LogAddExp()(NAN, 0)));
  EXPECT_TRUE(std::isnan(scalar::LogAddExp()(0, NAN)));
}

// Near their zeros, too, where the reduction by pi / 2 must not lose digits.
TEST(Scalars, AnglesCloseToTheLibrary) {
  auto sin = [](double x) { return std::sin(x); };
  auto cos = [](double x) { return std::cos(x); };
  auto tan = [](double x) { return std::tan(x); };
  for (double range : {1e-3, 1.0, 10.0, 1e3, 1e5, 1e6}) {
    EXPECT_LE(UlpError(scalar::Sin(), sin, -range, range), 2) << range;
    EXPECT_LE(UlpError(scalar::Cos(), cos, -range, range), 2) << range;
    EXPECT_LE(UlpError(scalar::Tan(), tan, -range, range), 4) << range;
  }
  for (int n = 0; n < 60000; n += 7) {  // the floats nearest to multiples of pi
    const float x = static_cast<float>(n * 3.141592653589793);
    const double want = std::sin(static_cast<double>(x));
    EXPECT_LE(std::abs(scalar::Sin()(x) - want), 2.4e-7 * std::abs(want)) << x;
  }
  for (float x = 1e6f; x < 1e9f; x *= 1.01f) {
    EXPECT_NEAR(scalar::Sin()(x), std::sin(static_cast<double>(x)), 3e-7) << x;
    EXPECT_NEAR(scalar::Cos()(x), std::cos(static_cast<double>(x)), 3e-7) << x;
  }
}

TEST(Scalars, RoundingIsExact) {
  for (double top : {2.0, 1e3, 1.6e7, 3e9}) {
    for (int i = -20000; i <= 20000; ++i) {
      const float x = static_cast<float>(top * i / 20000);
      for (float at : {x, std::floor(x) + 0.5f}) {
        ASSERT_EQ(scalar::Floor()(at), std::floor(at)) << at;
        ASSERT_EQ(scalar::Ceil()(at), std::ceil(at)) << at;
        ASSERT_EQ(scalar::Round()(at), std::nearbyint(at)) << at;
        ASSERT_EQ(std::signbit(scalar::Ceil()(at)), std::signbit(std::ceil(at))) << at;
      }
    }
  }
}

TEST(Scalars, RemainderIsExactBelow2To23) {
  std::mt19937_64 random(51);
  for (int i = 0; i < 200000; ++i) {
    const float b = std::ldexp(static_cast<float>(random() % 2000 + 1), static_cast<int>(random() % 20) - 10);
    const float a =
        b * std::ldexp(static_cast<float>(random() % (1 << 22)), -static_cast<int>(random() % 22));
    for (float s : {1.0f, -1.0f}) {
      for (float t : {1.0f, -1.0f}) {
        double want = std::fmod(static_cast<double>(s * a), static_cast<double>(t * b));
        if (want != 0 && (want < 0) != (t < 0)) want += t * b;
        ASSERT_EQ(scalar::Remainder()(s * a, t * b), static_cast<float>(want)) << s * a << " by " << t * b;
      }
    }
  }
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
  EXPECT_EQ(scalar::Log1p()(inf), inf);
  EXPECT_EQ(scalar::Log1p()(-1), -inf);
  EXPECT_TRUE(std::isnan(scalar::Log1p()(-2)));
  EXPECT_EQ(scalar::Expm1()(inf), inf);
  EXPECT_EQ(scalar::Expm1()(-inf), -1);
  EXPECT_EQ(scalar::Floor()(-inf), -inf);
  EXPECT_EQ(scalar::Round()(inf), inf);
  EXPECT_EQ(scalar::Mish()(inf), inf);
  EXPECT_EQ(scalar::Remainder()(1, inf), 1);
  for (float got : {scalar::Sin()(inf), scalar::Cos()(-inf), scalar::Sin()(1e20f), scalar::Remainder()(1, 0)})
    EXPECT_TRUE(std::isnan(got));
  EXPECT_EQ(scalar::Softplus()(-inf), 0);
  for (float got : {scalar::ExpOf(nan), scalar::LogOf(nan), scalar::TanhOf(nan), scalar::ErfOf(nan),
                    scalar::Softplus()(nan), scalar::Sin()(nan), scalar::Cos()(nan), scalar::Tan()(nan),
                    scalar::Expm1()(nan), scalar::Log1p()(nan), scalar::Floor()(nan), scalar::Ceil()(nan),
                    scalar::Round()(nan), scalar::Mish()(nan), scalar::AtLeast()(nan, 0),
                    scalar::AtMost()(nan, 0), scalar::LeakyRelu()(nan, 0), scalar::Elu()(nan, 1)}) {
    EXPECT_TRUE(std::isnan(got));
  }
}

// Thread-local objects take room on the stack of every thread, and oneTBB gives its threads 4 MB; programs
// for all processors have these kernels four times.
TEST(CpuKernels, TakeLittleOfTheStacksOfOtherThreads) {
  size_t bytes = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* sum) {
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_TLS) *static_cast<size_t*>(sum) += info->dlpi_phdr[i].p_memsz;
        return 0;
      },
      &bytes);
  EXPECT_LT(bytes, 64u << 10);
}

}  // namespace
}  // namespace oneflow_like
