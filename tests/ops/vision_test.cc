// The functions of ops/language/vision.h against numbers of PyTorch 2.15 in double (channels moved last),
// what is said of their wrong uses, and the signatures of their operators. The inputs are quarters of whole
// numbers, so they are exact.
#include "ops/language/vision.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/ops/eager.h"

namespace oneflow_like {
namespace {

using oracle::Backward;
using oracle::Give;
using oracle::Read;
using oracle::Tape;
using Numbers = std::vector<double>;

// ((37 i + 11 salt) mod 17 - 8) / 4
Tensor Pattern(Tape* tape, const Dims& shape, int64_t salt) {
  Numbers values;
  for (int64_t i = 0; i < shape.elements(); ++i)
    values.push_back(static_cast<double>((i * 37 + salt * 11) % 17 - 8) / 4);
  return Give(tape, shape, values);
}

void ExpectValues(Tensor got, const Dims& shape, const Numbers& want, const std::string& what = "") {
  ASSERT_TRUE(got.defined()) << what;
  EXPECT_EQ(got.shape().str(), shape.str()) << what;
  Numbers values = Read(got);
  ASSERT_EQ(values.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]) && std::isnan(values[i])) continue;
    EXPECT_NEAR(values[i], want[i], 2e-5 * (1 + std::abs(want[i]))) << what << " element " << i;
  }
}

// Gradients of the sum of y times a pattern.
std::vector<Tensor> GradientsOf(Tape* tape, Tensor y, int64_t salt, const std::vector<Tensor>& of) {
  return Backward(tape, sum(mul(y, Pattern(tape, y.shape(), salt))), of);
}

TEST(Convolution, InGroupsWithStrideAndDilation) {
  Tape tape;
  Tensor x = Pattern(&tape, {1, 4, 4, 4}, 1), filter = Pattern(&tape, {4, 2, 2, 2}, 2);
  Tensor y = conv2d(x, filter, {.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2});
  ExpectValues(y, {1, 3, 2, 4}, {-2.75,  -3.625, -0.4375, 2.8125,  0.5625, 5.8125,  0.25,    -3.125,
                                 0.125,  4.9375, -0.125,  -6.1875, 9,      -3.6875, -6.0625, 10.75,
                                 2.8125, -4.25,  -1.875,  6.875,   -2.25,  0,       3.1875,  -2.125});
  std::vector<Tensor> d = GradientsOf(&tape, y, 3, {x, filter});
  ExpectValues(d[0], {1, 4, 4, 4},
               {-3.625, -3.25,   -1.125,  1.5,     -1.875,  -0.1875, -1.75,  4.3125,  -2.875, -2.5,    0.9375,
                0.375,  1.5,     3.1875,  1.875,   -0.5625, 0.625,   0.4375, -1.0625, 1,      0.3125,  -1.75,
                0.5,    0.6875,  -0.8125, -1,      3.0625,  -2.3125, 0.4375, -1.625,  0.875,  -1.0625, 0.9375,
                0.75,   -0.25,   -2.4375, 3.75,    1.6875,  -0.875,  0.375,  0.5625,  0.375,  -0.375,  1.6875,
                -0.375, -2.4375, 0.5625,  0.75,    1.0625,  3.5,     2.0625, 0.375,   0.75,   1.3125,  -2.75,
                -3.125, -2.5625, -0.125,  -1.3125, 0.1875,  -1.3125, -0.75,  -3.5,    4.625});
  ExpectValues(d[1], {4, 2, 2, 2}, {0.3125,  -0.4375, -1.4375, -0.0625, 5,       5.375,  -2.625,  -2.25,
                                    -0.625,  -2.3125, -0.3125, 0.125,   -0.0625, -0.625, 5,       4.4375,
                                    -0.4375, -4.125,  -3.375,  4.625,   0.375,   -1.125, 1.125,   -0.375,
                                    5.25,    -2.5625, -3.0625, -2.375,  -0.1875, 0.5625, -0.5625, 0.1875});
}

