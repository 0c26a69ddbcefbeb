// Embeddings of faces, learnt by naming very many identities with a margin (ArcFace: Deng et al. 2019), of
// which each step looks at a sample (partial FC: An et al. 2021). Written once, as if for one device;
// examples/insightface.cc trains it.
#pragma once

#include <cstdint>

#include "examples/resnet_model.h"
#include "oneflow_like/oneflow_like.h"

namespace examples {

using namespace oneflow_like;

struct FaceConfig {
  ResNetConfig backbone;  // its classes are not used
  int64_t width = 64;     // of the embedding
  int64_t identities = 10'000;
  double scale = 32;    // of cosines
  double margin = 0.3;  // radians
  // Identities that a step looks at: all that its batch has, and others at random. 0: all there are.
  int64_t sampled = 0;
};

// images f32[n h w c] -> f32[n width], of length 1.
Tensor FaceEmbedding(Scope scope, Tensor images, const FaceConfig& config, bool training);

// embeddings[n width], labels i32[n] -> the mean cross entropy of scale * cosine to the identities' centres,
// where the own one's angle is greater by the margin. Centres are cut over mesh axis tp. Throws Error when
// fewer are sampled than the batch may have.
Tensor FaceLoss(Scope scope, Tensor embeddings, Tensor labels, const FaceConfig& config);

// AdamW for the network; for centres Adagrad with one number of state for each, which touches only those that
// were sampled where these are at most half of all. Centres do not decay: only their directions count.
Optimizer FaceOptimizer(double lr, double weight_decay);

}  // namespace examples
