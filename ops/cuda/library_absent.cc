// A build without the library for fused attention and convolutions.
#if !defined(OFL_HAVE_CUDNN)

#include "ops/cuda/convolution_library.h"
#include "ops/cuda/flash.h"

namespace oneflow_like::cuda {

std::unique_ptr<Flash> MakeFlash() { return nullptr; }
std::unique_ptr<ConvolutionLibrary> MakeConvolutionLibrary() { return nullptr; }

}  // namespace oneflow_like::cuda

#endif
