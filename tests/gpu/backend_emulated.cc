// The same sources on the emulator: what runs where there is no GPU.
#include "tests/gpu/backend.h"

extern "C" oneflow_like::Backend* OflBackend();

namespace oneflow_like::gpu {

Backend* TestedBackend() {
  SetBackend("cuda", OflBackend());
  return OpenBackend("cuda");
}
bool Emulated() { return true; }

}  // namespace oneflow_like::gpu
