// What kernels of several tensors share: a launch gets a list of them by value, and deals its blocks out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/launch.h"

namespace oneflow_like::cuda {

// Arguments are copied with every launch: no more of them than any GPU takes; and where there is much to
// launch at once, no more than CUDA 12.1 and driver 530 take.
constexpr size_t kMostArgumentBytes = 4096, kManyArgumentBytes = 32764;

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

// Cuts the items, of list->items[i].count elements, into stretches of one block each: `least` elements or a
// multiple of them, so that there are several times as many blocks as fill the device. Gives their number.
template <typename List>
uint32_t DealOut(List* list, int64_t least, int multiprocessors) {
  int64_t elements = 0;
  for (int32_t i = 0; i < list->size; ++i) elements += list->items[i].count;
  list->stretch = (elements / (int64_t{multiprocessors} * 16) / least + 1) * least;
  uint32_t blocks = 0;
  for (int32_t i = 0; i < list->size; ++i) {
    list->first[i] = blocks;
    blocks += static_cast<uint32_t>((list->items[i].count + list->stretch - 1) / list->stretch);
  }
  return blocks;
}

}  // namespace oneflow_like::cuda
