// linear_cross_entropy, and its mean in one pass, beside the two operators in its place, cross_entropy of a
// product: loss and both gradients with every option, in fp32 and bf16, by the reference's kernels and the
// CPU's, in tiles of any number of rows; its expansion, as where classes are cut; and the scratch it states.
// ctest: seconds=3
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "core/device/parallel_for.h"
#include "ops/cpu/manifest.h"
#include "ops/language/expressions.h"
#include "ops/language/losses.h"
#include "ops/logit_tiles.h"
#include "tests/error_of.h"
#include "tests/ops/cpu_registry.h"
#include "tests/ops/eager.h"
#include "tests/ops/with_scratch.h"

namespace oneflow_like::oracle {
namespace {

using Numbers = std::vector<double>;

struct Setting {
  std::string name;
  double label_smoothing = 0, z_loss = 0;
  std::optional<int64_t> ignore_index;
  bool weights = false;
};
const std::vector<Setting>& Settings() {
  static const std::vector<Setting> settings = {
      {"plain"},
      {"label_smoothing", 0.1},
      {"z_loss", 0, 0.01},
      {.name = "ignore_index", .ignore_index = 3},
      {.name = "class_weights", .weights = true},
      {"everything", 0.2, 0.05, 2, true},
  };
  return settings;
}

struct Result {
  Numbers loss, dx, dw;
};

struct Problem {
  Dims rows = {3, 7};
  int64_t hidden = 19, classes = 150;
  DType dtype = DType::kFloat32;
  double most = 1;  // of x
};

Numbers Draws(int64_t n, double most, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> between(-most, most);
  Numbers values(n);
  for (double& v : values) v = between(random);
  return values;
}

enum class Form { kTwoOperators, kInTiles, kMeanOfTwo, kMean };

Result LossAndGradients(const Problem& p, const Setting& setting, Form form, int64_t tile,
                        const MakeKernel& make) {
  Tape tape(make);
  Dims shape = p.rows;
  shape.push_back(p.hidden);
  Tensor x = Give(&tape, shape, Draws(shape.elements(), p.most, 1), p.dtype);
  Tensor w = Give(&tape, {p.classes, p.hidden}, Draws(p.classes * p.hidden, 0.3, 2), p.dtype);
  Numbers targets;
  for (int64_t i = 0; i < p.rows.elements(); ++i)  // some of them negative, some ignored by their number
    targets.push_back(i % 5 == 4 ? -1 - i % 3 : i % 4 == 3 ? i % 4 : i * 37 % p.classes);
  Tensor target = Give(&tape, p.rows, targets, DType::kInt64);
  CrossEntropyOptions options{.label_smoothing = setting.label_smoothing,
                              .z_loss = setting.z_loss,
                              .ignore_index = setting.ignore_index};
  if (setting.weights) {
    Numbers weights = Draws(p.classes, 0.9, 3);
    for (double& v : weights) v += 1;
    options.class_weights = Give(&tape, {p.classes}, weights);
  }
  const std::string labels = std::string("abdefg").substr(0, p.rows.size());
  const bool two = form == Form::kTwoOperators || form == Form::kMeanOfTwo, whole = form >= Form::kMeanOfTwo;
  Tensor loss;
  if (two) loss = cross_entropy(einsum(labels + "k,ck->" + labels + "c", x, w), target, options);
  if (form == Form::kMeanOfTwo) loss = mean(loss);
  if (form == Form::kInTiles) loss = linear_cross_entropy(x, w, target, options, tile);
  if (form == Form::kMean) loss = mean_linear_cross_entropy(x, w, target, options, tile);
  Tensor parts = whole ? scale(loss, static_cast<double>(p.rows.elements()))
                       : mul(loss, Give(&tape, p.rows, Draws(p.rows.elements(), 2, 4)));
  const std::vector<Tensor> gradients = Backward(&tape, parts, {x, w});
  EXPECT_EQ(gradients[0].dtype(), p.dtype);
  EXPECT_EQ(gradients[1].dtype(), p.dtype);
  return {Read(loss), Read(gradients[0]), Read(gradients[1])};
}

// Within `tolerance` of the greatest number: what rounds the terms of a sum.
void ExpectNear(const std::string& what, const Numbers& got, const Numbers& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double greatest = 1;
  for (double v : want) greatest = std::max(greatest, std::fabs(v));
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], tolerance * greatest) << what << ", element " << i;
}