TEST(Convolution, Transposed) {
  Tape tape;
  Tensor y = conv2d_transpose(
      Pattern(&tape, {1, 2, 3, 2}, 1), Pattern(&tape, {2, 3, 2, 1}, 2),
      {.stride = {2, 3}, .padding = {1, 0}, .dilation = {1, 2}, .output_padding = {1, 0}, .groups = 2});
  ExpectValues(y, {1, 4, 9, 2},
               {0.5625,  1.5,    0, 0, 1.125,  2.625,  -1.5,    -1.25,   0, 0, -3,      -2.1875,
                -0.375,  0.25,   0, 0, -0.75,  0.4375, -2.25,   -3.5,    0, 0, -0.9375, -1.0625,
                5.3125,  2.6875, 0, 0, 2.5,    1,      1.1875,  -0.6875, 0, 0, 0.625,   -0.125,
                0.75,    1.75,   0, 0, 1.5,    3.0625, -1.3125, -1,      0, 0, -2.625,  -1.75,
                -0.1875, 0.5,    0, 0, -0.375, 0.875,  -2,      -3.0625, 0, 0, -1.25,   -1.75,
                3.5,     1.75,   0, 0, 2.1875, 1,      0.5,     -0.875,  0, 0, 0.3125,  -0.5});
}

TEST(Convolution, AlongOneAxis) {
  Tape tape;
  Tensor y =
      conv1d(Pattern(&tape, {2, 5, 2}, 4), Pattern(&tape, {3, 3, 2}, 5), {.stride = {2}, .padding = {1}});
  ExpectValues(y, {2, 3, 3},
               {8.0625, 0.125, 0.6875, -2.75, -5.4375, -4.9375, -3.6875, -3.9375, -4.1875, -0.5625, -4.1875,
                -3.5625, -4.8125, -3.6875, -3.625, 3.25, 4.125, 5});
  y = conv1d_transpose(Pattern(&tape, {1, 3, 2}, 4), Pattern(&tape, {2, 3, 1}, 5),
                       {.stride = {2}, .padding = {1}, .output_padding = {1}});
  ExpectValues(y, {1, 6, 1}, {2.375, -5.5, -3.5, 4, 0.1875, -0.375});
}

// The gradient of a gradient: of sum(dx u) with respect to the filter, where dx is linear in it, u's product
// with the same relation. It is found through conv2d_grad_input, and here by moving the filter.
TEST(Convolution, SecondDerivatives) {
  Tape tape;
  const ConvOptions options{.stride = {2}, .padding = {1}};
  auto dx_of = [&](Tensor filter) {
    Tensor x = Pattern(&tape, {1, 5, 4, 2}, 1);
    return GradientsOf(&tape, conv2d(x, filter, options), 3, {x})[0];
  };
  Tensor filter = Pattern(&tape, {3, 3, 2, 2}, 2), u = Pattern(&tape, {1, 5, 4, 2}, 7);
  Tensor second = Backward(&tape, sum(mul(dx_of(filter), u)), {filter})[0];
  Numbers got = Read(second), at = Read(filter);
  const double before = Read(sum(mul(dx_of(filter), u)))[0];
  for (size_t i = 0; i < got.size(); ++i) {
    Numbers moved = at;
    moved[i] += 1;  // it is linear: any step will do
    const double after = Read(sum(mul(dx_of(Give(&tape, filter.shape(), moved)), u)))[0];
    EXPECT_NEAR(got[i], after - before, 1e-4) << i;
  }
}

TEST(Pooling, TheFirstOfEqualsIsTakenAndANanWins) {
  Tape tape;
  Tensor x = Give(&tape, {1, 4, 4, 1}, {1, 1, 0, 2, 1, 1, 2, 2, 0, 3, 3, NAN, 3, 3, 1, 0});
  Tensor y = max_pool2d(x, {.kernel = {3}, .stride = {2}, .padding = {1}});
  ExpectValues(y, {1, 2, 2, 1}, {1, 2, 3, NAN});
  Tensor weights = Give(&tape, {1, 2, 2, 1}, {1, 10, 100, 1000});
  ExpectValues(Backward(&tape, mul(y, weights), {x})[0], {1, 4, 4, 1},
               {1, 0, 0, 10, 0, 0, 0, 0, 0, 100, 0, 1000, 0, 0, 0, 0});
}

