// Counts of the calls that NVIDIA's libraries served and of those they refused. After a refusal the result is
// correct but slower, so profiles show it (core/device/backend.h, BackendCounts).
#pragma once

#include <cstdint>

namespace oneflow_like::cuda {

enum class LibraryUse {
  kProduct,           // a matrix product was enqueued by cuBLASLt
  kAttention,         // attention was enqueued by cuDNN
  kConvolution,       // a convolution, or a gradient of one, was
  kRefusedProduct,    // cuBLASLt does not take a product as it lies: operands are copied, or a slow loop does
                      // it
  kRefusedEpilogue,   // nor what follows it: done step by step
  kRefusedAttention,  // cuDNN has no plan for a graph of attention: our own kernels do it
  kRefusedConvolution,  // nor for a convolution
  kTimedProduct,        // cuBLASLt's proposals for a product were timed
};
constexpr int kLibraryUses = 8;

void Count(LibraryUse what);
// How often since the process began. Any thread; a replayed recording counts nothing.
int64_t Counted(LibraryUse what);

}  // namespace oneflow_like::cuda
