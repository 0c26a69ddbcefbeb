// Pragmas for the loop that follows, in each compiler's words, and loops that are unrolled in full.
#pragma once

#include <type_traits>
#include <utility>

#define OFL_PRAGMA(words) _Pragma(#words)

#ifdef __clang__
// Its iterations do not depend on one another.
#define OFL_INDEPENDENT OFL_PRAGMA(clang loop vectorize(assume_safety))
#define OFL_UNROLL(times) OFL_PRAGMA(clang loop unroll_count(times))
#else
#define OFL_INDEPENDENT OFL_PRAGMA(GCC ivdep)
#define OFL_UNROLL(times) OFL_PRAGMA(GCC unroll times)
#endif

namespace oneflow_like::cpu {

// Calls f(0), ..., f(N - 1) with constants: arrays that it indexes by them stay in registers.
template <int N, typename F>
[[gnu::always_inline]] inline void Unrolled(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, I>()), ...);
  }
  (std::make_integer_sequence<int, N>());
}

}  // namespace oneflow_like::cpu