TEST(Pooling, Means) {
  Tape tape;
  Tensor x = Pattern(&tape, {1, 4, 5, 1}, 6);
  PoolOptions options{.kernel = {3, 2}, .stride = {2, 2}, .padding = {1, 1}};
  ExpectValues(avg_pool2d(x, options), {1, 2, 3, 1}, {0.5, -0.375, -0.08333333, 0.375, 0.4583333, -0.875});
  options.count_include_pad = false;
  ExpectValues(avg_pool2d(x, options), {1, 2, 3, 1}, {1.5, -0.5625, -0.125, 0.75, 0.4583333, -0.875});
}

TEST(Pooling, ToAGivenSize) {
  Tape tape;
  Tensor x = Pattern(&tape, {1, 4, 5, 1}, 6), y = adaptive_avg_pool2d(x, 3, 2);
  ExpectValues(y, {1, 3, 2, 1}, {0.125, -0.5, 0.3333333, -1, 0.5416667, -0.7916667});
  ExpectValues(GradientsOf(&tape, y, 7, {x})[0], {1, 4, 5, 1},
               {0.04166667, 0.04166667, 0.2083333,  0.1666667,  0.1666667,   0.3333333,  0.3333333,
                0.2083333,  -0.125,     -0.125,     0.125,      0.125,       -0.2083333, -0.3333333,
                -0.3333333, -0.1666667, -0.1666667, -0.2083333, -0.04166667, -0.04166667});
  ExpectValues(adaptive_max_pool2d(x, 3, 2), {1, 3, 2, 1}, {2, 0.5, 2, 0, 1.75, 1.75});
}

TEST(Pooling, AlongOneAxis) {
  Tape tape;
  Tensor x = Pattern(&tape, {1, 7, 1}, 6);
  const PoolOptions options{.kernel = {3}, .stride = {2}, .padding = {1}};
  ExpectValues(max_pool1d(x, options), {1, 4, 1}, {1.75, -0.25, 1.25, 2});
  ExpectValues(avg_pool1d(x, options), {1, 4, 1}, {0, -1, 0.5, 1.083333});
  ExpectValues(adaptive_max_pool1d(x, 3), {1, 3, 1}, {1.75, 0.5, 2});
  ExpectValues(adaptive_avg_pool1d(x, 3), {1, 3, 1}, {-0.3333333, -0.25, 1.25});
}

TEST(Interpolate, ByBothModes) {
  Tape tape;
  Tensor x = Pattern(&tape, {1, 2, 3, 1}, 8);
  auto check = [&](int64_t rows, int64_t columns, const InterpolateOptions& options, const Numbers& y,
                   const Numbers& dx) {
    Tensor got = interpolate(x, rows, columns, options);
    ExpectValues(got, {1, rows, columns, 1}, y, Cat(rows, " x ", columns));
    ExpectValues(GradientsOf(&tape, got, 9, {x})[0], {1, 2, 3, 1}, dx, Cat("dx of ", rows, " x ", columns));
  };
  check(4, 5, {}, {-1.25, -1.25, -0.5, -0.5, 0.25,  -1.25, -1.25, -0.5, -0.5, 0.25,
                   1,     1,     1.75, 1.75, -1.75, 1,     1,     1.75, 1.75, -1.75},
        {2.25, -4.5, 0, 2.5, 0, -2});
  check(4, 5, {.mode = ResizeMode::kBilinear},
        {-1.25,  -0.95,  -0.5,   -0.05,  0.25,  -0.6875, -0.3875, 0.0625, -0.125, -0.25,
         0.4375, 0.7375, 1.1875, -0.275, -1.25, 1,       1.3,     1.75,   -0.35,  -1.75},
        {2.15, -2.8625, -1.1, 1.9, 2.0625, -3.9});
  check(3, 5, {.mode = ResizeMode::kBilinear, .align_corners = true},
        {-1.25, -0.875, -0.5, -0.125, 0.25, -0.125, 0.25, 0.625, -0.0625, -0.75, 1, 1.375, 1.75, 0, -1.75},
        {1.4375, -3.1875, -0.375, 2.0625, 1.1875, -1.875});
  check(1, 2, {.mode = ResizeMode::kBilinear}, {0.0625, -0.40625},
        {0.5625, -0.0625, -0.75, 0.5625, -0.0625, -0.75});
}

