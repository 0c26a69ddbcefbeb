#include "examples/vit_model.h"

namespace examples {

VitConfig VitOfSize(const std::string& size, int64_t side) {
  VitConfig config;
  config.patch = side < 128 ? 4 : 16;
  if (size == "small") {
    config.width = 384;
    config.heads = 6;
  } else if (size == "base") {
    config.width = 768;
    config.heads = 12;
  } else if (size != "tiny") {
    Fail("--size=", size, ": must be tiny, small or base");
  }
  return config;
}

Tensor VitTokens(Scope scope, Tensor images, const VitConfig& c, bool training) {
  const Dims shape = images.shape();
  if (c.patch < 1 || shape[1] % c.patch != 0 || shape[2] % c.patch != 0)
    Fail("vit: patches of ", c.patch, " pixels do not divide pictures of ", shape[1], " x ", shape[2]);
  if (c.width % c.heads != 0)
    Fail("vit: heads is ", c.heads, " and the width is ", c.width, ", but heads must divide it");
  const int64_t patches = shape[1] / c.patch * (shape[2] / c.patch);
  const Initializer init = TruncatedNormal(0.02);
  nn::ConvLayerOptions cut;
  cut.stride = {c.patch};
  cut.bias = true;
  cut.init = XavierUniform({.in = {1, 2, 3}, .out = {0}});
  Tensor x =
      reshape(nn::Conv(scope / "patches", images, c.width, c.patch, cut), {shape[0], patches, c.width});
  Tensor first = scope.Weight("class_token", {1, 1, c.width}, init, WeightOptions{.decay = 0});
  x = concat({broadcast_to(first, {shape[0], 1, c.width}), x}, 1);
  x = x + scope.Weight("positions", {patches + 1, c.width}, init);
  nn::TransformerOptions block;
  block.attention = {.heads = c.heads, .causal = false};
  block.mlp.inner = c.inner;
  block.mlp.activation = [](Tensor y) { return gelu_erf(y); };
  block.dropout = training ? c.dropout : 0;
  block.norm_eps = c.norm_eps;
  return nn::layers(scope, dropout(x, block.dropout), c.layers,
                    [&](Scope s, Tensor y, int64_t) { return nn::TransformerBlock(s, y, block); });
}

Tensor VitLogits(Scope scope, Tensor images, const VitConfig& c, bool training) {
  Tensor x = VitTokens(scope, images, c, training);
  x = nn::LayerNorm(scope / "norm", squeeze(slice(x, 1, 0, 1), 1), c.norm_eps);
  return nn::Linear(scope / "classes", x, c.classes,
                    {.init = TruncatedNormal(0.02), .parallel = nn::Parallel::kColumns});
}

}  // namespace examples
