// Which device a rank has: its own where there are enough, else neighbours share one.
#include "oneflow_like/model/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/oneflow_like/thread_job.h"

namespace oneflow_like {
namespace {

void ExpectDealtOut(const Model& model, int given) {
  const int ranks = model.mesh().size();
  std::vector<int> held(given, 0);
  int64_t before = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t device = DeviceOf(*model.impl(), rank, given);
    ASSERT_GE(device, before) << "rank " << rank << " is not beside its neighbour";
    ASSERT_LT(device, given) << "rank " << rank;
    ++held[device];
    before = device;
  }
  const auto [least, most] = std::minmax_element(held.begin(), held.end());
  if (ranks <= given) {
    EXPECT_EQ(*most, 1) << "each has its own";
  } else {
    EXPECT_LE(*most - *least, 1) << "shares are even";
  }
}

TEST(Placement, RanksThatShareADeviceAreNeighbours) {
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (int given = 1; given <= 9; ++given) {
      SCOPED_TRACE(Cat(ranks, " ranks on ", given, " devices"));
      ExpectDealtOut(Model(Mesh("cuda", {{"dp", ranks}})), given);
    }
}

TEST(Placement, ProcessesOfAHostShareItsDevices) {
  for (int processes : {2, 4}) {
    Meeting meeting(processes);
    ModelOptions options;
    options.job = std::make_shared<TestJob>(&meeting, 0, processes);
    for (int given = 1; given <= 9; ++given) {
      SCOPED_TRACE(Cat("8 ranks of ", processes, " processes on ", given, " devices"));
      ExpectDealtOut(Model(Mesh("cuda", {{"dp", 8}}), options), given);
    }
  }
}

}  // namespace
}  // namespace oneflow_like
