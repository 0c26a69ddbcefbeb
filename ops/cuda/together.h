// What kernels of several tensors share: a launch gets a list of them by value, and deals its blocks out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/launch.h"

namespace oneflow_like::cuda {

// Arguments are copied with every launch: no more of them than any GPU takes.
constexpr size_t kMostArgumentBytes = 4096;

// The item that a block is for. REQUIRES: list.first[i] is the first block of item i of list.size, rising.
template <typename List>
OFL_DEVICE int ItemOf(const List& list, uint32_t block) {
  int item = 0;
  for (int behind = list.size; behind - item > 1;) {
    int middle = (item + behind) / 2;
    if (list.first[middle] <= block) {
      item = middle;
    } else {
      behind = middle;
    }
  }
  return item;
}

}  // namespace oneflow_like::cuda
