// A parallel loop over [0, n) on the thread pool of the matmul library (OpenMP). Each runtime thread has a
// team of its own.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

namespace oneflow_like {

// Calls body(begin, end) on disjoint ranges that cover [0, n), each at least `grain` long but the last.
// Ranges are a function of n, grain and the team size alone, `most` of them at most. Runs in the caller's
// thread when one range suffices. The body must not throw. Nothing is allocated.
using RangeBody = void (*)(void* closure, int64_t begin, int64_t end, int range);
void ParallelForRanges(int64_t n, int64_t grain, int most, RangeBody body, void* closure);

template <typename F>
void ParallelFor(int64_t n, int64_t grain, F&& f) {
  ParallelForRanges(
      n, grain, std::numeric_limits<int>::max(),
      [](void* c, int64_t b, int64_t e, int) { (*static_cast<std::remove_reference_t<F>*>(c))(b, e); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

// The same on at most `most` threads: f(begin, end, range), where `range` is below `most` and another one for
// each call, so that each may have a piece of memory of its own.
template <typename F>
void ParallelForParts(int64_t n, int64_t grain, int most, F&& f) {
  ParallelForRanges(
      n, grain, most,
      [](void* c, int64_t b, int64_t e, int range) {
        (*static_cast<std::remove_reference_t<F>*>(c))(b, e, range);
      },
      const_cast<void*>(static_cast<const void*>(&f)));
}

int ParallelThreads();  // team size of the calling thread; UsableCores() at most, until it is set
// Sets the team size of the calling thread; >= 1. The environment may limit it further (OMP_THREAD_LIMIT).
// core/system/spinning.h decides how long threads spin between loops.
void SetParallelThreads(int threads);

// While it lives, the calling thread's loops, and libraries that it calls, use `threads` threads. REQUIRES:
// no more than SetParallelThreads has given the thread that will run them.
class TeamSize {
 public:
  explicit TeamSize(int threads);
  ~TeamSize();
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  const int before_;
  const bool had_team_;
};

// Flushes denormals to zero on the calling thread and its team: a denormal costs a hundred times a normal
// number.
void FlushDenormals();

}  // namespace oneflow_like
