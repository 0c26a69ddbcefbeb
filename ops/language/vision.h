// Operators of vision as functions on Tensors. Channels come last: activations are x[n h w c] (or x[n l c]),
// filters w[k r s c]: k filters of r rows, s columns and c channels. That is the memory order of PyTorch's
// channels_last. Windows are counted in elements. Every function throws Error as those of
// ops/language/functional.h do.
//
// Lists in options have one number for all axes, or one for each: rows, then columns.
#pragma once

#include <vector>

#include "ops/language/functional.h"

namespace oneflow_like {

// --- Convolutions ---

struct ConvOptions {
  std::vector<int64_t> stride = {1};
  std::vector<int64_t> padding = {0};  // zeros on both sides
  std::vector<int64_t> dilation = {1};
  int64_t groups = 1;  // of channels and filters; a filter sees the channels of its group
};
// x[n h w c], filter[k r s c/groups] -> [n p q k], p = (h + 2 padding - dilation (r - 1) - 1) / stride + 1,
// rounded down. The filter is not turned round (a cross-correlation, as in all such libraries).
Tensor conv2d(Tensor x, Tensor filter, const ConvOptions& options = {}, OFL_HERE);
// x[n l c], filter[k r c/groups] -> [n p k].
Tensor conv1d(Tensor x, Tensor filter, const ConvOptions& options = {}, OFL_HERE);

struct ConvTransposeOptions {
  std::vector<int64_t> stride = {1};
  std::vector<int64_t> padding = {0};  // cut off on both sides
  std::vector<int64_t> dilation = {1};
  std::vector<int64_t> output_padding = {0};  // more rows at the end, fewer than the stride
  int64_t groups = 1;
};
// The gradient of conv2d with respect to its x. x[n p q k], filter[k r s c/groups] -> [n h w c],
// h = (p - 1) stride - 2 padding + dilation (r - 1) + output_padding + 1. The filter's first axis is of x's
// channels, as PyTorch's [k, c/groups, r, s] with its channels last.
Tensor conv2d_transpose(Tensor x, Tensor filter, const ConvTransposeOptions& options = {}, OFL_HERE);
// x[n p k], filter[k r c/groups] -> [n l c].
Tensor conv1d_transpose(Tensor x, Tensor filter, const ConvTransposeOptions& options = {}, OFL_HERE);

// --- Pooling ---

struct PoolOptions {
  std::vector<int64_t> kernel = {2};
  std::vector<int64_t> stride = {};    // empty: the kernel's
  std::vector<int64_t> padding = {0};  // at most half of the kernel
  bool count_include_pad = true;       // avg_pool: zeros of the padding count as elements
};
// x[n h w c] -> [n p q c], p = (h + 2 padding - kernel) / stride + 1, rounded down. Padding is never the
// greatest; of equals the first, row by row, gets the gradient; a NaN wins.
Tensor max_pool2d(Tensor x, const PoolOptions& options = {}, OFL_HERE);
Tensor avg_pool2d(Tensor x, const PoolOptions& options = {}, OFL_HERE);
Tensor max_pool1d(Tensor x, const PoolOptions& options = {}, OFL_HERE);  // x[n l c] -> [n p c]
Tensor avg_pool1d(Tensor x, const PoolOptions& options = {}, OFL_HERE);
// Gives `rows` x `columns` results, whose windows divide x evenly: result i covers [i h / rows, (i + 1) h /
// rows), the begin rounded down and the end up.
Tensor adaptive_max_pool2d(Tensor x, int64_t rows, int64_t columns, OFL_HERE);
Tensor adaptive_avg_pool2d(Tensor x, int64_t rows, int64_t columns, OFL_HERE);
Tensor adaptive_max_pool1d(Tensor x, int64_t length, OFL_HERE);
Tensor adaptive_avg_pool1d(Tensor x, int64_t length, OFL_HERE);

// --- Resizing ---

enum class ResizeMode : uint8_t { kNearest, kBilinear };
struct InterpolateOptions {
  ResizeMode mode = ResizeMode::kNearest;
  bool align_corners = false;  // bilinear: the centres of the corner elements stay where they are
};
// x[n h w c] -> [n rows columns c]. Nearest: result i is element i h / rows, rounded down. Bilinear: result i
// lies at (i + 1/2) h / rows - 1/2, or at i (h - 1) / (rows - 1) with align_corners. PyTorch's rules.
Tensor interpolate(Tensor x, int64_t rows, int64_t columns, const InterpolateOptions& options = {}, OFL_HERE);

// --- Norms ---

// Group normalisation (Wu and He 2018). x[n .. c], gamma[c], beta[c]: each sample's channels in `groups`
// groups, each normalised by its mean and variance over its channels and all inner axes. groups = c is
// instance normalisation.
Tensor group_norm(Tensor x, int64_t groups, Tensor gamma, Tensor beta, double eps = 1e-5, OFL_HERE);

struct BatchNorm {
  Tensor y;
  Tensor mean, variance;  // [c], fp32, of the batch; the variance divides by the count, not by one less
};
// Batch normalisation (Ioffe and Szegedy 2015) in training: x[.. c], gamma[c], beta[c], normalised per
// channel by its mean and variance over all other axes of the whole batch, on every mesh and for every number
// of micro-batches. Keep running statistics with assign(); PyTorch's running variance is variance * count /
// (count - 1).
BatchNorm batch_norm(Tensor x, Tensor gamma, Tensor beta, double eps = 1e-5, OFL_HERE);
// With given statistics, as in evaluation: (x - mean) / sqrt(variance + eps) * gamma + beta.
Tensor batch_norm_eval(Tensor x, Tensor gamma, Tensor beta, Tensor mean, Tensor variance, double eps = 1e-5,
                       OFL_HERE);

}  // namespace oneflow_like
