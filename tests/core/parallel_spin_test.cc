// Threads of kernels that wait for work leave the cores to others, without anything in the environment.
#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "core/parallel_for.h"

namespace oneflow_like {
namespace {

double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Processor time, not time: whatever else runs on the machine makes it no more.
TEST(ParallelSpin, WaitingCostsNoProcessorTime) {
  SetParallelThreads(2);
  std::atomic<int64_t> sum{0};
  auto region = [&] { ParallelFor(2, 1, [&](int64_t begin, int64_t end) { sum += end - begin; }); };
  region();
  const double cpu = Seconds(CLOCK_PROCESS_CPUTIME_ID), time = Seconds(CLOCK_MONOTONIC);
  for (int i = 0; i < 50; ++i) {
    region();
    usleep(10'000);
  }
  const double used = Seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu, waited = Seconds(CLOCK_MONOTONIC) - time;
  EXPECT_EQ(sum, 2 * 51);
  EXPECT_LT(used, 0.1 * waited) << "of " << waited << " s of waiting";
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  // As users have it: the OpenMP library reads these before main().
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) {
    unsetenv("OMP_WAIT_POLICY");
    unsetenv("GOMP_SPINCOUNT");
    execv("/proc/self/exe", argv);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
