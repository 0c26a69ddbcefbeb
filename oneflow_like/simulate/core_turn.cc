#include "oneflow_like/simulate/core_turn.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace oneflow_like {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kMeasured{250};
// Shorter gaps between two looks at the clock are interrupts.
constexpr double kShortest = 2e-4;

bool RunOnOneCore() {
  cpu_set_t allowed, one;
  if (pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed) != 0) return false;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core)
    if (CPU_ISSET(core, &allowed)) CPU_SET(core, &one);
  return pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0;
}

// The turns of the other thread.
std::vector<double> Gaps() {
  std::vector<double> gaps;
  if (!RunOnOneCore()) return gaps;
  const Clock::time_point begin = Clock::now();
  for (Clock::time_point last = begin, now; last < begin + kMeasured; last = now) {
    now = Clock::now();
    const double gap = std::chrono::duration<double>(now - last).count();
    if (gap > kShortest) gaps.push_back(gap);
  }
  return gaps;
}

}  // namespace

double MeasureCoreTurn() {
  std::vector<double> gaps[2];
  std::thread threads[2];
  for (int i : {0, 1}) threads[i] = std::thread([&gaps, i] { gaps[i] = Gaps(); });
  for (std::thread& thread : threads) thread.join();
  gaps[0].insert(gaps[0].end(), gaps[1].begin(), gaps[1].end());
  if (gaps[0].empty()) return 0;
  std::sort(gaps[0].begin(), gaps[0].end());
  return gaps[0][gaps[0].size() / 2];
}

}  // namespace oneflow_like
