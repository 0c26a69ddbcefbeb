// A parallel loop over [0, n) on the thread pool of the matmul library (OpenMP). Each runtime thread has a
// team of its own.
#pragma once

#include <cstdint>
#include <type_traits>

namespace oneflow_like {

// Calls body(begin, end) on disjoint ranges that cover [0, n), each at least `grain` long but the last.
// Ranges are a function of n, grain and the team size alone. Runs in the caller's thread when one range
// suffices. The body must not throw. Nothing is allocated.
void ParallelForRanges(int64_t n, int64_t grain, void (*body)(void* closure, int64_t begin, int64_t end),
                       void* closure);

template <typename F>
void ParallelFor(int64_t n, int64_t grain, F&& f) {
  ParallelForRanges(
      n, grain, [](void* c, int64_t b, int64_t e) { (*static_cast<std::remove_reference_t<F>*>(c))(b, e); },
      &f);
}

int ParallelThreads();  // team size of the calling thread; UsableCores() at most, until it is set
// Sets the team size of the calling thread; >= 1. The environment may limit it further (OMP_THREAD_LIMIT).
// core/system/spinning.h decides how long threads spin between loops.
void SetParallelThreads(int threads);

// Flushes denormals to zero on the calling thread and its team: a denormal costs a hundred times a normal
// number.
void FlushDenormals();

}  // namespace oneflow_like
