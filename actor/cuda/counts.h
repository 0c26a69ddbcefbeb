// Counts of the work of this process's streams, for profiles (core/device/backend.h, BackendCounts).
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace oneflow_like::cuda {

struct StreamCounts {
  std::atomic<int64_t> graph_launches{0};  // recordings replayed, or launched when made
  std::atomic<int64_t> lone_launches{0};   // kernels launched without a recording
  std::atomic<int64_t> graph_nodes{0};     // launched by graph launches
  // Time that the host's threads spent launching recordings; the part of it that exceeds the shortest launch
  // of the same recording; time spent making recordings; time spent launching kernels without one.
  std::atomic<int64_t> graph_nanoseconds{0}, graph_wait_nanoseconds{0}, recording_nanoseconds{0},
      lone_nanoseconds{0};
  std::atomic<int64_t> failed_recordings{0};  // attempts that failed
  std::atomic<int64_t> graphs{0};             // existing recordings
  std::atomic<int64_t> parts{0};              // existing chains of kernels that can be recorded
  std::atomic<int64_t> recorded_parts{0};     // of those, with at least one recording
};
StreamCounts& Counts();

}  // namespace oneflow_like::cuda