TEST(Norms, GroupNorm) {
  Tape tape;
  Tensor x = Pattern(&tape, {2, 2, 2, 4}, 10), gamma = Pattern(&tape, {4}, 11),
         beta = Pattern(&tape, {4}, 12);
  Tensor y = group_norm(x, 2, gamma, beta);
  ExpectValues(y, {2, 2, 2, 4},
               {1.374282,   1.565012,  -1.5, -1.859397,   3.03138,   2.393561, -1.5, -0.1953013,
                -0.9456549, 3.22211,   -1.5, -0.8886747,  0.7114431, 1.233592, -1.5, -1.582048,
                2.073229,   1.917677,  -1.5, -0.02186145, 3.719686,  2.740906, -1.5, -0.7883231,
                -0.2318118, 0.7651568, -1.5, -1.554785,   1.414646,  1.588386, -1.5, 0.2847232});
  std::vector<Tensor> d = GradientsOf(&tape, y, 13, {x, gamma, beta});
  ExpectValues(
      d[0], {2, 2, 2, 4},
      {0.1376498,  0.19642,    -0.006222737, 1.036801,  0.5920656,   -0.1777133, -0.02992768, 0.4003193,
       -0.4985323, -0.5518466, -0.05363262,  -0.316759, -0.04411649, 0.3460733,  0.00325924,  -1.033837,
       1.515534,   0.3719407,  -0.2703619,   0.2625606, -2.450841,   1.180292,   0.1188699,   -0.1146692,
       -0.7686776, -0.7597511, 0.5081017,    -0.491899, 0.8629025,   0.0486002,  -0.4260547,  0.4134525});
  ExpectValues(d[1], {4}, {2.1392, 9.025652, 9.715772, 4.599427});
  ExpectValues(d[2], {4}, {1.25, -1.25, 0.5, 2.25});
}

TEST(Norms, BatchNormInTraining) {
  Tape tape;
  Tensor x = Pattern(&tape, {2, 2, 2, 3}, 10), gamma = Pattern(&tape, {3}, 11),
         beta = Pattern(&tape, {3}, 12);
  BatchNorm norm = batch_norm(x, gamma, beta);
  ExpectValues(norm.y, {2, 2, 2, 3},
               {0.3471103, 1.548555, -1.5,       3.236357, 2.993179,   -1.5,     -0.0140456, 1.367977,
                -1.5,      2.875201, 2.812601,   -1.5,     -0.3752015, 1.187399, -1.5,       2.514046,
                2.632023,  -1.5,     -0.7363574, 1.006821, -1.5,       2.15289,  2.451445,   -1.5});
  std::vector<Tensor> d = GradientsOf(&tape, norm.y, 13, {x, gamma, beta});
  ExpectValues(d[0], {2, 2, 2, 3},
               {0.1557131,  -4.187276e-06, 0, -4.026359,  9.212007e-06,  0, -0.08898422, -5.862186e-06, 0,
                1.868594,   7.537096e-06,  0, -0.3336815, -7.537096e-06, 0, 1.623897,    5.862186e-06,  0,
                -0.5783788, -9.212007e-06, 0, 1.379199,   4.187276e-06,  0});
  ExpectValues(d[1], {3}, {2.678573, 8.306585, 2.203747});
  ExpectValues(d[2], {3}, {-2.75, -1, 5});
  // By its own statistics the same.
  ExpectValues(batch_norm_eval(x, gamma, beta, norm.mean, norm.variance), {2, 2, 2, 3}, Read(norm.y));
}

// Of a gradient that goes through the statistics, and of channels far from 0: squares are summed about a
// number near the mean.
TEST(Norms, BatchStatisticsOfChannelsFarFromZero) {
  Tape tape;
  Numbers values;
  for (int i = 0; i < 64; ++i) values.push_back(30000 + i % 8);
  Tensor x = Give(&tape, {64, 1}, values), one = Give(&tape, {1}, {1}), none = Give(&tape, {1}, {0});
  BatchNorm norm = batch_norm(x, one, none);
  EXPECT_NEAR(Read(norm.mean)[0], 30003.5, 0.01);
  EXPECT_NEAR(Read(norm.variance)[0], 5.25, 1e-4);
  Numbers d = Read(Backward(&tape, norm.variance, {x})[0]);
  for (int i = 0; i < 64; ++i) EXPECT_NEAR(d[i], 2 * (i % 8 - 3.5) / 64, 1e-4) << i;
}

