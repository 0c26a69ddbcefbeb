// What a compiler is told about the loop that follows, in its own words.
#pragma once

#define OFL_PRAGMA(words) _Pragma(#words)

#ifdef __clang__
// Its iterations do not depend on one another.
#define OFL_INDEPENDENT OFL_PRAGMA(clang loop vectorize(assume_safety))
#define OFL_UNROLL(times) OFL_PRAGMA(clang loop unroll_count(times))
#else
#define OFL_INDEPENDENT OFL_PRAGMA(GCC ivdep)
#define OFL_UNROLL(times) OFL_PRAGMA(GCC unroll times)
#endif
