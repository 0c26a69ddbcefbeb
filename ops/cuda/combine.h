// CombineBox (core/boxes/copy_box.h) on a device: the receiving end of boxing between ranks that reach each
// other's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "core/boxes/copy_box.h"
#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

constexpr int kMostCombined = 256;  // sources of one launch

// to[box] = from[0][box] op from[1][box] op ..., in that order, for every `to` the same bits as CombineBox;
// with one source a copy, with none the identity. A destination may be one of the sources: a thread reads all
// sources of an element before it writes it. Nothing is allocated, nothing waits. REQUIRES: at most
// kMostCombined sources.
void LaunchCombine(cudaStream_t stream, DType dtype, Reduce reduce, const Box& box,
                   std::span<const Piece> from, std::span<const Piece> to, int multiprocessors);

// The same, but in the first micro-batch of a step (read from launch.act) only sources from the second on
// count: accumulation, whose first source is its destination.
void LaunchAccumulate(DType dtype, Reduce reduce, const Box& box, std::span<const Piece> from,
                      const Piece& to, const LaunchContext& launch);

}  // namespace oneflow_like::cuda
