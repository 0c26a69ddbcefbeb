// A build without a library for fused attention.
#if !defined(OFL_HAVE_CUDNN)

#include "ops/cuda/flash.h"

namespace oneflow_like::cuda {

std::unique_ptr<Flash> MakeFlash() { return nullptr; }

}  // namespace oneflow_like::cuda

#endif
