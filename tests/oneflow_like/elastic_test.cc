// What --elastic makes of a job that has lost processes: mesh, processes and micro-batches.
#include "oneflow_like/job/elastic.h"

#include <gtest/gtest.h>

#include "sbp/mesh.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

// "cpu:dp=2,tp=2 on 4, micro_batches 2".
std::string Left(const JobShape& whole, int left, int64_t batch, const std::string& axis = "dp") {
  const JobShape shape = Shrink(whole, axis, left, batch);
  return Cat(shape.mesh, " on ", shape.processes, ", micro_batches ", shape.micro_batches);
}

TEST(Elastic, TakesTheLargestExtentThatFits) {
  const JobShape four = {"cpu:dp=4", 4, 1};
  EXPECT_EQ(Left(four, 3, 12), "cpu:dp=3 on 3, micro_batches 2");  // 12 / 4 = 3 before, so 2 now and not 4
  EXPECT_EQ(Left(four, 3, 8), "cpu:dp=2 on 2, micro_batches 2");
  EXPECT_EQ(Left(four, 2, 8), "cpu:dp=2 on 2, micro_batches 2");
  EXPECT_EQ(Left(four, 1, 8), "cpu:dp=1 on 1, micro_batches 4");
  EXPECT_EQ(Left({"cpu:dp=4", 4, 0}, 3, 0), "cpu:dp=3 on 3, micro_batches 0");
  EXPECT_EQ(Left({"cpu:dp=4", 4, 3}, 3, 0), "cpu:dp=3 on 3, micro_batches 4");
}

TEST(Elastic, GivesAProcessNoMoreDevicesThanItHad) {
  const JobShape pairs = {"cpu:dp=4,tp=2", 4, 1};
  EXPECT_EQ(Left(pairs, 3, 24), "cpu:dp=3,tp=2 on 3, micro_batches 2");
  EXPECT_EQ(Left(pairs, 3, 8), "cpu:dp=2,tp=2 on 2, micro_batches 2");
  const JobShape spread = {"cpu:dp=2,tp=4", 8, 2};
  for (int left : {7, 6, 5, 4}) EXPECT_EQ(Left(spread, left, 16), "cpu:dp=1,tp=4 on 4, micro_batches 4");
  EXPECT_NE(ErrorOf([&] { Left(spread, 3, 16); }).find("3 of 8 processes are left, too few"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&] { Left(spread, 0, 16); }).find("0 of 8 processes are left"), std::string::npos);
}

// Over all small jobs: what is left is legal, and a device works on no more of the batch at a time.
TEST(Elastic, KeepsTheShareOfADevice) {
  for (int dp = 2; dp <= 6; ++dp)
    for (int tp = 1; tp <= 3; ++tp)
      for (int processes = 2; processes <= dp * tp; ++processes)
        for (int64_t batch : {4, 6, 12, 60})
          for (int64_t micro = 1; micro <= 4; ++micro) {
            if (dp * tp % processes != 0) continue;
            const JobShape whole = {Cat("cpu:dp=", dp, ",tp=", tp), processes, micro};
            for (int left = processes - 1; left >= 1; --left) {
              if (left * (dp * tp / processes) < tp) continue;  // too few
              JobShape shape;
              const std::string error = ErrorOf([&] { shape = Shrink(whole, "dp", left, batch); });
              if (!error.empty()) continue;  // none shares the devices equally
              SCOPED_TRACE(Cat(whole.mesh, " on ", processes, ", micro ", micro, ", batch ", batch, ", left ",
                               left, " -> ", shape.mesh, " on ", shape.processes, ", ", shape.micro_batches));
              const Mesh mesh = Mesh::Parse(shape.mesh);
              const int now = mesh.axis_size(0);
              EXPECT_LT(now, dp);
              EXPECT_EQ(mesh.axis_size(1), tp);
              EXPECT_LE(shape.processes, left);
              EXPECT_EQ(mesh.size() % shape.processes, 0);
              EXPECT_LE(mesh.size() / shape.processes, dp * tp / processes);
              EXPECT_EQ(batch % (now * shape.micro_batches), 0);
              const int64_t before = (batch + micro * dp - 1) / (micro * dp);
              EXPECT_LE(batch / (now * shape.micro_batches), before);
            }
          }
}

TEST(Elastic, WhatCannotShrinkIsRefused) {
  auto refused = [](const JobShape& whole, const std::string& axis) {
    return ErrorOf([&] { CheckElastic(whole, axis); });
  };
  EXPECT_EQ(refused({"cpu:dp=4", 2}, "dp"), "");
  EXPECT_NE(refused({"cpu:dp=4", 2}, "xp").find("no axis 'xp'"), std::string::npos);
  EXPECT_NE(refused({"cpu:dp=4,tp=1", 2}, "tp").find("no axis 'tp'"), std::string::npos);
  EXPECT_NE(refused({"cpu:dp=4", 1}, "dp").find("--processes"), std::string::npos);
}

}  // namespace
}  // namespace oneflow_like
