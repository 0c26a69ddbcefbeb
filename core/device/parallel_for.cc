// The parallel loop on OpenMP. Every thread that enters a parallel region owns a team, which the OpenMP
// library keeps between regions, so a loop costs no thread creation.
#include "core/device/parallel_for.h"

#include <glog/logging.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "core/system/cores.h"
#include "core/system/spinning.h"

namespace oneflow_like {
namespace {

void FlushDenormalsOfThisThread() {
#if defined(__SSE2__)
  constexpr unsigned kFlushResults = 0x8000, kFlushOperands = 0x0040;
  _mm_setcsr(_mm_getcsr() | kFlushResults | kFlushOperands);
#elif defined(__aarch64__)
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" : : "r"(control | (uint64_t{1} << 24)));
#endif
}

// Whether SetParallelThreads has given this thread a team. OpenMP's library would use all cores of the
// machine, whatever a container has of them.
thread_local bool has_team = false;

}  // namespace

int ParallelThreads() {
  return has_team ? omp_get_max_threads() : std::min(omp_get_max_threads(), UsableCores());
}

void SetParallelThreads(int threads) {
  CHECK_GE(threads, 1);
  if (threads > 1) WatchSpinning();
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
  has_team = true;
  // The environment may allow fewer (OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS). The matmul library divides its
  // work by the number asked for and leaves the shares of threads that it did not get undone.
  int granted = 1;
#pragma omp parallel
#pragma omp master
  granted = omp_get_num_threads();
  omp_set_num_threads(granted);
}

TeamSize::TeamSize(int threads) : before_(omp_get_max_threads()), had_team_(std::exchange(has_team, true)) {
  if (threads != before_) omp_set_num_threads(threads);
}
TeamSize::~TeamSize() {
  if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
  has_team = had_team_;
}

void ParallelForRanges(int64_t n, int64_t grain, int most, RangeBody body, void* closure) {
  if (n <= 0) return;
  int64_t team = omp_in_parallel() ? 1 : std::min(most, ParallelThreads());
  int64_t length = std::max({(n + team - 1) / team, grain, int64_t{1}});
  if (length >= n) {
    body(closure, 0, n, 0);
    return;
  }
  int64_t ranges = (n + length - 1) / length;
  // Dealt by hand: for a loop of its own LLVM's OpenMP allocates memory each time.
#pragma omp parallel num_threads(static_cast <int>(ranges))
  for (int64_t i = omp_get_thread_num(), stride = omp_get_num_threads(); i < ranges; i += stride)
    body(closure, i * length, std::min(n, (i + 1) * length), static_cast<int>(i));
}

void FlushDenormals() {
  FlushDenormalsOfThisThread();
  if (omp_in_parallel()) return;
#pragma omp parallel
  FlushDenormalsOfThisThread();
}

}  // namespace oneflow_like
