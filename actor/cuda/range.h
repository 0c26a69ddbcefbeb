// A named range in the timeline of a profiler (NVTX), for the lifetime of the object. Without the toolkit's
// headers it does nothing; with them and without a profiler it costs a test of a pointer.
#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define OFL_HAVE_NVTX 1
#else
#define OFL_HAVE_NVTX 0
#endif

namespace oneflow_like::cuda {

class Range {
 public:
#if OFL_HAVE_NVTX
  explicit Range(const char* name) { nvtxRangePushA(name); }
  ~Range() { nvtxRangePop(); }
#else
  explicit Range(const char*) {}
  ~Range() {}
#endif
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace oneflow_like::cuda
