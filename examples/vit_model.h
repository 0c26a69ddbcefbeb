// Vision Transformers (Dosovitskiy et al. 2021), written once, as if for one device; examples/vit.cc trains
// them.
#pragma once

#include <cstdint>
#include <string>

#include "oneflow_like/oneflow_like.h"

namespace examples {

using namespace oneflow_like;

struct VitConfig {
  int64_t layers = 12, width = 192, heads = 3;
  int64_t patch = 16;  // pixels of a patch along a side
  int64_t classes = 10;
  int64_t inner = 0;  // width of feed-forward layers; 0: four times the width
  double dropout = 0;
  double norm_eps = 1e-6;
};

// tiny, small or base, for pictures of so many pixels along a side: patches are of 16 pixels, below 128
// pixels of 4. Throws Error for other names.
VitConfig VitOfSize(const std::string& size, int64_t side);

// images f32[n h w c] -> f32[n, 1 + patches, width]: what the blocks make of a token and the patches behind
// it.
Tensor VitTokens(Scope scope, Tensor images, const VitConfig& config, bool training);

// images f32[n h w c] -> logits f32[n classes], read from a token that stands before the patches. Heads, the
// inner axis of the feed-forward layers and the classes are cut over mesh axis tp, blocks are spread over pp.
// Throws Error when patches do not divide the picture.
Tensor VitLogits(Scope scope, Tensor images, const VitConfig& config, bool training);

}  // namespace examples
