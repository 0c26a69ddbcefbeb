// Functions of vision that are made of others: convolutions and pooling of volumes, windows of pictures, and
// sampling at computed places. As in ops/language/vision.h channels come last, x[n h w c], volumes are
// x[n d h w c], and lists in options have one number for all axes or one for each, depth before rows before
// columns.
#pragma once

#include <vector>

#include "ops/language/vision.h"

namespace oneflow_like {

// --- Volumes ---

// x[n d h w c], filter[k t r s c/groups] -> [n o p q k], each extent as conv2d's. It is one conv2d of t times
// the channels, so x is copied once for each element of the filter's depth.
Tensor conv3d(Tensor x, Tensor filter, const ConvOptions& options = {}, OFL_HERE);
// The gradient of conv3d with respect to its x, as conv2d_transpose is conv2d's: x[n o p q k],
// filter[k t r s c/groups] -> [n d h w c]. One conv2d_transpose to t times the channels, then sums over
// depth.
Tensor conv3d_transpose(Tensor x, Tensor filter, const ConvTransposeOptions& options = {}, OFL_HERE);
// x[n d h w c] -> [n o p q c], as max_pool2d and avg_pool2d: first over rows and columns, then over depth.
Tensor max_pool3d(Tensor x, const PoolOptions& options = {}, OFL_HERE);
Tensor avg_pool3d(Tensor x, const PoolOptions& options = {}, OFL_HERE);
Tensor adaptive_max_pool3d(Tensor x, int64_t depth, int64_t rows, int64_t columns, OFL_HERE);
Tensor adaptive_avg_pool3d(Tensor x, int64_t depth, int64_t rows, int64_t columns, OFL_HERE);

// --- Windows of pictures (torch.nn.Unfold, im2col) ---

struct WindowOptions {
  std::vector<int64_t> kernel = {2};
  std::vector<int64_t> stride = {1};
  std::vector<int64_t> padding = {0};  // zeros on both sides
  std::vector<int64_t> dilation = {1};
};
// x[n h w c] -> [n p q (r s c)]: what conv2d's window at each place sees, in the order of a filter's
// elements. It takes r s / stride^2 times the memory of x.
Tensor unfold(Tensor x, const WindowOptions& options, OFL_HERE);
// The gradient of unfold with respect to x: y[n p q (r s c)] -> [n rows columns c], each element the sum of
// those of y that are of its place.
Tensor fold(Tensor y, int64_t rows, int64_t columns, const WindowOptions& options, OFL_HERE);

// --- Sampling ---

struct GridOptions {
  ResizeMode mode = ResizeMode::kBilinear;  // kNearest: halves to the even element
  bool border = false;                      // places outside are moved to the border; false: there are zeros
  bool align_corners = false;  // -1 and 1 are the centres of the corner elements; false: their outer edges
};
// x[n h w c], grid[n p q 2] -> [n p q c]: x at the places (column, row) of grid, from -1 to 1 over its width
// and height. Both have gradients. The four elements around a place are taken apart. A NaN fails the step.
Tensor grid_sample(Tensor x, Tensor grid, const GridOptions& options = {}, OFL_HERE);

}  // namespace oneflow_like
