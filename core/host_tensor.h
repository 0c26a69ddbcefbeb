// A whole tensor on the host: for feeds, results, and reading and writing variables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "core/dims.h"
#include "core/dtype.h"

namespace oneflow_like {

// Row-major. Copies share the data.
struct HostTensor {
  DType dtype = DType::kFloat32;
  Dims shape;
  std::shared_ptr<void> data;  // elements() * SizeOf(dtype) bytes

  int64_t elements() const { return shape.elements(); }
  size_t bytes() const { return elements() * SizeOf(dtype); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data.get());
  }
  static HostTensor Make(DType dtype, const Dims& shape);  // zeroed; throws Error when memory is short
};
using Feeds = std::map<std::string, HostTensor>;

}  // namespace oneflow_like
