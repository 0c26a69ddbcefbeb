#include "examples/face_model.h"

#include <cmath>

namespace examples {
namespace {

Tensor OfLengthOne(Tensor x) { return x * rsqrt(sum(square(x), {-1}, true) + 1e-12); }

// i32[sampled]: every label of the batch, and others, each once.
Tensor SampledIdentities(Scope scope, Tensor labels, const FaceConfig& c) {
  Tensor there = index_add(full(scope.graph(), {c.identities}, 0), 0, labels,
                           full(scope.graph(), {labels.shape()[0]}, 1));
  Tensor rank = uniform(scope.graph(), {c.identities}, 0, 1) + 2 * minimum(there, 1);
  return cast(top_k(rank, c.sampled).indices, DType::kInt32);
}

}  // namespace

Tensor FaceEmbedding(Scope scope, Tensor images, const FaceConfig& c, bool training) {
  Tensor x = ResNetFeatures(scope / "backbone", images, c.backbone, training);
  x = nn::Linear(scope / "embedding", x, c.width, {.bias = false});
  const nn::BatchNormOptions norm = {.training = training, .parts = c.backbone.norm_parts};
  return OfLengthOne(nn::BatchNorm(scope / "embedding_norm", x, norm));
}

Tensor FaceLoss(Scope scope, Tensor embeddings, Tensor labels, const FaceConfig& c) {
  const int64_t batch = labels.shape()[0];
  if (c.sampled > 0 && c.identities < batch)
    Fail("insightface: sampling needs an identity for each of the ", batch, " faces of a batch, there are ",
         c.identities, "; take smaller batches, or all identities (0 sampled)");
  if (c.sampled < 0 || c.sampled > c.identities || (c.sampled > 0 && c.sampled < batch))
    Fail("insightface: ", c.sampled, " identities are sampled, must be 0, or at least the ", batch,
         " that a batch may have and at most all ", c.identities);
  Tensor centres = scope.Weight("centres", {c.identities, c.width}, Normal(0.01), {{"tp", S(0)}});
  Tensor own = one_hot(labels, c.identities);
  if (c.sampled > 0) {
    Tensor ids = SampledIdentities(scope, labels, c);
    centres = embedding(centres, ids);
    own = cast(equal(reshape(labels, {batch, 1}), ids), DType::kFloat32);
  }
  Tensor cosine = einsum("nw,cw->nc", embeddings, OfLengthOne(centres));
  Tensor of_own = sum(own * cosine, {1}, true);
  // cos(angle + margin), where the angle is small enough for it to fall.
  Tensor sine = sqrt(clamp(1 - square(of_own), 1e-6, 1));
  Tensor further = of_own * std::cos(c.margin) - sine * std::sin(c.margin);
  Tensor target =
      where(greater(of_own, -std::cos(c.margin)), further, of_own - c.margin * std::sin(c.margin));
  Tensor logits = c.scale * (cosine + own * (target - of_own));
  return mean(logsumexp(logits, {1}) - c.scale * squeeze(target, 1));
}

Optimizer FaceOptimizer(double lr, double weight_decay) {
  const Optimizer network = AdamW{.lr = lr, .weight_decay = weight_decay},
                  centres = Adagrad{.lr = lr, .by_rows = true};
  Optimizer both("faces",
                 [=](WeightUpdate& u) { (u.path().ends_with("/centres") ? centres : network).update(u); });
  both.by_rows = true;
  return both;
}

}  // namespace examples