// The squares are summed about the mean of every sixteenth row, which here says the least of the others that
// it can: those rows are a hundred thousand times as far away as the others are apart.
TEST(Norms, BatchStatisticsOfRowsUnlikeTheOthers) {
  Tape tape;
  Numbers values;
  double mean = 0, variance = 0;
  for (int i = 0; i < 2 * 32 * 8; ++i)
    values.push_back((i / 8 % 16 == 0 ? 100000 : 0) + 500 + static_cast<double>(i * 37 % 17) / 16);
  for (double v : values) mean += v / static_cast<double>(values.size());
  for (double v : values) variance += (v - mean) * (v - mean) / static_cast<double>(values.size());
  Tensor x = Give(&tape, {2, 32, 8, 1}, values), one = Give(&tape, {1}, {1}), none = Give(&tape, {1}, {0});
  BatchNorm norm = batch_norm(x, one, none);
  EXPECT_NEAR(Read(norm.mean)[0], mean, 5e-6 * mean);
  EXPECT_NEAR(Read(norm.variance)[0], variance, 2e-5 * variance);
  Numbers y = Read(norm.y), d = Read(Backward(&tape, norm.variance, {x})[0]);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(y[i], (values[i] - mean) / std::sqrt(variance), 2e-5 * (1 + std::abs(y[i]))) << i;
    EXPECT_NEAR(d[i], 2 * (values[i] - mean) / 512, 2e-5 * std::abs(d[i])) << i;
  }
}

// --- Wrong uses

// A table: a mistake, and the words it gets.
TEST(Vision, SaysWhatIsWrong) {
  Tape tape;
  Tensor x = Pattern(&tape, {2, 5, 6, 4}, 1), line = Pattern(&tape, {2, 5, 4}, 1),
         four = Pattern(&tape, {4}, 1);
  auto filter = [&](const Dims& shape) { return Pattern(&tape, shape, 2); };
  // The sentence behind "<function> at <file and line>: ".
  auto said = [&](auto&& use) {
    std::string text = ErrorOf(use);
    size_t at = text.find(": ");
    return at == std::string::npos ? text : text.substr(at + 2);
  };
  EXPECT_EQ(said([&] {
              conv2d(line, filter({3, 2, 2, 4}));
            }),
            "x has 3 axes but needs 4 (batch, rows, columns, channels)");
  EXPECT_EQ(said([&] {
              conv1d(line, filter({3, 2, 2, 4}));
            }),
            "the filter has 4 axes but needs 3 (filters, positions, channels of a group)");
  EXPECT_EQ(said([&] { conv2d(Tensor(), x); }), "x is a Tensor that was never given a value");
  EXPECT_EQ(said([&] {
              conv2d(x, filter({3, 2, 2, 3}));
            }),
            "x has 4 channels but the filter [3,2,2,3] takes 3");
  EXPECT_EQ(said([&] {
              conv2d(x, filter({4, 2, 2, 4}), {.groups = 2});
            }),
            "x has 4 channels, 2 in each of 2 groups, but the filter [4,2,2,4] takes 4");
  EXPECT_EQ(said([&] {
              conv2d(x, filter({6, 2, 2, 1}), {.groups = 3});
            }),
            "the channels of x are 4, which does not divide into 3 groups");
  EXPECT_EQ(said([&] {
              conv2d(x, filter({3, 2, 2, 4}), {.stride = {2, 0}});
            }),
            "stride of the columns is 0 but must be at least 1");
  EXPECT_EQ(said([&] {
              conv2d(x, filter({3, 2, 2, 4}), {.padding = {1, 1, 1}});
            }),
            "padding has 3 numbers but must have 1 or 2");
  EXPECT_EQ(said([&] {
              conv2d(x, filter({3, 4, 2, 4}), {.dilation = {2}});
            }),
            "a filter of 4 rows at dilation 2 spans 7 but x with its padding has 5");
  EXPECT_EQ(said([&] {
              conv2d_transpose(x, filter({4, 2, 2, 3}), {.stride = {2}, .output_padding = {2}});
            }),
            "output_padding is 2 but must be at least 0 and less than the stride, 2");
  EXPECT_EQ(said([&] {
              conv2d_transpose(x, filter({3, 2, 2, 4}));
            }),
            "x has 4 channels but axis 0 of the filter [3,2,2,4] has 3");
  EXPECT_EQ(said([&] { max_pool2d(x, {.kernel = {2}, .padding = {2}}); }),
            "padding of the rows is 2 but may be at most half of the kernel, 2");
  EXPECT_EQ(said([&] {
              avg_pool2d(x, {.kernel = {2, 9}});
            }),
            "the kernel has 9 columns but x with its padding has 6");
  EXPECT_EQ(said([&] { max_pool1d(line, {.kernel = {2, 2}}); }), "kernel has 2 numbers but must have 1");
  EXPECT_EQ(said([&] { adaptive_avg_pool2d(x, 0, 1); }), "size of the rows is 0 but must be at least 1");
  EXPECT_EQ(said([&] { interpolate(x, 3, 0); }), "size is 3 rows and 0 columns but must be at least 1 and 1");
  EXPECT_EQ(said([&] { interpolate(x, 3, 3, {.align_corners = true}); }),
            "align_corners has a meaning only for mode bilinear, not for nearest");
  EXPECT_EQ(said([&] { group_norm(x, 3, four, four); }),
            "x has 4 channels, which do not divide into 3 groups");
  EXPECT_EQ(said([&] { group_norm(x, 2, four, Pattern(&tape, {3}, 1)); }),
            "beta is [3] but x has 4 channels");
  EXPECT_EQ(said([&] { batch_norm(x, Pattern(&tape, {5}, 1), four); }), "gamma is [5] but x has 4 channels");
  EXPECT_EQ(said([&] { batch_norm(x, four, four, 0); }), "eps is 0 but must be greater than 0");
  EXPECT_EQ(said([&] {
              batch_norm(Pattern(&tape, {0, 4}, 1), four, four);
            }),
            "x is [0,4], which has no element to take a mean of");
  EXPECT_EQ(said([&] {
              conv2d(cast(x, DType::kBFloat16), filter({3, 2, 2, 4}));
            }),
            "x is bf16 but filter is f32; cast one of them");
}

