// Threads of kernels that wait for work leave the cores to others who want them, without anything in the
// environment.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <vector>

#include "core/device/parallel_for.h"

namespace oneflow_like {
namespace {

double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Programs with work for every core.
class Neighbours {
 public:
  Neighbours() {
    for (long i = 0; i < sysconf(_SC_NPROCESSORS_ONLN); ++i) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile int x = 0;;) x = x + 1;
      }
      children_.push_back(child);
    }
  }
  ~Neighbours() {
    for (pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }

 private:
  std::vector<pid_t> children_;
};

// Processor time, not time: whatever else runs on the machine makes it no more. Teams that spin between the
// loops use as much of it as the system gives them.
TEST(ParallelSpin, WaitingBesideOthersSoonCostsNoProcessorTime) {
  SetParallelThreads(2);
  std::atomic<int64_t> sum{0};
  auto region = [&] { ParallelFor(2, 1, [&](int64_t begin, int64_t end) { sum += end - begin; }); };
  const Neighbours neighbours;
  double least = 1;
  int regions = 0;
  for (int window = 0; window < 60 && least > 0.1; ++window) {
    region();
    const double cpu = Seconds(CLOCK_PROCESS_CPUTIME_ID), time = Seconds(CLOCK_MONOTONIC);
    for (int i = 0; i < 50; ++i) {
      region();
      usleep(10'000);
    }
    regions += 51;
    const double used = Seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu, waited = Seconds(CLOCK_MONOTONIC) - time;
    least = std::min(least, used / waited);
  }
  EXPECT_EQ(sum, 2 * regions);
  EXPECT_LT(least, 0.1);
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
