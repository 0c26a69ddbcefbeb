// Functions made of others, maxima by index, CTC, transforms and factorisations: values worked out by hand,
// second gradients, frequencies of draws, and what wrong uses are told. values_test compares the others with
// PyTorch's.
// ctest: seconds=3
#include "ops/language/composed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ops/language/expressions.h"
#include "ops/language/linear_algebra.h"
#include "ops/language/losses.h"
#include "ops/language/sparse.h"
#include "ops/language/volumes.h"
#include "tests/error_of.h"
#include "tests/ops/eager.h"

namespace oneflow_like::oracle {
namespace {

using Numbers = std::vector<double>;

class Composed : public testing::Test {
 protected:
  Tensor Floats(const Dims& shape, const Numbers& values) { return Give(&tape_, shape, values); }
  Tensor Ids(const Dims& shape, const Numbers& values) { return Give(&tape_, shape, values, DType::kInt64); }
  Tensor Flags(const Dims& shape, const Numbers& values) { return Give(&tape_, shape, values, DType::kBool); }
  Tensor Counted(const Dims& shape) {  // 0, 1, 2, ...
    Numbers values;
    for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(static_cast<double>(i));
    return Floats(shape, values);
  }
  Numbers Gradient(Tensor y, Tensor x) { return Read(Backward(&tape_, y, {x})[0]); }

