// Products by panels on AMX's tiles: against sums in double, on PlainTiles and on the processor's own
// instructions (emulated where it has none), whole and with tails, in place and apart, in little scratch, and
// with the same bits on any number of threads. The kernels that read matrices for them are in cpu_levels.
#include "ops/cpu/tile_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/float16.h"
#include "tests/ops/tile_emulator.h"

namespace oneflow_like::cpu {
namespace {

uint32_t PairOf(float first, float second) {
  const BFloat16 pair[2] = {ToBFloat16(first), ToBFloat16(second)};
  uint32_t bits;
  std::memcpy(&bits, pair, sizeof bits);
  return bits;
}

// Numbers that bf16 has.
std::vector<float> Drawn(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = ToFloat(ToBFloat16(normal(random)));
  return x;
}

struct Case {
  int64_t m, n, k;  // k counts pairs
  bool in_place, add, packs_left;
  int64_t bytes;  // of scratch for a thread; 0: what is fastest
};

std::string Name(const Case& c) {
  return Cat(c.m, " ", c.n, " ", c.k, c.in_place ? " in place" : "", c.add ? " added" : "",
             c.packs_left ? " packed" : "", c.bytes ? " in little scratch" : "");
}

class Left : public TiledLeft {
 public:
  Left(const Case& c, const std::vector<float>& a) : c_(c), pairs_(c.m * c.k) {
    for (int64_t i = 0; i < c.m * c.k; ++i) pairs_[i] = PairOf(a[2 * i], a[2 * i + 1]);
  }
  bool packs() const override { return c_.packs_left; }
  LeftTiles Read(int64_t m, int64_t rows, int64_t k, int64_t depth, float* room) const override {
    EXPECT_TRUE(m >= 0 && rows > 0 && m + rows <= c_.m && k >= 0 && depth > 0 && k + depth <= c_.k);
    if (!c_.packs_left && rows % 16 == 0 && depth % 16 == 0)
      return {reinterpret_cast<const char*>(&pairs_[m * c_.k + k]), 4 * c_.k, 64, 64 * c_.k};
    const int64_t pitch = UpTo16(depth);
    for (int64_t i = 0; i < UpTo16(rows); ++i)
      for (int64_t j = 0; j < pitch; ++j) {
        const uint32_t pair = i < rows && j < depth ? pairs_[(m + i) * c_.k + k + j] : 0;
        float* to = room + i / 16 * 16 * pitch + j / 16 * 256 + i % 16 * 16 + j % 16;
        std::memcpy(to, &pair, sizeof pair);
      }
    return {reinterpret_cast<const char*>(room), 64, 1024, 64 * pitch};
  }

 private:
  const Case& c_;
  std::vector<uint32_t> pairs_;
};

class Right : public RightPanels {
 public:
  Right(const Case& c, const std::vector<float>& b) : c_(c), b_(b) {}
  PanelBlock Read(int64_t k, int64_t depth, int64_t n, int64_t columns, float* room) const override {
    EXPECT_TRUE(k >= 0 && depth > 0 && k + depth <= c_.k && n >= 0 && columns > 0 && n + columns <= c_.n);
    const int64_t width = UpTo32(columns);
    for (int64_t i = 0; i < depth; ++i)
      for (int64_t j = 0; j < width; ++j) {
        const int64_t at = 2 * (k + i) * c_.n + n + j;
        const uint32_t pair = j < columns ? PairOf(b_[at], b_[at + c_.n]) : 0;
        std::memcpy(room + i * width + j, &pair, sizeof pair);
      }
    return {room, width, 1};
  }

 private:
  const Case& c_;
  const std::vector<float>& b_;
};

constexpr int64_t kGap = 3;  // between rows of the result

class Result : public ProductResult {
 public:
  Result(const Case& c, std::vector<float>* y) : c_(c), y_(*y) {}
  float* Row(int64_t m) const override { return y_.data() + m * row(); }
  int64_t row() const override { return c_.n + kGap; }
  void Store(int64_t m, int64_t rows, int64_t n, int64_t columns, const float* from,
             int64_t from_row) const override {
    EXPECT_FALSE(c_.in_place);
    EXPECT_TRUE(m + rows <= c_.m && n + columns <= c_.n);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        float& y = y_[(m + i) * row() + n + j];
        y = from[i * from_row + j] + (c_.add ? y : 0.0f);
      }
  }

