// The functions of ops/language/composed.h: values worked out by hand, frequencies of draws, and what wrong
// uses are told. values_test compares the others with PyTorch's.
// ctest: seconds=3
#include "ops/language/composed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/language/expressions.h"
#include "ops/language/sparse.h"
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

TEST_F(Composed, Biases) {
  Tensor a = alibi(&tape_, 2, 1, 3);
  EXPECT_EQ(Read(a), (Numbers{-2 / 16., -1 / 16., 0, -2 / 256., -1 / 256., 0}));
  // Distances 9 to 0 behind the query: 0 and 1 have a bucket each, 2 and 3 share one, and so do all others.
  EXPECT_EQ(Read(relative_buckets(&tape_, 1, 10, {.buckets = 4, .max_distance = 8, .bidirectional = false})),
            (Numbers{3, 3, 3, 3, 3, 3, 2, 2, 1, 0}));
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
  TOLD("max_distance is 2 but must be at least 5",
       relative_buckets(&tape_, 2, 2, {.buckets = 16, .max_distance = 2}));
}

}  // namespace
}  // namespace oneflow_like::oracle
