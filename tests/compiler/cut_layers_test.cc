// Stages cut by time are as good as the best of all cuts.
#include "compiler/search/cut_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/random.h"

namespace oneflow_like {
namespace {

double Longest(const std::vector<double>& seconds, double before, double after,
               const std::vector<int64_t>& cut) {
  double longest = 0;
  size_t at = 0;
  for (size_t s = 0; s < cut.size(); ++s) {
    double stage = (s == 0 ? before : 0) + (s + 1 == cut.size() ? after : 0);
    for (int64_t i = 0; i < cut[s]; ++i) stage += seconds[at++];
    longest = std::max(longest, stage);
  }
  return longest;
}

// Of cuts with at most so many blocks on each stage; 1e300 where there is none.
double BestOfAll(const std::vector<double>& seconds, double before, double after, int stages,
                 const std::vector<int64_t>& most) {
  double best = 1e300;
  std::vector<int64_t> cut;
  std::function<void(int64_t)> extend = [&](int64_t left) {
    const int more = stages - static_cast<int>(cut.size());
    const int64_t room = most[cut.size()];
    if (more == 1) {
      if (left > room) return;
      cut.push_back(left);
      best = std::min(best, Longest(seconds, before, after, cut));
      cut.pop_back();
      return;
    }
    for (int64_t here = 1; here <= std::min(room, left - (more - 1)); ++here) {
      cut.push_back(here);
      extend(left - here);
      cut.pop_back();
    }
  };
  extend(static_cast<int64_t>(seconds.size()));
  return best;
}

TEST(CutLayers, IsAsGoodAsTheBestOfAll) {
  int impossible = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    auto draw = [&, count = 0](int limit) mutable { return RandomBits(seed, 5, count++) % limit; };
    const int blocks = 1 + draw(12), stages = 1 + draw(blocks);
    std::vector<double> seconds;
    const bool alike = draw(2) == 0;
    for (int i = 0; i < blocks; ++i) seconds.push_back(alike ? 10 : draw(20));
    const double before = draw(30), after = draw(60);
    std::vector<int64_t> most(stages, blocks);
    const bool bounded = draw(2) == 0;
    for (int64_t& room : most) room = bounded ? 1 + draw(blocks) : room;
    const std::vector<int64_t> cut =
        CutLayers(seconds, before, after, stages, bounded ? most : std::vector<int64_t>());
    const double best = BestOfAll(seconds, before, after, stages, most);
    impossible += cut.empty();
    ASSERT_EQ(cut.empty(), best == 1e300) << "seed " << seed;
    if (cut.empty()) continue;
    ASSERT_EQ(static_cast<int>(cut.size()), stages) << "seed " << seed;
    EXPECT_EQ(std::accumulate(cut.begin(), cut.end(), int64_t{0}), blocks) << "seed " << seed;
    for (int s = 0; s < stages; ++s) {
      EXPECT_GE(cut[s], 1) << "seed " << seed;
      EXPECT_LE(cut[s], most[s]) << "seed " << seed;
    }
    EXPECT_NEAR(Longest(seconds, before, after, cut), best, 1e-9) << "seed " << seed;
  }
  EXPECT_GT(impossible, 10);
  EXPECT_LT(impossible, 200);
}

TEST(CutLayers, IsEvenWhereTheLongestStageLeavesAChoice) {
  EXPECT_EQ(CutLayers(std::vector<double>(8, 1), 0, 0, 4), (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(CutLayers(std::vector<double>(9, 1), 0, 5, 3), (std::vector<int64_t>{4, 4, 1}));
}

}  // namespace
}  // namespace oneflow_like
