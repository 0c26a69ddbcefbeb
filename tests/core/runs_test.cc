// Boxes cut into runs: every element once, in the order of the piece, and no run with a gap in the piece.
#include "core/boxes/runs.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/random.h"

namespace oneflow_like {
namespace {

// Numbers of a box's elements in the piece that holds it, in row-major order.
std::vector<int64_t> Places(const Box& box, const Box& piece) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < box.elements(); ++i) {
    int64_t rest = i, place = 0, stride = 1;
    for (int a = box.extent.rank() - 1; a >= 0; --a) {
      place += (box.begin[a] + rest % box.extent[a] - piece.begin[a]) * stride;
      rest /= box.extent[a];
      stride *= piece.extent[a];
    }
    places.push_back(place);
  }
  return places;
}

TEST(Runs, CoverABoxWithoutGaps) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    auto draw = [&, k = uint64_t{0}](uint64_t n) mutable {
      return static_cast<int64_t>(RandomBits(seed, 0, k++) % n);
    };
    Box piece, box;
    for (int64_t a = draw(5); a > 0; --a) {
      piece.begin.push_back(draw(4));
      piece.extent.push_back(1 + draw(5));
      const int64_t skip = draw(2) == 0 ? 0 : draw(piece.extent.back());
      box.begin.push_back(piece.begin.back() + skip);
      box.extent.push_back(draw(2) == 0 ? piece.extent.back() - skip : 1 + draw(piece.extent.back() - skip));
    }
    const int64_t most = 1 + draw(40);
    std::vector<int64_t> places;
    ForEachRun(box, piece, most, [&](const Box& run) {
      ASSERT_LE(run.elements(), most);
      const std::vector<int64_t> of_run = Places(run, piece);
      ASSERT_EQ(OffsetIn(piece, run, DType::kInt32), 4 * of_run[0]);
      for (size_t i = 1; i < of_run.size(); ++i) ASSERT_EQ(of_run[i], of_run[i - 1] + 1) << run.str() << seed;
      places.insert(places.end(), of_run.begin(), of_run.end());
    });
    EXPECT_EQ(places, Places(box, piece)) << box.str() << " of " << piece.str() << " seed " << seed;
  }
  int runs = 0;
  ForEachRun(Box::Whole({3, 0}), Box::Whole({3, 0}), 10, [&](const Box&) { ++runs; });
  EXPECT_EQ(runs, 0);
}

}  // namespace
}  // namespace oneflow_like