void ExpectTheTwoOperators(const Problem& p, const MakeKernel& make) {
  // In bf16 the logits are those of the two operators; sums of w's gradient are fp32 here until the end.
  const double tolerance = p.dtype == DType::kFloat32 ? 1e-6 : 0x1p-6;
  for (const Setting& setting : Settings())
    for (bool mean : {false, true}) {
      const Result want =
          LossAndGradients(p, setting, mean ? Form::kMeanOfTwo : Form::kTwoOperators, 0, make);
      for (int64_t tile : {1, 16, 1000}) {
        const Result got = LossAndGradients(p, setting, mean ? Form::kMean : Form::kInTiles, tile, make);
        const std::string what =
            Cat(setting.name, mean ? ", mean" : "", ", tiles of ", tile, " rows, ", Name(p.dtype));
        ExpectNear("loss, " + what, got.loss, want.loss, setting.label_smoothing > 0 ? tolerance : 1e-6);
        ExpectNear("dx, " + what, got.dx, want.dx, tolerance);
        ExpectNear("dw, " + what, got.dw, want.dw, tolerance);
      }
    }
}

MakeKernel OfTheCpu() {
  return [](const KernelSpec& spec) { return MakeWithScratch(CpuRegistry(), spec); };
}
MakeKernel OfTheReference() {
  return [](const KernelSpec& spec) { return MakeWithScratch(CpuRegistry(), spec, "reference"); };
}

TEST(LinearCrossEntropy, IsTheTwoOperators) {
  ExpectTheTwoOperators({}, OfTheReference());
  ExpectTheTwoOperators({}, OfTheCpu());
  ExpectTheTwoOperators({.rows = {5}, .hidden = 3, .classes = 8}, OfTheCpu());
  ExpectTheTwoOperators({.rows = {}, .classes = 9}, OfTheCpu());
  ExpectTheTwoOperators({.rows = {0}}, OfTheCpu());
  ExpectTheTwoOperators({.rows = {2, 1, 40}, .hidden = 64, .classes = 700}, OfTheCpu());
}

TEST(LinearCrossEntropy, IsTheTwoOperatorsInBfloat16) {
  ExpectTheTwoOperators({.dtype = DType::kBFloat16}, OfTheReference());
  ExpectTheTwoOperators({.dtype = DType::kBFloat16}, OfTheCpu());
  ExpectTheTwoOperators({.rows = {2, 1, 40}, .hidden = 64, .classes = 700, .dtype = DType::kBFloat16},
                        OfTheCpu());
}

// A threaded run has the bits of one thread's.
TEST(LinearCrossEntropy, HasTheSameBitsOnAnyNumberOfThreads) {
  const int before = ParallelThreads();
  const Problem p{.rows = {130}, .hidden = 64, .classes = 700};
  SetParallelThreads(1);
  const Result one = LossAndGradients(p, {"plain"}, Form::kInTiles, 32, OfTheCpu());
  SetParallelThreads(3);
  const Result three = LossAndGradients(p, {"plain"}, Form::kInTiles, 32, OfTheCpu());
  SetParallelThreads(before);
  EXPECT_EQ(one.loss, three.loss);
  EXPECT_EQ(one.dx, three.dx);
  EXPECT_EQ(one.dw, three.dw);
}

// Large scores neither overflow nor lose the small differences, whole and in blocks of classes.
TEST(LinearCrossEntropy, StandsLargeScores) {
  Tape tape(OfTheCpu());
  Tensor x = Give(&tape, {2, 1}, {1000, -1000}), w = Give(&tape, {3, 1}, {1, 1.001, -1});
  Tensor target = Give(&tape, {2}, {1, 2}, DType::kInt32);
  const OpDef& def = BuiltinCatalog().Get("linear_cross_entropy");
  const Attrs attrs = {{"tile", int64_t{1}}};
  for (const std::vector<Tensor>& out :
       {Apply(&tape, "linear_cross_entropy", {x, w, target}, attrs), def.expand(attrs, {x, w, target})}) {
    EXPECT_NEAR(Read(out[0])[0], std::log1p(std::exp(-1.0)), 1e-4);
    EXPECT_NEAR(Read(out[0])[1], 0, 1e-6);
    EXPECT_NEAR(Read(out[1])[0], 1001 + std::log1p(std::exp(-1.0)), 1e-3);
  }
}

// What a rank without the best classes has to say counts for nothing; -inf alone is a block without a sum.
TEST(LinearCrossEntropy, BlocksOfMaskedClasses) {
  const double none = -INFINITY;
  Tape tape(OfTheCpu());
  const int64_t classes = 5000;  // several blocks of the kernel's own in each of 64
  Numbers logits(classes, none);
  logits[4321] = 2, logits[4999] = 2;
  Tensor x = Give(&tape, {1, classes}, logits), target = Give(&tape, {1}, {4321}, DType::kInt64);
  const std::vector<Tensor> out = Apply(&tape, "cross_entropy", {x, target});
  EXPECT_NEAR(Read(out[0])[0], std::log(2.0), 1e-6) << "the first blocks are of masked classes";
  const std::vector<Tensor> statistics = Apply(&tape, "class_statistics", {x, target});
  EXPECT_EQ(statistics[0].shape(), (Dims{1, 64}));
  EXPECT_EQ(Read(statistics[0])[0], none);
  EXPECT_EQ(Read(statistics[1])[0], 0);
  EXPECT_EQ(Read(statistics[0])[63], 2);
  EXPECT_EQ(Read(statistics[1])[63], 1);
  EXPECT_EQ(Read(statistics[2])[0], 2);
}