 private:
  const Case& c_;
  std::vector<float>& y_;
};

template <typename T>
std::vector<float> Multiplied(const Case& c, const std::vector<float>& a, const std::vector<float>& b,
                              int threads) {
  std::vector<float> y(c.m * (c.n + kGap), 0.5f);
  const Left left(c, a);
  const Right right(c, b);
  const Result result(c, &y);
  const int64_t bytes = c.bytes > 0 ? c.bytes : (PanelBytes(c.m, c.n, 2 * c.k, c.in_place) + 63) / 64 * 64;
  constexpr int64_t kBehind = 16;
  std::vector<float> scratch(threads * bytes / 4 + kBehind + 16, std::nanf(""));
  char* at = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
  RunTiles<T>({c.m, c.n, c.k, 0, nullptr, &right, &result, c.in_place, c.add, true, &left}, threads, at,
              bytes);
  const float* behind = reinterpret_cast<const float*>(at + threads * bytes);
  for (int64_t i = 0; i < kBehind; ++i) EXPECT_TRUE(std::isnan(behind[i])) << "written behind the scratch";
  return y;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const bool in_place : {false, true})
    for (const bool add : {false, true})
      for (const bool packs : {false, true}) {
        cases.push_back({64, 64, 32, in_place, add, packs, 0});
        cases.push_back({130, 75, 53, in_place, add, packs, 0});
        cases.push_back({17, 530, 300, in_place, add, packs, 0});  // two blocks of columns, or none
        cases.push_back({530, 33, 290, in_place, add, packs, 0});  // two blocks of sums
        cases.push_back({20, 550, 530, in_place, add, packs, 0});  // three blocks along k
        cases.push_back({1, 1, 16, in_place, add, packs, 0});
        cases.push_back({70, 90, 530, in_place, add, packs, kLeastPanelBytes});
      }
  return cases;
}

class Emulated {
 public:
  Emulated() {
    if (!MayUseTiles() && TileEmulator::Works()) emulator_ = std::make_unique<TileEmulator>();
  }

 private:
  std::unique_ptr<TileEmulator> emulator_;
};

TEST(TileProduct, IsTheSumOfProducts) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    const std::vector<float> a = Drawn(2 * c.m * c.k, 1), b = Drawn(2 * c.n * c.k, 2);
    const std::vector<float> y = Multiplied<PlainTiles>(c, a, b, 1);
    for (int64_t i = 0; i < c.m; ++i) {
      std::vector<double> want(c.n, c.add ? 0.5 : 0.0);
      for (int64_t l = 0; l < 2 * c.k; ++l)
        for (int64_t j = 0; j < c.n; ++j) want[j] += static_cast<double>(a[i * 2 * c.k + l]) * b[l * c.n + j];
      const double tolerance = 2e-6 * std::sqrt(2.0 * c.k) * std::sqrt(2.0 * c.k);
      for (int64_t j = 0; j < c.n; ++j)
        ASSERT_NEAR(y[i * (c.n + kGap) + j], want[j], tolerance) << i << " " << j;
      for (int64_t j = c.n; j < c.n + kGap; ++j) ASSERT_EQ(y[i * (c.n + kGap) + j], 0.5f) << i;
    }
  }
}

TEST(TileProduct, ThreadsAndScratchChangeNoBit) {
  for (Case c : {Case{130, 275, 153, false, false, false, 0}, {48, 1100, 600, true, true, true, 0}}) {
    SCOPED_TRACE(Name(c));
    const std::vector<float> a = Drawn(2 * c.m * c.k, 1), b = Drawn(2 * c.n * c.k, 2);
    const std::vector<float> one = Multiplied<PlainTiles>(c, a, b, 1);
    EXPECT_EQ(Multiplied<PlainTiles>(c, a, b, 3), one);
    c.bytes = kLeastPanelBytes;
    EXPECT_EQ(Multiplied<PlainTiles>(c, a, b, 2), one);
  }
}

#if defined(OFL_AMX_INSTRUCTIONS)

TEST(TileProduct, InstructionsGiveTheSameBits) {
  const Emulated emulated;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    const std::vector<float> a = Drawn(2 * c.m * c.k, 1), b = Drawn(2 * c.n * c.k, 2);
    EXPECT_EQ(Multiplied<AmxTiles>(c, a, b, 2), Multiplied<PlainTiles>(c, a, b, 1));
  }
}

#endif

}  // namespace
}  // namespace oneflow_like::cpu
