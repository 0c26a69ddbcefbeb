// The windows of pooling, for kernels of every device: from a result y[n p q c] to its elements of x[n h w
// c], and from an element to its results.
#pragma once

#include <cstdint>

#include "core/device/kernel.h"
#include "core/host_device.h"

namespace oneflow_like {

struct PoolRange {
  int64_t begin = 0, end = 0;
};

// One axis. Adaptive windows share the axis evenly: they begin at i in / out rounded down, and end at
// (i + 1) in / out rounded up, so neighbours may overlap by one element.
struct PoolAxis {
  int64_t in = 0, out = 0;
  int64_t kernel = 1, stride = 1, padding = 0;
  bool adaptive = false;

  // Elements of result p that lie inside x.
  OFL_HOST_DEVICE PoolRange Window(int64_t p) const {
    int64_t begin, end;
    if (adaptive) {
      begin = p * in / out;
      end = ((p + 1) * in + out - 1) / out;
    } else {
      begin = p * stride - padding;
      end = begin + kernel;
    }
    return {begin < 0 ? 0 : begin, end > in ? in : end};
  }

  // Results whose windows contain element i.
  OFL_HOST_DEVICE PoolRange Results(int64_t i) const {
    int64_t begin, end;
    if (adaptive) {
      begin = i * out / in;
      end = ((i + 1) * out + in - 1) / in;
    } else {
      int64_t past = i + padding - kernel;  // results up to past / stride end before i
      begin = past < 0 ? 0 : past / stride + 1;
      end = (i + padding) / stride + 1;
    }
    return {begin, end > out ? out : end};
  }

  // This axis's factor of the divisor of a mean over the window.
  OFL_HOST_DEVICE int64_t Count(int64_t p, bool with_padding) const {
    if (with_padding && !adaptive) return kernel;
    PoolRange window = Window(p);
    return window.end - window.begin;
  }
};

struct PoolShape {
  int64_t batch = 0, channels = 0;
  PoolAxis rows, columns;
  bool with_padding = true;  // a mean counts the padding

  OFL_HOST_DEVICE float Share(int64_t p, int64_t q) const {
    return 1.0f / static_cast<float>(rows.Count(p, with_padding) * columns.Count(q, with_padding));
  }
};

// `x` and `y` are the operands of the forward operator, or tensors of the same shapes.
PoolShape ShapeOfPool(const Attrs& attrs, const TensorArg& x, const TensorArg& y);

}  // namespace oneflow_like