  Tape tape_;
};

void ExpectNear(const Numbers& got, const Numbers& want, double tolerance = 1e-6) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << "element " << i;
}

TEST_F(Composed, NormsOverAnyAxis) {
  Tensor x = Floats({2, 3}, {0, 1, 2, std::log(3.0), 1, 2});
  ExpectNear(Read(softmax(x, 0)), {0.25, 0.5, 0.5, 0.75, 0.5, 0.5});
  ExpectNear(Read(log_softmax(x, 0)),
             {std::log(0.25), std::log(0.5), std::log(0.5), std::log(0.75), std::log(0.5), std::log(0.5)});
  Tensor y = Floats({2, 2}, {1, 5, 3, 5});
  ExpectNear(Read(layer_norm_over(y, {0}, 1e-12)), {-1, 0, 1, 0});
  ExpectNear(Read(layer_norm_over(y, {1}, 1e-12)), {-1, 1, -1, 1});
  ExpectNear(Read(rms_norm_over(y, {0, 1}, 1e-12)),
             {1 / std::sqrt(15), 5 / std::sqrt(15), 3 / std::sqrt(15), 5 / std::sqrt(15)});
  ExpectNear(Read(weight_norm(Floats({2, 2}, {3, 4, 0, -2}), Floats({2}, {10, 1}))), {6, 8, 0, -1});
}

TEST_F(Composed, ElementsByIndex) {
  Tensor x = Counted({2, 4});
  EXPECT_EQ(Read(take(x, 1, {3, -4})), (Numbers{3, 0, 7, 4}));
  EXPECT_EQ(Read(dynamic_slice(x, 1, Ids({}, {1}), 2)), (Numbers{1, 2, 5, 6}));
  EXPECT_EQ(Read(slice_scatter(x, 1, 1, Floats({2, 2}, {-1, -2, -3, -4}))),
            (Numbers{0, -1, -2, 3, 4, -3, -4, 7}));
  EXPECT_EQ(Read(slice_scatter(x, 0, -1, Floats({1, 4}, {9, 9, 9, 9}))), (Numbers{0, 1, 2, 3, 9, 9, 9, 9}));
  EXPECT_EQ(slice_scatter(x, 0, 0, x).id(), x.id());
  // The second place twice: the sum.
  EXPECT_EQ(Read(scatter(x, 1, Ids({2, 2}, {1, 1, 0, 3}), Floats({2, 2}, {10, 20, 30, 40}))),
            (Numbers{0, 30, 2, 3, 30, 5, 6, 40}));
  EXPECT_EQ(Read(bincount(Ids({2, 3}, {0, 2, 2, 2, 0, 4}), 6)), (Numbers{2, 0, 3, 0, 1, 0}));
  Extremes most = max_with_indices(Floats({2, 3}, {1, 5, 5, 7, -1, 7})), least = min_with_indices(x, 0);
  EXPECT_EQ(Read(most.values), (Numbers{5, 7}));
  EXPECT_EQ(Read(most.indices), (Numbers{1, 0}));
  EXPECT_EQ(Read(least.values), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(Read(least.indices), (Numbers{0, 0, 0, 0}));
}

TEST_F(Composed, ResultsOfBoundedNumber) {
  Found found = nonzero(Flags({2, 3}, {0, 1, 1, 0, 0, 1}), 4);
  EXPECT_EQ(Read(found.indices), (Numbers{1, 2, 5, -1}));
  EXPECT_EQ(Read(found.count), (Numbers{3}));
  EXPECT_EQ(Read(nonzero(Flags({3}, {1, 1, 1}), 2).indices), (Numbers{0, 1}));
  EXPECT_EQ(Read(nonzero(Flags({3}, {1, 1, 1}), 2).count), (Numbers{3}));
  EXPECT_EQ(Read(nonzero(Flags({2}, {0, 0}), 3).indices), (Numbers{-1, -1, -1}));
  for (int64_t size : {1, 2, 3, 5}) {
    Distinct distinct = unique(Ids({2, 3}, {4, -2, 4, 4, 7, -2}), size);
    Numbers values = {-2, 4, 7, 0, 0}, counts = {2, 3, 1, 0, 0};
    values.resize(size), counts.resize(size);
    EXPECT_EQ(Read(distinct.values), values);
    EXPECT_EQ(Read(distinct.counts), counts);
    EXPECT_EQ(Read(distinct.count), (Numbers{3}));
  }
  EXPECT_EQ(Read(unique(Floats({0}, {}), 2).count), (Numbers{0}));
  EXPECT_EQ(Read(unique(Floats({1}, {5}), 2).counts), (Numbers{1, 0}));
}

TEST_F(Composed, RunningResults) {
  Tensor x = Floats({5}, {2, -3, 0, 4, -1});
  EXPECT_EQ(Read(cumprod(x, 0)), (Numbers{2, -6, 0, 0, 0}));
  EXPECT_EQ(Read(cummax(x, 0)), (Numbers{2, 2, 2, 4, 4}));
  EXPECT_EQ(Read(cummin(x, 0)), (Numbers{2, -3, -3, -3, -3}));
  EXPECT_EQ(Read(cummax(Ids({3}, {-5, -9, -2}), 0)), (Numbers{-5, -5, -2}));
  Tensor rows = Floats({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Read(cumprod(rows, 0)), (Numbers{1, 2, 3, 4, 10, 18}));
  // d(x0 + x0 x1 + x0 x1 x2) of {2, 3, 0}.
  Tensor few = Floats({3}, {2, 3, 0});
  EXPECT_EQ(Gradient(cumprod(few, 0), few), (Numbers{4, 2, 6}));
  ExpectNear(Read(logcumsumexp(Floats({3}, {0, 0, std::log(2.0)}), 0)), {0, std::log(2.0), std::log(4.0)});
  ExpectNear(Read(logcumsumexp(Floats({2}, {-500, -500}), 0)), {-500, -500 + std::log(2.0)}, 1e-4);
  const double none = -std::numeric_limits<double>::infinity();
  Tensor masked = Floats({6}, {none, 0, none, 0, none, none});
  const Numbers sums = Read(logcumsumexp(masked, 0));
  EXPECT_EQ(sums[0], none);
  ExpectNear(Numbers(sums.begin() + 1, sums.end()), {0, 0, std::log(2.0), std::log(2.0), std::log(2.0)});
  ExpectNear(Gradient(slice(logcumsumexp(masked, 0), 0, 1, 6), masked), {0, 3.5, 0, 1.5, 0, 0});
}

TEST_F(Composed, Borders) {
  Tensor x = Counted({4});
  EXPECT_EQ(Read(pad(x, {{2, 1}}, {.value = 9})), (Numbers{9, 9, 0, 1, 2, 3, 9}));
  EXPECT_EQ(Read(pad(x, {{2, 3}}, {.mode = PadMode::kReflect})), (Numbers{2, 1, 0, 1, 2, 3, 2, 1, 0}));
  EXPECT_EQ(Read(pad(x, {{2, 1}}, {.mode = PadMode::kReplicate})), (Numbers{0, 0, 0, 1, 2, 3, 3}));
  EXPECT_EQ(Read(pad(x, {{2, 1}}, {.mode = PadMode::kCircular})), (Numbers{2, 3, 0, 1, 2, 3, 0}));
  EXPECT_EQ(Gradient(pad(x, {{2, 3}}, {.mode = PadMode::kReflect}), x), (Numbers{2, 3, 3, 1}));
  EXPECT_EQ(Read(unfold(x, 0, 2)), (Numbers{0, 1, 1, 2, 2, 3}));
  EXPECT_EQ(unfold(Counted({2, 7, 3}), 1, 3, 2).shape(), (Dims{2, 3, 3, 3}));
  Tensor picture = Counted({1, 1, 1, 8});
  EXPECT_EQ(Read(pixel_shuffle(picture, 2)), (Numbers{0, 4, 1, 5, 2, 6, 3, 7}));
  EXPECT_EQ(Read(pixel_unshuffle(pixel_shuffle(picture, 2), 2)), Read(picture));
}

TEST_F(Composed, Quantiles) {
  Tensor x = Floats({5}, {4, 1, 3, 2, 0});
  EXPECT_EQ(Read(quantile(x, 0.5)), (Numbers{2}));
  ExpectNear(Read(quantile(x, 0.6)), {2.4});
  EXPECT_EQ(quantile(x, 0.6, 0, true).shape(), (Dims{1}));
  EXPECT_EQ(Read(searchsorted(Floats({3}, {1, 2, 2}), Floats({4}, {0, 1, 2, 3}))), (Numbers{0, 0, 1, 3}));
  EXPECT_EQ(Read(searchsorted(Floats({3}, {1, 2, 2}), Floats({4}, {0, 1, 2, 3}), true)),
            (Numbers{0, 1, 3, 3}));
}

// 20,000 draws: shares within five standard deviations, and at most two thirds of them equal to others of
// another operator.
TEST_F(Composed, DrawsHaveTheirFrequencies) {
  constexpr int64_t kDraws = 20'000;
  const auto near = [](double count, double p) {
    EXPECT_NEAR(count / kDraws, p, 5 * std::sqrt(p * (1 - p) / kDraws)) << count;
  };
  Numbers p(kDraws);
  for (int64_t i = 0; i < kDraws; ++i) p[i] = i < kDraws / 2 ? 0 : i % 2 == 0 ? 1 : 0.3;
  const Numbers flags = Read(bernoulli(Floats({kDraws}, p)));
  double some = 0;
  for (int64_t i = 0; i < kDraws; ++i) {
    if (p[i] == 0 || p[i] == 1)
      EXPECT_EQ(flags[i], p[i]);
    else
      some += 4 * flags[i];
  }
  EXPECT_NEAR(some / kDraws, 0.3, 5 * std::sqrt(0.3 * 0.7 * 4 / kDraws));

  Numbers counts(5, 0);
  for (double drawn : Read(randint(&tape_, {kDraws}, -2, 3))) {
    ASSERT_TRUE(drawn >= -2 && drawn < 3 && drawn == std::floor(drawn)) << drawn;
    ++counts[static_cast<size_t>(drawn + 2)];
  }
  for (double count : counts) near(count, 0.2);

  Numbers logits;
  for (int64_t i = 0; i < kDraws; ++i)
    for (double share : {0.1, 0.6, 0.0, 0.3}) logits.push_back(std::log(share) + 3);
  counts.assign(4, 0);
  for (double drawn : Read(categorical(Floats({kDraws, 4}, logits)))) ++counts[static_cast<size_t>(drawn)];
  near(counts[0], 0.1), near(counts[1], 0.6), near(counts[3], 0.3);
  EXPECT_EQ(counts[2], 0);

  double total = 0;
  for (double g : Read(gumbel(&tape_, {kDraws}))) {
    ASSERT_TRUE(std::isfinite(g));
    total += g;
  }
  EXPECT_NEAR(total / kDraws, 0.5772,
              5 * 1.2825 / std::sqrt(double{kDraws}));  // Euler's constant; pi / sqrt(6)

  Numbers order = Read(randperm(&tape_, 500));
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < 500; ++i) ASSERT_EQ(order[i], i);

  // Whole samples.
  const Numbers kept = Read(drop_path(Floats({kDraws, 2}, Numbers(2 * kDraws, 1)), 0.25));
  double dropped = 0;
  for (int64_t i = 0; i < kDraws; ++i) {
    ASSERT_EQ(kept[2 * i], kept[2 * i + 1]);
    dropped += kept[2 * i] == 0;
    if (kept[2 * i] != 0) EXPECT_NEAR(kept[2 * i], 1 / 0.75, 1e-6);
  }
  near(dropped, 0.25);
}

TEST_F(Composed, MaximaByIndex) {
  Tensor x = Floats({4}, {1, 1, 1, 1}), ids = Ids({5}, {0, 2, 2, 0, 3}), src = Floats({5}, {3, -1, -2, 3, 1});
  EXPECT_EQ(Read(scatter_max(x, 0, ids, src)), (Numbers{3, 1, 1, 1}));
  EXPECT_EQ(Read(index_min(x, 0, ids, src)), (Numbers{1, 1, -2, 1}));
  // Two of src are the greatest of place 0; at place 3 x's element is as great.
  EXPECT_EQ(Gradient(scatter_max(x, 0, ids, src), src), (Numbers{0.5, 0, 0, 0.5, 0.5}));
  EXPECT_EQ(Gradient(scatter_max(x, 0, ids, src), x), (Numbers{0, 1, 1, 0.5}));
  const double least = std::numeric_limits<int32_t>::min();
  Tensor whole = Give(&tape_, {2}, {5, least}, DType::kInt32);
  EXPECT_EQ(Read(scatter_min(whole, 0, Ids({2}, {0, 1}), Give(&tape_, {2}, {least, 7}, DType::kInt32))),
            (Numbers{least, least}));
  const double none = -std::numeric_limits<double>::infinity();
  Tensor scores = Floats({5}, {0, std::log(3.0), none, none, 7});
  Tensor shares = segment_softmax(scores, Ids({5}, {2, 2, 2, 0, 4}), 5);
  ExpectNear(Read(shares), {0.25, 0.75, 0, 0, 1});
  ExpectNear(Gradient(slice(shares, 0, 0, 1), scores), {0.1875, -0.1875, 0, 0, 0});
}

TEST_F(Composed, TemporalClassification) {
  // Two places of two equal classes: "a" is spelt by aa, a_ and _a, "" by __, and "aa" has no room.
  Tensor half = Floats({3, 2, 2}, Numbers(12, std::log(0.5)));
  Tensor losses = ctc_loss(half, Ids({3, 2}, {1, -5, 9, 9, 1, 1}), Ids({3}, {2, 2, 2}), Ids({3}, {1, 0, 2}));
  const Numbers read = Read(losses);
  EXPECT_NEAR(read[0], -std::log(0.75), 1e-6);
  EXPECT_NEAR(read[1], -std::log(0.25), 1e-6);
  EXPECT_EQ(read[2], std::numeric_limits<double>::infinity());
  // Of the three ways to "a" two have a first blank or a second; of "" every place is blank.
  ExpectNear(Gradient(losses, half), {-1 / 3., -2 / 3., -1 / 3., -2 / 3., -1, 0, -1, 0, 0, 0, 0, 0});
  EXPECT_EQ(Read(ctc_loss(half, Ids({3, 1}, {1, 1, 1}), Ids({3}, {0, 1, 1}), Ids({3}, {1, 0, 1}),
                          {.zero_infinity = true}))[0],
            0);
}

TEST_F(Composed, VolumesAndWindows) {
  Tensor x = Counted({1, 2, 2, 2, 1});
  EXPECT_EQ(Read(conv3d(x, Floats({1, 2, 2, 2, 1}, {1, 0, 0, 0, 0, 0, 0, 2}))), (Numbers{14}));
  EXPECT_EQ(Read(max_pool3d(x)), (Numbers{7}));
  EXPECT_EQ(Read(avg_pool3d(x)), (Numbers{3.5}));
  EXPECT_EQ(Read(conv3d_transpose(Floats({1, 2, 1, 1, 1}, {1, 10}), Floats({1, 3, 1, 1, 1}, {1, 2, 3}))),
            (Numbers{1, 12, 23, 30}));
  Tensor picture = Counted({1, 2, 3, 1});
  EXPECT_EQ(Read(unfold(picture, WindowOptions{})), (Numbers{0, 1, 3, 4, 1, 2, 4, 5}));
  EXPECT_EQ(Read(fold(unfold(picture, WindowOptions{}), 2, 3, WindowOptions{})), (Numbers{0, 2, 2, 3, 8, 5}));
  Tensor grid = Floats({1, 1, 3, 2}, {0, 0, -1, -1, 1, 3});
  EXPECT_EQ(Read(grid_sample(picture, grid, {.align_corners = true})), (Numbers{2.5, 0, 0}));
  EXPECT_EQ(Read(grid_sample(picture, grid, {.border = true, .align_corners = true})), (Numbers{2.5, 0, 5}));
}

TEST_F(Composed, Transforms) {
  ExpectNear(Read(fft(Floats({2, 2}, {1, 2, 3, -4}))), {4, -2, -2, 6});
  ExpectNear(Read(rfft(Floats({4}, {1, 0, 0, 0}))), {1, 0, 1, 0, 1, 0});
  Tensor x = Counted({130});
  ExpectNear(Read(irfft(rfft(x))), Read(x), 1e-4);
  ExpectNear(Gradient(irfft(rfft(x)), x), Numbers(130, 1), 1e-5);
}

// The gradient of a number made of a first gradient, beside differences of it.
TEST_F(Composed, SecondGradients) {
  using Function = std::function<Tensor(Tensor)>;
  Tensor ids = Ids({6}, {0, 2, 2, 1, 0, 2});
  const std::vector<std::pair<const char*, Function>> functions = {
      {"cholesky",
       [](Tensor x) {
         return cholesky(reshape(x, {2, 3, 3}), 4);
       }},
      {"triangular_solve",
       [](Tensor x) {
         Tensor y = reshape(x, {2, 3, 3});
         return triangular_solve(y + 2, flip(y, {1}), {.upper = true});
       }},
      {"solve",
       [](Tensor x) {
         Tensor y = reshape(x, {2, 3, 3});
         return solve(y, flip(y, {1}), 4);
       }},
      {"qr",
       [](Tensor x) {
         return qr(reshape(x, {6, 3})).r;
       }},
      {"q",
       [](Tensor x) {
         return qr(reshape(x, {6, 3})).q;
       }},
      {"index_max",
       [&](Tensor x) {
         Tensor y = reshape(x, {6, 3});
         return index_max(full(y, {3, 3}, -5), 0, ids, y * y * y);
       }},
      {"segment_softmax",
       [&](Tensor x) {
         return segment_softmax(reshape(x, {6, 3}), ids, 3);
       }},
      {"grid_sample",
       [](Tensor x) {
         return grid_sample(reshape(x, {1, 3, 3, 2}), tanh(reshape(slice(x, 0, 0, 8), {1, 2, 2, 2})) * 0.9);
       }},
      {"fft",
       [](Tensor x) {
         return square(fft(reshape(x, {9, 2})));
       }},
      {"focal_loss",
       [](Tensor x) {
         return focal_loss(reshape(x, {6, 3}), argmax(reshape(x, {6, 3})));
       }},
  };
  for (const auto& [name, function] : functions) {
    SCOPED_TRACE(name);
    const auto slope = [&](Tensor x) {  // of the sum of results times 1, 2, 3, ..., along 1, -1, 1, ...
      Tensor y = function(x), flat = reshape(y, {-1});
      Tensor dx = Backward(&tape_, mul(flat, arange_like(flat) * 0.1 + 0.3), {x})[0];
      return sum(mul(square(dx), arange_like(dx) * 0.2 - 1));
    };
    Numbers values;
    for (int i = 0; i < 18; ++i) values.push_back(std::sin(1.7 * i * i + 0.4));
    Tensor x = Floats({18}, values);
    const Numbers gradient = Gradient(slope(x), x);
    for (size_t i = 0; i < values.size(); i += 3) {
      const auto moved = [&](double by) {
        Numbers other = values;
        other[i] += by;
        return Read(slope(Floats({18}, other)))[0];
      };
      const double step = 0x1p-8, want = (moved(step) - moved(-step)) / (2 * step);
      EXPECT_NEAR(gradient[i], want, 2e-2 * (1 + std::abs(want))) << "element " << i;
    }
  }
}

// Results and gradients of operands of 16 bits have their type, and are those of fp32 but for rounding.
TEST_F(Composed, SixteenBits) {
  Tensor ids = Ids({6}, {0, 2, 2, 1, 0, 2}), pair = Ids({2}, {1, 2}), full_length = Ids({2}, {3, 3});
  const auto cube = [](Tensor x) { return reshape(x, {2, 3, 3}); };
  const std::vector<std::pair<const char*, std::function<Tensor(Tensor)>>> functions = {
      {"index_max",
       [&](Tensor x) {
         return index_max(full(x, {3, 3}, -5), 0, ids, reshape(x, {6, 3}));
       }},
      {"scatter_min", [&](Tensor x) { return scatter_min(full(x, {4}, 1), 0, ids, slice(x, 0, 0, 6)); }},
      {"segment_softmax",
       [&](Tensor x) {
         return segment_softmax(reshape(x, {6, 3}), ids, 3);
       }},
      {"sigmoid_focal_loss", [](Tensor x) { return sigmoid_focal_loss(x, abs(x)); }},
      {"focal_loss",
       [&](Tensor x) {
         return focal_loss(reshape(x, {6, 3}), ids);
       }},
      {"ctc_loss",
       [&](Tensor x) {
         return ctc_loss(log_softmax(cube(x)), Ids({2, 2}, {1, 2, 1, 1}), full_length, pair);
       }},
      {"triplet_margin_loss",
       [&](Tensor x) { return triplet_margin_loss(cube(x), cube(x) * 2, flip(cube(x), {2})); }},
      {"conv3d",
       [](Tensor x) {
         return conv3d(reshape(x, {1, 3, 3, 2, 1}), reshape(slice(x, 0, 0, 8), {1, 2, 2, 2, 1}));
       }},
      {"avg_pool3d",
       [](Tensor x) {
         return avg_pool3d(reshape(x, {1, 3, 3, 2, 1}));
       }},
      {"max_pool3d",
       [](Tensor x) {
         return max_pool3d(reshape(x, {1, 3, 3, 2, 1}));
       }},
      {"fold",
       [](Tensor x) {
         return square(fold(unfold(reshape(x, {1, 3, 3, 2}), WindowOptions{}), 3, 3, WindowOptions{}));
       }},
      {"grid_sample",
       [](Tensor x) {
         return grid_sample(reshape(x, {1, 3, 3, 2}), reshape(slice(x, 0, 0, 8), {1, 2, 2, 2}));
       }},
      {"fft",
       [](Tensor x) {
         return irfft(rfft(x) * 0.5) + reshape(fft(reshape(x, {9, 2})), {18});
       }},
      {"cholesky", [&](Tensor x) { return cholesky(cube(x), 4); }},
      {"triangular_solve", [&](Tensor x) { return triangular_solve(cube(x) + 2, cube(x)); }},
      {"solve", [&](Tensor x) { return solve(cube(x), cube(x) * cube(x), 4); }},
      {"qr",
       [](Tensor x) {
         return concat({qr(reshape(x, {6, 3})).q, qr(reshape(x, {6, 3})).r}, 0);
       }},
  };
  Numbers values;  // that both types hold
  for (int i = 0; i < 18; ++i) values.push_back(std::round(128 * std::sin(1.7 * i * i + 0.4)) / 128);
  for (const auto& [name, function] : functions) {
    for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      SCOPED_TRACE(Cat(name, " in ", Name(dtype)));
      std::vector<Numbers> results, gradients;
      for (DType type : {DType::kFloat32, dtype}) {
        Tensor x = Give(&tape_, {18}, values, type), y = function(x);
        if (y.dtype() != DType::kFloat32) {
          EXPECT_EQ(y.dtype(), type);
          y = cast(y, DType::kFloat32);
        }
        Tensor flat = reshape(y, {-1});
        Tensor dx = Backward(&tape_, flat * (arange_like(flat) * 0.125 + 0.25), {x})[0];
        EXPECT_EQ(dx.dtype(), type);
        results.push_back(Read(y)), gradients.push_back(Read(dx));
      }
      for (const auto* two : {&results, &gradients}) {
        double scale = 0.5;
        for (double number : (*two)[0]) scale = std::max(scale, std::abs(number));
        ExpectNear((*two)[1], (*two)[0], (dtype == DType::kBFloat16 ? 4e-2 : 5e-3) * scale);
      }
    }
  }
}

TEST_F(Composed, Biases) {
  Tensor a = alibi(&tape_, 2, 1, 3);
  EXPECT_EQ(Read(a), (Numbers{-2 / 16., -1 / 16., 0, -2 / 256., -1 / 256., 0}));
  // Distances 9 to 0 behind the query: 0 and 1 have a bucket each, 2 and 3 share one, and so do all others.
  EXPECT_EQ(Read(relative_buckets(&tape_, 1, 10, {.buckets = 4, .max_distance = 8, .bidirectional = false})),
            (Numbers{3, 3, 3, 3, 3, 3, 2, 2, 1, 0}));
  EXPECT_EQ(Read(relative_places(&tape_, 1, 2)), (Numbers{1, 0, 2, 1}));
}

#define TOLD(text, call) \
  EXPECT_NE(ErrorOf([&] { (void)(call); }).find(text), std::string::npos) << ErrorOf([&] { (void)(call); })

TEST_F(Composed, WrongUsesAreTold) {
  Tensor x = Counted({2, 4}), ids = Ids({2}, {0, 1});
  TOLD("take at composed_test.cc", take(x, 1, {4}));
  TOLD("place 0 is 4 but axis 1 has 4 elements", take(x, 1, {4}));
  TOLD("begin is [2] but must be one number", dynamic_slice(x, 1, ids, 2));
  TOLD("extent is 5 but axis 1 of x has 4", dynamic_slice(x, 1, Ids({}, {0}), 5));
  TOLD("src has 3 elements along axis 1 and is to begin at 2, but x has 4",
       slice_scatter(x, 1, 2, Counted({2, 3})));
  TOLD("they may differ along axis 1 alone", slice_scatter(x, 1, 2, Counted({3, 1})));
  TOLD("low is 3 but high is 3", randint(&tape_, {2}, 3, 3));
  TOLD("more than 2^24 numbers", randint(&tape_, {2}, 0, 1 << 25));
  TOLD("u8 does not hold all numbers", randint(&tape_, {2}, -1, 3, DType::kUInt8));
  TOLD("size is -1 but must be at least 0", nonzero(Flags({2}, {0, 1}), -1));
  TOLD("q is 1.5", quantile(x, 1.5));
  TOLD("at most 3", pad(x, {{0, 0}, {4, 0}}, {.mode = PadMode::kReflect}));
  TOLD("at most 4", pad(x, {{0, 0}, {0, 5}}, {.mode = PadMode::kCircular}));
  TOLD("elements are given for 1 axes, but x [2,4] has 2", pad(x, {{1, 1}}));
  TOLD("size is 5 but axis 1 of x has 4", unfold(x, 1, 5));
  TOLD("axis 3 of x is 8 but must be a multiple of r * r, 9", pixel_shuffle(Counted({1, 1, 1, 8}), 3));
  TOLD("r is 4294967296 but may be 2^15 at most", pixel_shuffle(Counted({1, 1, 1, 4}), int64_t{1} << 32));
  TOLD("g is [4] but must be [2]", weight_norm(x, Counted({4})));
  TOLD("src is bool but must be of a floating type, i32 or i64; cast it",
       scatter_max(x, 1, Ids({2, 1}, {0, 1}), Flags({2, 1}, {0, 1})));
  TOLD("scatter_min at composed_test.cc", scatter_min(x, 1, Floats({2, 1}, {0, 1}), x));
  TOLD("src is [3,4] but must be [2,4], as x [2,4] with the axes of ids [2] in place of axis 0",
       index_max(x, 0, ids, Counted({3, 4})));
  TOLD("ids is [2] but must have the axes of x [2,4] before axis 1, and one of indices",
       batched_take(x, ids, 1));
  TOLD("ids is [2] but must be [4], as axis 1 of x [2,4]", segment_softmax(x, ids, 3, 1));
  TOLD("index 5 is outside [0, 2)", index_max(x, 0, Ids({2}, {0, 5}), x));
  Tensor log_probs = Counted({2, 3, 4}), spelt = Ids({2, 2}, {1, 2, 3, 1});
  TOLD("blank is 4 but log_probs [2,3,4] has the classes [0, 4)",
       ctc_loss(log_probs, spelt, ids, ids, {.blank = 4}));
  TOLD("input length 4 is outside [0, 3]", ctc_loss(log_probs, spelt, Ids({2}, {1, 4}), ids));
  TOLD("target length 3 is outside [0, 2]", ctc_loss(log_probs, spelt, ids, Ids({2}, {3, 0})));
  TOLD("target 3 is the blank", ctc_loss(log_probs, spelt, ids, Ids({2}, {2, 1}), {.blank = 3}));
  TOLD("class_weights is [2] but must be [4]", focal_loss(x, ids, {.class_weights = Counted({2})}));
  TOLD("gamma is -1", focal_loss(x, ids, {.gamma = -1}));
  TOLD("anchor is f32 but positive is bf16", triplet_margin_loss(x, cast(x, DType::kBFloat16), x));
  Tensor volume = Counted({1, 3, 4, 4, 2});
  TOLD("x has 2 channels but the filter [1,2,2,2,3] takes 3 in each of 1 group",
       conv3d(volume, Counted({1, 2, 2, 2, 3})));
  TOLD("a window covers 5 depth but x has 3",
       conv3d(volume, Counted({1, 3, 2, 2, 2}), {.dilation = {2, 1, 1}}));
  TOLD("output_padding of the depth is 2 but must be less than the stride, 2",
       conv3d_transpose(volume, Counted({2, 3, 2, 2, 1}), {.stride = {2}, .output_padding = {2, 0, 0}}));
  TOLD("its result would have a depth of 0, since 2 are cut off on both sides",
       conv3d_transpose(slice(volume, 1, 0, 2), Counted({2, 3, 4, 4, 1}), {.padding = {2, 0, 0}}));
  TOLD("stride has 2 numbers but must have 1 or 3", max_pool3d(volume, {.stride = {1, 2}}));
  TOLD("padding of the depth is 2 but may be half of the kernel's 2 at most",
       avg_pool3d(volume, {.kernel = {2, 4, 4}, .padding = {2}}));
  Tensor plane = Counted({1, 3, 4, 2});
  TOLD("a window covers 5 columns but x has 4", unfold(plane, WindowOptions{.kernel = {1, 5}}));
  TOLD("y is [1,3,4,2] but there are 2 x 3 windows, and its last axis must be a multiple of their 4 elements",
       fold(plane, 3, 4, WindowOptions{}));
  TOLD("grid is [1,3,4,2] but must be [2 p q 2], with the batch of x [2,3,4,2]",
       grid_sample(Counted({2, 3, 4, 2}), plane));
  TOLD("x is [2,4] but must have a last axis of 2", fft(x));
  TOLD("axis 1 does not exist, x [4,2] has 1 axis before that of real and imaginary part",
       ifft(Counted({4, 2}), 1));
  TOLD("whose prime factor 4099 is above 2048; pad it", rfft(Counted({4099})));
  TOLD("axis 0 of x has 4 elements but must have n / 2 + 1, 5, for n = 9", irfft(Counted({4, 2}), 0, 9));
  TOLD("a is [2,4] but must be square: it has 2 rows and 4 columns", cholesky(x));
  TOLD("pivot 1 is not above 0", cholesky(Floats({2, 2}, {1, 2, 2, 1})));
  TOLD("b is [3,2] but must have the batches and rows of a [2,2]", solve(Counted({2, 2}), Counted({3, 2})));
  TOLD("a matrix is singular: column 1 has no pivot", solve(Floats({2, 2}, {1, 2, 2, 4}), Counted({2, 1})));
  TOLD("must have at least as many rows, 2, as columns, 4", qr(x));
  TOLD("a window of 65 x 64 elements has more than 4096", relative_places(&tape_, 65, 64));
  TOLD("rows is 0 but must be at least 1", relative_places(&tape_, 0, 4));
  TOLD("max_distance is 2 but must be at least 5",
       relative_buckets(&tape_, 2, 2, {.buckets = 16, .max_distance = 2}));
}

}  // namespace
}  // namespace oneflow_like::oracle
