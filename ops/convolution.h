// The shape of one convolution, for kernels of every device: what its three operators (conv2d,
// conv2d_grad_input, conv2d_grad_filter) have in common. They are one relation between activations
// x[n h w (g c)], a filter[(g k) r s c] and results y[n p q (g k)]; each computes one of the three from the
// others.
#pragma once

#include <cstdint>

#include "core/device/kernel.h"

namespace oneflow_like {

enum class ConvolutionKind { kForward, kGradInput, kGradFilter };

// Row h of x meets row r of the filter at row p of y where h = p * stride - padding + r * dilation.
struct ConvolutionAxis {
  int64_t in = 0, window = 0, out = 0;  // extents of h, r and p
  int64_t stride = 1, padding = 0, dilation = 1;
  bool operator==(const ConvolutionAxis&) const = default;
};

// The shape of the pieces that a rank holds. An extent may be 0; each kind sums over the axes that its result
// lacks.
struct ConvolutionShape {
  int64_t batch = 0, groups = 0;
  int64_t in = 0, out = 0;  // channels of one group: c and k
  ConvolutionAxis rows, columns;
  bool operator==(const ConvolutionShape&) const = default;
};

// The operands in the order of the relation; any of them may be the result.
struct ConvolutionArgs {
  const TensorArg *x, *filter, *y;
};
template <typename Args>  // KernelSpec or KernelContext
ConvolutionArgs ConvolutionArgsOf(ConvolutionKind kind, const Args& a) {
  if (kind == ConvolutionKind::kForward) return {&a.in[0], &a.in[1], &a.out[0]};
  if (kind == ConvolutionKind::kGradInput) return {&a.out[0], &a.in[1], &a.in[0]};
  return {&a.in[0], &a.out[0], &a.in[1]};
}

ConvolutionShape ShapeOfConvolution(const Attrs& attrs, const ConvolutionArgs& args);

// The number of results of a window of `window` elements, `dilation` apart, along an axis of extent `in`,
// padded on both sides. Less than 1 if the window does not fit.
inline int64_t ConvolutionExtent(int64_t in, int64_t window, int64_t stride, int64_t padding,
                                 int64_t dilation) {
  int64_t free = in + 2 * padding - dilation * (window - 1) - 1;
  return free < 0 ? 0 : free / stride + 1;
}

// Whether a GPU's library knows the relation between the extents of both planes: it rounds down.
inline bool MayConvolve(const ConvolutionShape& s) {
  const auto fits = [](const ConvolutionAxis& axis) {
    return axis.out == ConvolutionExtent(axis.in, axis.window, axis.stride, axis.padding, axis.dilation);
  };
  return fits(s.rows) && fits(s.columns);
}

}  // namespace oneflow_like
