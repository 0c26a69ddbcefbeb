// Counts of the work of this process's streams, for profiles (core/backend.h, BackendCounts). Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace oneflow_like::cuda {

struct StreamCounts {
  std::atomic<int64_t> graph_launches{0};     // recordings that were replayed, or launched when made
  std::atomic<int64_t> lone_launches{0};      // kernels that no recording launched
  std::atomic<int64_t> failed_recordings{0};  // that were tried
  std::atomic<int64_t> graphs{0};             // recordings that exist
  std::atomic<int64_t> parts{0};              // straight lines of kernels that could be recorded, and exist
  std::atomic<int64_t> recorded_parts{0};     // of those, with at least one recording
};
StreamCounts& Counts();

}  // namespace oneflow_like::cuda
