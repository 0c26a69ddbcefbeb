// Everyday functions: values by hand, numbers beside tensors, the order of products of einsum, literals, the
// words of errors. (Values and gradients beside PyTorch's: values_test; signatures: oracle_test.)
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/language/losses.h"
#include "tests/error_of.h"
#include "tests/ops/eager.h"

namespace oneflow_like {
namespace {

using oracle::Backward;
using oracle::Give;
using oracle::Read;
using oracle::Tape;

using Numbers = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();

#define EXPECT_MENTIONS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

// --- Elementwise ---------------------------------------------------------------------------------

TEST(Rounding, HalvesGoToTheEvenNumber) {
  Tape tape;
  Tensor x = Give(&tape, {8}, {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.4999, 3.5});
  EXPECT_EQ(Read(round(x)), (Numbers{-2, -2, 0, 0, 2, 2, 0, 4}));
  EXPECT_EQ(Read(floor(x)), (Numbers{-3, -2, -1, 0, 1, 2, 0, 3}));
  EXPECT_EQ(Read(ceil(x)), (Numbers{-2, -1, 0, 1, 2, 3, 1, 4}));
  EXPECT_EQ(Read(trunc(x)), (Numbers{-2, -1, 0, 0, 1, 2, 0, 3}));
  EXPECT_EQ(Read(frac(shift(x, 0.75)))[0], -0.75);
}

TEST(Remainder, HasTheSignOfTheDivisor) {
  Tape tape;
  Tensor a = Give(&tape, {4}, {7, -7, 7, -7}), b = Give(&tape, {4}, {3, 3, -3, -3});
  EXPECT_EQ(Read(remainder(a, b)), (Numbers{1, 2, -2, -1}));
  Tensor i = Give(&tape, {5}, {7, -7, 7, -7, 5}, DType::kInt32),
         j = Give(&tape, {5}, {3, 3, -3, -3, 0}, DType::kInt32);
  EXPECT_EQ(Read(remainder(i, j)), (Numbers{1, 2, -2, -1, 0}));
  EXPECT_EQ(Read(remainder(i, 4)), (Numbers{3, 1, 3, 1, 1}));
}

TEST(Replace, NumbersThatAreNone) {
  Tape tape;
  Tensor x = Give(&tape, {4}, {NAN, kInf, -kInf, 2});
  EXPECT_EQ(Read(nan_to_num(x)), (Numbers{0, FLT_MAX, -FLT_MAX, 2}));
  EXPECT_EQ(Read(nan_to_num(x, {.nan = 1, .infinity = 5})), (Numbers{1, 5, -FLT_MAX, 2}));
  EXPECT_EQ(Read(nan_to_num(Give(&tape, {2}, {kInf, -kInf}, DType::kFloat16))), (Numbers{65504, -65504}));
  EXPECT_MENTIONS(ErrorOf([&] { nan_to_num(x, {.nan = NAN}); }), "nan is NaN but must be finite");
  EXPECT_MENTIONS(ErrorOf([&] { nan_to_num(less(x, 1)); }), "x is bool but must be of a floating type");
  Tensor mask = less(Give(&tape, {3}, {1, 2, 3}), 2.5);
  EXPECT_EQ(Read(where(mask, 7, -kInf)), (Numbers{7, 7, -kInf}));
  EXPECT_EQ(where(mask, 1, 0, DType::kInt64).dtype(), DType::kInt64);
  EXPECT_MENTIONS(ErrorOf([&] { where(mask, 0.5, 0, DType::kInt32); }), "0.5 is not whole");
}

TEST(Composed, FunctionsAreTheLibrarys) {
  const Numbers inside = {-0.999, -0.5, -1e-4, 0, 1e-6, 0.3, 0.9999};
  struct {
    const char* name;
    Tensor (*ours)(Tensor);
    double (*library)(double);
    double factor;
  } functions[] = {
      {"asin", [](Tensor x) { return asin(x); }, std::asin, 1},
      {"acos", [](Tensor x) { return acos(x); }, std::acos, 1},
      {"atan", [](Tensor x) { return atan(x); }, std::atan, 30},
      {"sinh", [](Tensor x) { return sinh(x); }, std::sinh, 5},
      {"cosh", [](Tensor x) { return cosh(x); }, std::cosh, 5},
      {"atanh", [](Tensor x) { return atanh(x); }, std::atanh, 1},
      {"log10", [](Tensor x) { return log10(shift(x, 1)); }, [](double x) { return std::log10(x + 1); }, 1}};
  for (const auto& f : functions) {
    Tape tape;
    Numbers given;
    for (double x : inside) given.push_back(f.factor * x);
    Tensor x = Give(&tape, {7}, given);
    const Numbers got = Read(f.ours(x)), rounded = Read(x);
    for (size_t i = 0; i < given.size(); ++i) {
      const double want = f.library(rounded[i]);
      EXPECT_NEAR(got[i], want, 1e-6 * std::abs(want) + 1e-7) << f.name << " of " << rounded[i];
    }
  }
}

// Of integers `/` is the same, and remainder what is left of it.
TEST(FloorDivide, RoundsDown) {
  Tape tape;
  Tensor a = Give(&tape, {5}, {7, -7, 7, -7, 0.75}), b = Give(&tape, {5}, {3, 3, -3, -3, 0.25});
  EXPECT_EQ(Read(floor_divide(a, b)), (Numbers{2, -3, -3, 2, 3}));
  EXPECT_EQ(Read(floor_divide(a, 2)), (Numbers{3, -4, 3, -4, 0}));
  // A third in fp32 is a little more than a third: it is in 1 only twice. So are tenths in fp32.
  EXPECT_EQ(Read(floor_divide(Give(&tape, {2}, {1, 1}), Give(&tape, {2}, {1. / 3, 0.1}))), (Numbers{2, 9}));
  const double endless = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Read(floor_divide(Give(&tape, {4}, {-1, 1, -1, 1}),
                              Give(&tape, {4}, {endless, -endless, -endless, endless}))),
            (Numbers{-1, -1, 0, 0}));
  for (DType dtype : {DType::kInt32, DType::kInt64}) {
    Tensor i = Give(&tape, {6}, {7, -7, 7, -7, 5, -6}, dtype),
           j = Give(&tape, {6}, {3, 3, -3, -3, 0, 3}, dtype);
    EXPECT_EQ(Read(i / j), (Numbers{2, -3, -3, 2, 0, -2}));
    EXPECT_EQ(Read(floor_divide(i, j)), Read(i / j));
    EXPECT_EQ(Read((i / j) * j + remainder(i, j)), (Numbers{7, -7, 7, -7, 0, -6}));
    EXPECT_EQ(Read(i / 4), (Numbers{1, -2, 1, -2, 1, -2}));
    EXPECT_EQ(Read(20 / i), (Numbers{2, -3, 2, -3, 4, -4}));
  }
}

TEST(Bits, OfIntegers) {
  Tape tape;
  Tensor a = Give(&tape, {3}, {12, -1, 5}, DType::kInt32), b = Give(&tape, {3}, {10, 6, 64}, DType::kInt32);
  EXPECT_EQ(Read(bitwise_and(a, b)), (Numbers{8, 6, 0}));
  EXPECT_EQ(Read(bitwise_or(a, b)), (Numbers{14, -1, 69}));
  EXPECT_EQ(Read(bitwise_xor(a, b)), (Numbers{6, -7, 69}));
  EXPECT_EQ(Read(bitwise_not(a)), (Numbers{-13, 0, -6}));
  EXPECT_EQ(Read(left_shift(a, b)), (Numbers{12288, -64, 0}));
  EXPECT_EQ(Read(right_shift(a, b)), (Numbers{0, -1, 0}));
}

TEST(Questions, WhichNumbersAreFinite) {
  Tape tape;
  Tensor x = Give(&tape, {4}, {1, kInf, -kInf, NAN});
  EXPECT_EQ(Read(isfinite(x)), (Numbers{1, 0, 0, 0}));
  EXPECT_EQ(Read(isnan(x)), (Numbers{0, 0, 0, 1}));
  EXPECT_EQ(Read(logical_or(isnan(x), isfinite(x))), (Numbers{1, 0, 0, 1}));
}

TEST(Clamp, PassesTheGradientInside) {
  Tape tape;
  Tensor x = Give(&tape, {5}, {-2, -1, 0, 1, 2});
  EXPECT_EQ(Read(clamp(x, -1, 1)), (Numbers{-1, -1, 0, 1, 1}));
  EXPECT_EQ(Read(Backward(&tape, clamp(x, -1, 1), {x})[0]), (Numbers{0, 1, 1, 1, 0}));
  EXPECT_EQ(Read(clamp(x, -kInf, 0)), (Numbers{-2, -1, 0, 0, 0}));
  EXPECT_EQ(clamp(x, -kInf, kInf).id(), x.id());
  EXPECT_EQ(Read(clamp(Give(&tape, {3}, {-9, 2, 9}, DType::kInt64), -1, 3)), (Numbers{-1, 2, 3}));
}

// --- Numbers, parts, constants -------------------------------------------------------------------

TEST(Numbers, BesideTensorsOnEitherSide) {
  Tape tape;
  Tensor x = Give(&tape, {3}, {1, 2, 4});
  EXPECT_EQ(Read(x + 1), (Numbers{2, 3, 5}));
  EXPECT_EQ(Read(1 - x), (Numbers{0, -1, -3}));
  EXPECT_EQ(Read(2.5 * x - 1), (Numbers{1.5, 4, 9}));
  EXPECT_EQ(Read(x / 2), (Numbers{0.5, 1, 2}));
  EXPECT_EQ(Read(1.0 / x), (Numbers{1, 0.5, 0.25}));
  EXPECT_EQ(Read(-x), (Numbers{-1, -2, -4}));
  EXPECT_EQ((x * 1).id(), x.id());
  Tensor i = Give(&tape, {3}, {1, 5, -5}, DType::kInt32);
  EXPECT_EQ(Read(i / 2), (Numbers{0, 2, -3}));
  EXPECT_EQ(Read(10 / i), (Numbers{10, 2, -2}));
  EXPECT_EQ(Read(3 - i), (Numbers{2, -2, 8}));
  EXPECT_EQ(Read(less(i, 2)), (Numbers{1, 0, 1}));
  EXPECT_EQ(Read(pow(x, 3)), (Numbers{1, 8, 64}));
  int line = __LINE__ + 1;
  EXPECT_MENTIONS(ErrorOf([&] { i * 0.5; }), Cat("mul at basics_test.cc:", line, ": 0.5 is not whole"));
}

TEST(Parts, FromTheEndOpenAndInSteps) {
  Tape tape;
  Tensor x = Give(&tape, {2, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_EQ(x[0].shape(), (Dims{5}));
  EXPECT_EQ(Read(x[-1]), (Numbers{5, 6, 7, 8, 9}));
  EXPECT_EQ(x[1][2].shape(), (Dims{}));
  EXPECT_EQ(Read(x[1][2]), (Numbers{7}));
  EXPECT_EQ(Read(slice(x, 1, -2, kEnd)), (Numbers{3, 4, 8, 9}));
  EXPECT_EQ(Read(slice(x, 1, 0, -4)), (Numbers{0, 5}));
  EXPECT_EQ(Read(slice(x, 1, 1, kEnd, 3)), (Numbers{1, 4, 6, 9}));
  EXPECT_EQ(Read(slice(x, 1, 0, 5, 9)), (Numbers{0, 5}));
  Tensor y = slice(x, 1, 1, 5, 2);
  EXPECT_EQ(Read(Backward(&tape, y, {x})[0]), (Numbers{0, 1, 0, 1, 0, 0, 1, 0, 1, 0}));
}

TEST(Constants, AfterATensor) {
  Tape tape;
  Tensor x = Give(&tape, {2, 3}, {1, 2, 3, 4, 5, 6}, DType::kInt32);
  EXPECT_EQ(Read(zeros_like(x)), Numbers(6, 0));
  EXPECT_EQ(Read(full_like(x, 7)), Numbers(6, 7));
  EXPECT_EQ(ones_like(x).dtype(), DType::kInt32);
  EXPECT_EQ(Read(arange_like(x)), (Numbers{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(Read(arange_like(x, 0)), (Numbers{0, 0, 0, 1, 1, 1}));
  HostTensor flags = HostTensor::Make(DType::kBool, {3});
  flags.as<bool>()[1] = true;
  EXPECT_EQ(Read(where(constant(&tape, flags), x, 0)), (Numbers{0, 2, 0, 0, 5, 0}));
}

TEST(StopGradient, IsTheSameValueWithoutOne) {
  Tape tape;
  Tensor x = Give(&tape, {2}, {3, 5});
  Tensor y = x * stop_gradient(x);
  EXPECT_EQ(Read(y), (Numbers{9, 25}));
  EXPECT_EQ(Read(Backward(&tape, y, {x})[0]), (Numbers{3, 5}));
  EXPECT_FALSE(Backward(&tape, stop_gradient(x), {x})[0].defined());
}

// A blob in texts is its size and hash, and reads back as that.
TEST(Literals, AreANumberOfBytesAndAHashInTexts) {
  const std::string bytes(100000, 'x');
  Attrs attrs = {{"shape", std::vector<int64_t>{100000}}, {"values", Blob(bytes.data(), bytes.size())}};
  EXPECT_EQ(attrs.str().rfind("shape=[100000] values=%100000/", 0), 0u) << attrs.str();
  EXPECT_EQ(attrs.str().size(), std::string("shape=[100000] values=%100000/").size() + 16);
  const Attrs back = Attrs::Parse(attrs.str());
  EXPECT_EQ(back, attrs);
  EXPECT_EQ(back.Bytes("values").data(), nullptr);
  EXPECT_EQ(std::string(attrs.Bytes("values").data(), bytes.size()), bytes);
  for (const char* wrong : {"%", "%5", "%5/", "%x/1", "%5/g", "%5/1x"})
    EXPECT_MENTIONS(ErrorOf([&] { Attrs::Parse(Cat("values=", wrong)); }), "attribute values: ") << wrong;
}

// --- Reductions ----------------------------------------------------------------------------------

TEST(Reductions, ByHand) {
  Tape tape;
  Tensor x = Give(&tape, {2, 3}, {1, 2, 3, -4, 0, 8});
  EXPECT_EQ(Read(prod(x, {1})), (Numbers{6, 0}));
  EXPECT_EQ(Read(prod(x, {0}, true)), (Numbers{-4, 0, 24}));
  EXPECT_EQ(Read(var(x, {1})), (Numbers{1, 37.3333320617675781}));
  EXPECT_EQ(Read(var(Give(&tape, {4}, {1, 3, 5, 7}), {}, false, 0)), (Numbers{5}));
  EXPECT_EQ(Read(stddev(Give(&tape, {4}, {1, 3, 5, 7}), {}, true, -1)), (Numbers{2}));
  EXPECT_EQ(Read(norm(x, 1, {1})), (Numbers{6, 12}));
  EXPECT_EQ(Read(norm(x, kInf)), (Numbers{8}));
  EXPECT_EQ(Read(norm(Give(&tape, {2}, {3, 4}))), (Numbers{5}));
  Tensor mask = greater(x, 1);
  EXPECT_EQ(Read(any(mask, {0})), (Numbers{0, 1, 1}));
  EXPECT_EQ(Read(all(mask, {0})), (Numbers{0, 0, 1}));
  EXPECT_EQ(Read(masked_mean(x, mask, {1})), (Numbers{2.5, 8}));
  EXPECT_EQ(Read(masked_mean(x, less(x, -100), {1})), (Numbers{0, 0}));
}

TEST(Reductions, OverNothing) {
  Tape tape;
  Tensor x = Give(&tape, {2, 0}, {}), flags = Give(&tape, {2, 0}, {}, DType::kBool);
  EXPECT_EQ(Read(prod(x, {1})), (Numbers{1, 1}));
  EXPECT_EQ(Read(logsumexp(x, {1})), (Numbers{-kInf, -kInf}));
  EXPECT_EQ(Read(norm(x, 2, {1})), (Numbers{0, 0}));
  EXPECT_EQ(Read(norm(x, kInf, {1})), (Numbers{0, 0}));
  EXPECT_EQ(Read(any(flags, {1})), (Numbers{0, 0}));
  EXPECT_EQ(Read(all(flags, {1})), (Numbers{1, 1}));
}

TEST(LogSumExp, OfInfiniteNumbers) {
  Tape tape;
  Tensor x = Give(&tape, {3, 2}, {-kInf, -kInf, kInf, 0, -kInf, 1});
  EXPECT_EQ(Read(logsumexp(x, {1})), (Numbers{-kInf, kInf, 1}));
}

TEST(Prod, PassesGradientsAtZeros) {
  Tape tape;
  Tensor x = Give(&tape, {5}, {2, 0, 3, 1, 5});
  EXPECT_EQ(Read(Backward(&tape, prod(x), {x})[0]), (Numbers{0, 30, 0, 0, 0}));
  Tensor two = Give(&tape, {3}, {0, 4, 0});
  EXPECT_EQ(Read(Backward(&tape, prod(two), {two})[0]), (Numbers{0, 0, 0}));
}

// --- einsum --------------------------------------------------------------------------------------

// The equations of the products that an einsum becomes.
std::vector<std::string> Products(const Tape& tape) {
  std::vector<std::string> equations;
  for (const Tape::Node& node : tape.nodes())
    if (node.op == "einsum") equations.push_back(node.attrs.Str("equation"));
  return equations;
}

Tensor Any(Tape* tape, const Dims& shape) { return full(tape, shape, 1); }

TEST(Einsum, TakesTheProductsOfLeastWork) {
  Tape tape;  // (100 x 2) (2 x 100) (100 x 2): the last two first
  einsum("ab,bc,cd->ad", {Any(&tape, {100, 2}), Any(&tape, {2, 100}), Any(&tape, {100, 2})});
  EXPECT_EQ(Products(tape), (std::vector<std::string>{"bc,cd->bd", "ab,bd->ad"}));
  Tape other;  // and here the first two
  einsum("ab,bc,cd->ad", {Any(&other, {2, 100}), Any(&other, {100, 2}), Any(&other, {2, 100})});
  EXPECT_EQ(Products(other), (std::vector<std::string>{"ab,bc->ac", "ac,cd->ad"}));
}

TEST(Einsum, OfTwoIsTheNodeItWas) {
  Tape tape;
  einsum("bsw,whd->bshd", Any(&tape, {2, 3, 5}), Any(&tape, {5, 2, 4}));
  ASSERT_EQ(tape.nodes().back().op, "einsum");
  EXPECT_EQ(tape.nodes().back().attrs, (Attrs{{"equation", std::string("bsw,whd->bshd")}}));
}

TEST(Einsum, SumsWhatOneOperandLosesFirst) {
  Tape tape;
  Tensor y = einsum("ab,c->a", {Give(&tape, {2, 2}, {1, 2, 3, 4}), Give(&tape, {3}, {1, 2, 3})});
  EXPECT_EQ(Read(y), (Numbers{18, 42}));
  EXPECT_EQ(Products(tape), (std::vector<std::string>{"a,->a"}));
}

TEST(Einsum, OfOneSumsAndTransposes) {
  Tape tape;
  Tensor x = Give(&tape, {2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Read(einsum("ij->ji", {x})), (Numbers{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(Read(einsum("ij->j", {x})), (Numbers{5, 7, 9}));
  EXPECT_EQ(Read(einsum("...->...", {x})), (Numbers{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(Read(einsum("i...->...i", {x})), (Numbers{1, 4, 2, 5, 3, 6}));
}

TEST(Einsum, OfManyIsGreedy) {
  Tape tape;
  std::vector<Tensor> in;
  std::string equation = "a";
  for (char c = 'a'; c < 'j'; ++c) {
    in.push_back(full(&tape, {2, 2}, 0.5));
    equation += Cat(c == 'a' ? "" : Cat(",", std::string(1, c)), std::string(1, static_cast<char>(c + 1)));
  }
  EXPECT_EQ(Read(einsum(equation + "->aj", in)), Numbers(4, 0.5));
  EXPECT_EQ(Products(tape).size(), in.size() - 1);
}

// --- Losses --------------------------------------------------------------------------------------

TEST(Losses, WithoutOptionsCrossEntropyIsTheNodeItWas) {
  Tape tape;
  Tensor logits = Give(&tape, {1, 2}, {0, 0}), target = Give(&tape, {1}, {1}, DType::kInt32);
  cross_entropy(logits, target, CrossEntropyOptions{});
  ASSERT_EQ(tape.nodes().size(), 1u);
  EXPECT_EQ(tape.nodes()[0].op, "cross_entropy");
  EXPECT_EQ(tape.nodes()[0].attrs, Attrs());
}

TEST(Losses, AtTheEdges) {
  Tape tape;
  Tensor p = Give(&tape, {4}, {0, 1, 0, 1}), t = Give(&tape, {4}, {0, 1, 1, 0});
  EXPECT_EQ(Read(bce_loss(p, t)), (Numbers{0, 0, 100, 100}));
  for (double d : Read(Backward(&tape, bce_loss(p, t), {p})[0])) EXPECT_TRUE(std::isfinite(d)) << d;
  Tensor x = Give(&tape, {4}, {-1000, 1000, -1000, 1000});
  EXPECT_EQ(Read(bce_with_logits_loss(x, t)), (Numbers{0, 0, 1000, 1000}));
  EXPECT_EQ(Read(huber_loss(Give(&tape, {3}, {0.5, 2, -4}), Give(&tape, {}, {0}), 1)),
            (Numbers{0.125, 1.5, 3.5}));
  EXPECT_EQ(Read(kl_div_loss(Give(&tape, {2}, {-1, -1}), Give(&tape, {2}, {0, 1}))), (Numbers{0, 1}));
}

// --- Errors --------------------------------------------------------------------------------------

TEST(BasicErrors, SayWhatIsWrongAndWhatToDo) {
  Tape tape;
  Tensor x = Give(&tape, {2, 3}, {1, 2, 3, 4, 5, 6}), ids = Give(&tape, {2}, {0, 1}, DType::kInt32);
  Tensor flags = greater(x, 3);
  struct Wrong {
    std::string text, sentence;
  };
  const Wrong wrong[] = {
      {ErrorOf([&] { logical_and(x, flags); }), "a is f32 but must be bool; compare it with a number"},
      {ErrorOf([&] { bitwise_and(ids, x); }), "b is f32 but must be i32, i64 or u8"},
      {ErrorOf([&] { sin(ids); }), "is i32 but must be of a floating type; cast it"},
      {ErrorOf([&] { clamp(x, 2, 1); }), "low is 2 but high is 1"},
      {ErrorOf([&] { clamp(ids, 0.5, 1); }), "0.5 is not whole, but its operand is i32"},
      {ErrorOf([&] {
         prelu(x, Give(&tape, {2}, {1, 2}));
       }),
       "slope is [2] but must be [3], as axis 1 of [2,3]"},
      {ErrorOf([&] { x[2]; }), "index 2 is outside axis 0, which is 2"},
      {ErrorOf([&] { x[-3]; }), "index -3 is outside axis 0, which is 2"},
      {ErrorOf([&] { slice(x, 1, 0, kEnd, 0); }), "step is 0 but must be at least 1"},
      {ErrorOf([&] { slice(x, 1, 4, kEnd); }), "[4, end) is not a part of axis 1, which is 3"},
      {ErrorOf([&] { var(x, {0}, false, 2); }),
       "hold 2 elements but must hold more than the correction, which is 2"},
      {ErrorOf([&] { norm(x, 3); }), "p is 3 but must be 1, 2 or infinity"},
      {ErrorOf([&] { any(x); }), "any at"},
      {ErrorOf([&] { any(x); }), "is f32 but must be bool"},
      {ErrorOf([&] { masked_mean(x, x); }), "mask is f32 but must be bool"},
      {ErrorOf([&] {
         prod(x, {0, 0});
       }),
       "axis 0 is named twice"},
      {ErrorOf([&] { einsum("ii->i", {x}); }), "label i stands twice in \"ii\" of equation \"ii->i\""},
      {ErrorOf([&] { einsum("ij,jk->ik", {x}); }), "has 2 operands but 1 was given"},
      {ErrorOf([&] { einsum("ij", {x}); }), "is not of the form \"mk,kn->mn\""},
      {ErrorOf([&] { einsum("ijk->i", {x}); }), "operand 1 is [2,3] of 2 axes but \"ijk\" names 3"},
      {ErrorOf([&] { einsum("ij->ik", {x}); }), "output label k of equation \"ij->ik\" stands in no operand"},
      {ErrorOf([&] { einsum("i...->i", {x}); }), "have axes of \"...\" but its output has not"},
      {ErrorOf([&] {
         einsum("ab,bc,cd->ad", {x, x, x});
       }),
       "axis 0 (b) of operand 2 is 2 but 3 in another operand"},
      {ErrorOf([&] { huber_loss(x, x, 0); }), "delta is 0 but must be greater than 0"},
      {ErrorOf([&] { mse_loss(x, ids); }), "target is i32 but must be of a floating type"},
      {ErrorOf([&] { cross_entropy(x, ids, {.label_smoothing = 2}); }),
       "label_smoothing is 2 but must be in [0, 1]"},
      {ErrorOf([&] { cross_entropy(x, ids, {.class_weights = x}); }),
       "class_weights is f32[2,3] but must be f32[3]"},
      {ErrorOf([&] { cosine_similarity(x, x[0]); }), "a is [2,3] but b is [3]"},
      {ErrorOf([&] {
         constant(&tape, HostTensor{DType::kFloat32, {1 << 24, 2}, nullptr});
       }),
       "takes 134217728 bytes but a literal may take 67108864; make it a weight or an input"},
      {ErrorOf([&] { constant(nullptr, HostTensor::Make(DType::kFloat32, {1})); }), "no graph was given"},
      {ErrorOf([&] { sin(Tensor()); }), "never given a value"},
  };
  for (const Wrong& w : wrong) EXPECT_MENTIONS(w.text, w.sentence);
}

}  // namespace
}  // namespace oneflow_like