// --- Signatures

std::vector<std::string> SignatureTexts(const std::string& op, const std::vector<Dims>& shapes,
                                        const Attrs& attrs) {
  std::vector<DType> types(shapes.size(), DType::kFloat32);
  std::vector<std::string> texts;
  for (const Signature& s :
       Signatures(Infer(BuiltinCatalog().Get(op), {op, op, shapes, types, &attrs}).rule, {}, 2))
    texts.push_back(s.str());
  std::sort(texts.begin(), texts.end());
  return texts;
}

TEST(Vision, SignaturesAreExactlyTheLegalOnes) {
  using Texts = std::vector<std::string>;
  using Ints = std::vector<int64_t>;
  Attrs attrs = {
      {"stride", Ints{1, 1}}, {"padding", Ints{0, 0}}, {"dilation", Ints{1, 1}}, {"groups", int64_t{1}}};
  EXPECT_EQ(SignatureTexts("conv2d", {{4, 5, 5, 6}, {8, 2, 2, 6}}, attrs),
            (Texts{"B B->B", "B P->P", "B S0->S3", "P B->P", "S0 B->S0", "S3 S3->P"}));
  Attrs filter = attrs;
  filter.Set("window", Ints{2, 2});
  EXPECT_EQ(SignatureTexts("conv2d_grad_filter", {{4, 5, 5, 6}, {4, 4, 4, 8}}, filter),
            (Texts{"B B->B", "B P->P", "B S3->S0", "P B->P", "S0 S0->P", "S3 B->S3"}));
  attrs.Set("groups", int64_t{2});  // whole groups of 3 channels and of 4 filters
  EXPECT_EQ(SignatureTexts("conv2d", {{4, 5, 5, 6}, {8, 2, 2, 3}}, attrs),
            (Texts{"B B->B", "B P->P", "P B->P", "S0 B->S0", "S3 S0->S3"}));
  EXPECT_EQ(SignatureTexts("channel_moments", {{4, 5, 6}, {6}}, {}),
            (Texts{"B B->B B", "S0 B->P P", "S1 B->P P", "S2 S0->S0 S0"}));
  EXPECT_EQ(SignatureTexts("avg_pool2d", {{4, 5, 6, 3}}, {{"size", Ints{1, 1}}}),
            (Texts{"B->B", "P->P", "S0->S0", "S3->S3"}));
}

}  // namespace
}  // namespace oneflow_like
