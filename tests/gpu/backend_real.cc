// The CUDA backend of this machine.
#include "tests/gpu/backend.h"

namespace oneflow_like::gpu {

Backend* TestedBackend() { return OpenBackend("cuda"); }
bool Emulated() { return false; }

}  // namespace oneflow_like::gpu
