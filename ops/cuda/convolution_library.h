// Convolutions by a library on the matrix cores (cuDNN: convolution_cudnn.cc; library_absent.cc where it is
// missing at build time; loops in tests/cuda_emulator). Operands have the operators' layout, x[n h w (g c)]
// and filter[(g k) r s c], so nothing is copied.
#pragma once

#include <memory>

#include "ops/convolution.h"
#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

struct LibraryConvolution {
  ConvolutionKind kind = ConvolutionKind::kForward;
  ConvolutionShape shape;
  DType dtype = DType::kBFloat16;   // of the two operands
  DType result = DType::kBFloat16;  // the same, or fp32
  bool tf32 = false;                // fp32 operands may be rounded to tf32

  bool operator==(const LibraryConvolution&) const = default;
};

struct ConvolutionOperands {
  void *x = nullptr, *filter = nullptr, *y = nullptr;  // one of them is the result
};

class ConvolutionLibrary {
 public:
  virtual ~ConvolutionLibrary() = default;
  // Whether there is a deterministic kernel on the current device, within the work space. Plans are made here
  // at the first call for a convolution, and kept; not to be called first while a stream records.
  virtual bool Takes(const LibraryConvolution& convolution, const LaunchContext& launch) = 0;
  // Enqueues. REQUIRES: Takes(convolution, launch); addresses are multiples of 16.
  virtual Status Launch(const LibraryConvolution& convolution, const ConvolutionOperands& operands,
                        const LaunchContext& launch) = 0;
};

// nullptr if there is no such library.
std::unique_ptr<ConvolutionLibrary> MakeConvolutionLibrary();

// Whether convolutions ask the library at all; on unless switched off, for comparisons. Kernels ask when
// made.
void SetConvolutionLibrary(bool allowed);

}  // namespace oneflow_like::cuda
