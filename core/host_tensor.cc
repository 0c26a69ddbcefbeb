#include "core/host_tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace oneflow_like {

HostTensor HostTensor::Make(DType dtype, const Dims& shape) {
  HostTensor tensor{dtype, shape, nullptr};
  size_t bytes = std::max<size_t>(64, (tensor.bytes() + 63) / 64 * 64);
  tensor.data = std::shared_ptr<void>(std::aligned_alloc(64, bytes), std::free);
  if (tensor.data == nullptr)
    Fail("no memory for a host tensor ", Name(dtype), shape.str(), " of ", bytes, " bytes");
  std::memset(tensor.data.get(), 0, bytes);
  return tensor;
}

}  // namespace oneflow_like
