// Lines of entries sorted on the device, for the kernels that need an order.
#pragma once

#include "ops/cuda/kernel.h"
#include "ops/cuda/launch.h"

namespace oneflow_like::cuda {

// A key that rises with the order, and the place it came from. Places of a line differ, so the order is
// total, and elements of one key keep theirs.
struct alignas(16) SortEntry {
  uint64_t key;
  int64_t place;
};

// Enqueues the sort of each of `lines` lines of n entries, which follow each other in `entries`; their first
// k are then in order. `room` has space for as many. Returns which of the two holds them.
const SortEntry* SortLines(SortEntry* entries, SortEntry* room, int64_t lines, int64_t n, int64_t k,
                           const LaunchContext& launch);

// Keys of integers and of floating numbers: -0 is 0, a NaN greater than all.
OFL_DEVICE uint64_t SortKey(int64_t value) { return static_cast<uint64_t>(value) ^ (uint64_t{1} << 63); }
OFL_DEVICE uint64_t SortKey(float value) {
  if (value != value) return ~uint64_t{0};
  uint32_t bits = __float_as_uint(value == 0.0f ? 0.0f : value);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

}  // namespace oneflow_like::cuda
