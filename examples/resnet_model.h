// Residual networks (He et al. 2016), written once, as if for one device; examples/resnet.cc trains them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oneflow_like/oneflow_like.h"

namespace examples {

using namespace oneflow_like;

struct ResNetConfig {
  std::vector<int64_t> blocks = {2, 2,
                                 2};  // of each group of blocks; the first of each but one halves the picture
  std::vector<int64_t> widths = {16, 32, 64};  // of the groups
  // Blocks of three convolutions, 1 x 1, 3 x 3 and 1 x 1, of which the last has four times the width; else of
  // two of 3 x 3.
  bool bottleneck = false;
  bool large_stem =
      false;  // begins with 7 x 7 in steps of 2, and pooling: for pictures of 64 pixels and more
  int64_t classes = 10;
  int64_t norm_parts = 1;  // nn::BatchNormOptions::parts
};

// tiny, 18 or 50, for pictures of so many pixels along a side. Throws Error for other names.
ResNetConfig ResNetOfSize(const std::string& size, int64_t side);

// images f32[n h w c] -> f32[n features], the means over the picture of what the last block gives. Blocks are
// spread over mesh axis pp; within each, filters are cut over tp, and the sums of the last convolution added.
// In training batch norms use the batch's statistics and keep running averages, else they use these.
Tensor ResNetFeatures(Scope scope, Tensor images, const ResNetConfig& config, bool training);

// The same, and from there to logits f32[n classes], which are cut over tp.
Tensor ResNetLogits(Scope scope, Tensor images, const ResNetConfig& config, bool training);

}  // namespace examples