// Beside operands and gradients: the logits of a tile, and what products take.
TEST(LinearCrossEntropy, ScratchIsOneTile) {
  constexpr int64_t kTile = 256, kRows = 1000, kHidden = 1024, kClasses = 32000;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto arg = [](DType type, const Dims& shape) {
      return TensorArg{nullptr, type, shape, Dims(shape.rank(), 0), shape};
    };
    const TensorArg x = arg(dtype, {kRows, kHidden}), w = arg(dtype, {kClasses, kHidden}),
                    target = arg(DType::kInt64, {kRows}), row = arg(DType::kFloat32, {kRows});
    KernelSpec forward{.name = "linear_cross_entropy",
                       .attrs = {{"tile", kTile}},
                       .in = {x, w, target},
                       .out = {row, row},
                       .threads = 2};
    KernelSpec backward{.name = "linear_cross_entropy_grad",
                        .attrs = {{"tile", kTile}, {"dw", int64_t{1}}, {"dx", int64_t{1}}},
                        .in = {x, w, target, row, row},
                        .out = {arg(DType::kFloat32, {kClasses, kHidden}), x},
                        .threads = 2};
    for (const KernelSpec& spec : {forward, backward}) {
      const int64_t bytes = CpuRegistry().Scratch(spec, "cpu");
      EXPECT_LE(bytes, kTile * kClasses * 4) << spec.name << " in " << Name(dtype);
      EXPECT_GE(bytes, kTile * kClasses * SizeOf(dtype) / 2) << spec.name << " in " << Name(dtype);
    }
  }
}

// Products of tiles round their operands to TF32 where the operator may.
TEST(LinearCrossEntropy, TilesHandTf32On) {
  const auto arg = [](DType type, const Dims& shape) {
    return TensorArg{nullptr, type, shape, Dims(shape.rank(), 0), shape};
  };
  for (const bool tf32 : {false, true}) {
    KernelSpec spec{.name = "linear_cross_entropy_grad",
                    .attrs = {{"tile", int64_t{8}}, {"dw", int64_t{1}}, {"dx", int64_t{1}}},
                    .in = {arg(DType::kFloat32, {20, 16}), arg(DType::kFloat32, {64, 16}),
                           arg(DType::kInt64, {20}), arg(DType::kFloat32, {20}), arg(DType::kFloat32, {20})},
                    .out = {arg(DType::kFloat32, {64, 16}), arg(DType::kFloat32, {20, 16})}};
    if (tf32) spec.attrs.Set("tf32", int64_t{1});
    int products = 0;
    InnerKernels inner;
    inner.scratch = [](const KernelSpec&) { return int64_t{0}; };
    inner.make = [&](const KernelSpec& step) {
      products += step.name == "einsum";
      EXPECT_TRUE(step.name != "einsum" || step.attrs.Int("tf32", 0) == tf32) << step.name;
      return CpuRegistry().Make(step, "cpu");
    };
    LogitTiles(spec, inner);
    EXPECT_GE(products, 3);
  }
}

TEST(LinearCrossEntropy, NamesWhatIsWrong) {
  Tape tape;
  Tensor x = Give(&tape, {2, 3}, Numbers(6, 0)), w = Give(&tape, {4, 3}, Numbers(12, 0));
  Tensor target = Give(&tape, {2}, {0, 1}, DType::kInt64);
  const auto error = [&](Tensor a, Tensor b, Tensor t, int64_t tile) {
    return ErrorOf([&] { linear_cross_entropy(a, b, t, {}, tile); });
  };
  const auto mentions = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  mentions(error(x, Give(&tape, {4, 2}, Numbers(8, 0)), target, 2),
           "the last axis of x [2,3] is 3 but that of w [4,2] is 2");
  mentions(error(x, Give(&tape, {3}, Numbers(3, 0)), target, 2), "w is [3] but must have 2 axes");
  mentions(error(x, w, Give(&tape, {3}, {0, 1, 1}, DType::kInt64), 2),
           "target is [3] but x [2,3] without its hidden axis is [2]");
  mentions(error(x, w, target, 0), "tile is 0 rows but must be at least 1");
  mentions(error(x, cast(w, DType::kBFloat16), target, 1), "x is f32 but w is bf16; cast one of them");
  mentions(error(x, w, Give(&tape, {2}, {0, 4}, DType::kInt64), 1), "target 4 is outside the 4 classes");
}

}  // namespace
}  // namespace oneflow_like::oracle
