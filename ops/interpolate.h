// The source rows (or columns) of a resized picture, for kernels of every device. Positions are computed as
// quotients of integers, so every device finds the same ones.
#pragma once

#include <cstdint>

#include "core/device/kernel.h"
#include "core/host_device.h"

namespace oneflow_like {

// One axis: row p of the result is (1 - weight) of row `first` and `weight` of row `second`.
struct ResizeSource {
  int64_t first = 0, second = 0;
  float weight = 0;
};

struct ResizeRange {
  int64_t begin = 0, end = 0;
};

struct ResizeAxis {
  int64_t in = 1, out = 1;
  bool bilinear = false, align_corners = false;

  OFL_HOST_DEVICE ResizeSource Source(int64_t p) const {
    if (!bilinear) {
      int64_t nearest = p * in / out;
      return {nearest, nearest, 0.0f};
    }
    // The position is top / bottom.
    int64_t top = align_corners ? p * (in - 1) : (2 * p + 1) * in - out,
            bottom = align_corners ? out - 1 : 2 * out;
    if (top < 0 || bottom == 0) top = 0;
    if (bottom == 0) bottom = 1;
    int64_t first = top / bottom;
    if (first >= in - 1) return {in - 1, in - 1, 0.0f};
    float weight = static_cast<float>(top - first * bottom) / static_cast<float>(bottom);
    return {first, first + 1, weight};
  }

  // A range that contains all results computed from row i.
  OFL_HOST_DEVICE ResizeRange Results(int64_t i) const {
    if (in == 1 || out == 1) return {0, out};
    // Positions grow with the results by in / out, or by (in - 1) / (out - 1).
    int64_t a = align_corners && bilinear ? out - 1 : out, b = align_corners && bilinear ? in - 1 : in;
    int64_t begin = (i - 1) * a / b - 2, end = ((i + 2) * a + b - 1) / b + 2;
    return {begin < 0 ? 0 : begin, end > out ? out : end};
  }

  // The weight of row i in a result.
  OFL_HOST_DEVICE float Part(int64_t i, int64_t p) const {
    ResizeSource source = Source(p);
    return (source.first == i ? 1.0f - source.weight : 0.0f) + (source.second == i ? source.weight : 0.0f);
  }
};

struct ResizeShape {
  int64_t batch = 0, channels = 0;
  ResizeAxis rows, columns;
};

// `x` and `y` are the operands of the forward operator, or tensors of the same shapes.
ResizeShape ShapeOfResize(const Attrs& attrs, const TensorArg& x, const TensorArg& y);

}  // namespace oneflow_like
