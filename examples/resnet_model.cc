#include "examples/resnet_model.h"

namespace examples {
namespace {

// A convolution without bias, and its norm. `cut` says how tp cuts the filter: {} not at all.
Tensor ConvNorm(Scope s, Tensor x, int64_t filters, int64_t kernel, int64_t stride, const Annotation& cut,
                const nn::BatchNormOptions& norm) {
  const Dims shape = {filters, kernel, kernel, x.shape().back()};
  Tensor filter = s.Weight("weight", shape, KaimingNormal({.in = {1, 2, 3}, .out = {0}}), cut);
  return nn::BatchNorm(s / "norm", conv2d(x, filter, {.stride = {stride}, .padding = {kernel / 2}}), norm);
}

Tensor ResidualBlock(Scope s, Tensor x, int64_t width, int64_t stride, bool bottleneck,
                     const nn::BatchNormOptions& norm) {
  const Annotation filters = "tp:S0", channels = "tp:S3";
  const int64_t out = bottleneck ? 4 * width : width;
  Tensor y = x;
  if (bottleneck) y = relu(ConvNorm(s / "reduce", y, width, 1, 1, {}, norm));
  y = relu(ConvNorm(s / "first", y, width, 3, stride, filters, norm));
  y = ConvNorm(s / "last", y, out, bottleneck ? 1 : 3, 1, channels, norm);
  if (stride != 1 || x.shape().back() != out) x = ConvNorm(s / "shortcut", x, out, 1, stride, {}, norm);
  return relu(x + y);
}

}  // namespace

ResNetConfig ResNetOfSize(const std::string& size, int64_t side) {
  ResNetConfig config;
  config.large_stem = side >= 64;
  if (size == "tiny") return config;
  config.widths = {64, 128, 256, 512};
  config.blocks = size == "18" ? std::vector<int64_t>{2, 2, 2, 2} : std::vector<int64_t>{3, 4, 6, 3};
  config.bottleneck = size == "50";
  if (size != "18" && size != "50") Fail("--size=", size, ": must be tiny, 18 or 50");
  return config;
}

Tensor ResNetFeatures(Scope scope, Tensor images, const ResNetConfig& c, bool training) {
  const nn::BatchNormOptions norm = {.training = training, .parts = c.norm_parts};
  Tensor x = relu(
      ConvNorm(scope / "stem", images, c.widths[0], c.large_stem ? 7 : 3, c.large_stem ? 2 : 1, {}, norm));
  if (c.large_stem) x = max_pool2d(x, {.kernel = {3}, .stride = {2}, .padding = {1}});
  std::vector<size_t> group;  // of each block
  for (size_t g = 0; g < c.blocks.size(); ++g) group.insert(group.end(), c.blocks[g], g);
  x = nn::layers(scope, x, static_cast<int64_t>(group.size()), [&](Scope s, Tensor y, int64_t i) {
    const bool halves = i > 0 && group[i] != group[i - 1];
    return ResidualBlock(s, y, c.widths[group[i]], halves ? 2 : 1, c.bottleneck, norm);
  });
  return mean(x, {1, 2});
}

Tensor ResNetLogits(Scope scope, Tensor images, const ResNetConfig& c, bool training) {
  return nn::Linear(scope / "classes", ResNetFeatures(scope, images, c, training), c.classes,
                    {.parallel = nn::Parallel::kColumns});
}

}  // namespace examples
