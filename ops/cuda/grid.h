// The size of a launch, for host code that plans one; device code is written with ops/cuda/launch.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oneflow_like::cuda {

struct Grid {
  unsigned x = 1, y = 1;  // blocks
  unsigned threads = 256;
  size_t shared = 0;  // bytes of DynamicShared
};

// Blocks of `threads` threads that a loop over `count` items with a stride of the whole grid should have:
// enough to fill the device several times over, no more. REQUIRES: threads >= 1.
inline unsigned BlocksFor(int64_t count, unsigned threads, int multiprocessors) {
  int64_t needed = (count + threads - 1) / threads, most = int64_t{multiprocessors} * 16;
  return static_cast<unsigned>(needed < 1 ? 1 : needed < most ? needed : most);
}

}  // namespace oneflow_like::cuda
