#include "oneflow_like/simulate/probe_model.h"

#include "core/float16.h"
#include "core/random.h"
#include "oneflow_like/experts.h"
#include "oneflow_like/nn.h"

namespace oneflow_like {
namespace {

constexpr int64_t kClasses = 1000, kColours = 3;

Tensor Bottleneck(Scope s, Tensor x, int64_t width, int64_t stride) {
  const nn::Activation none;
  Tensor y = nn::ConvBlock(s / "reduce", x, width, 1);
  y = nn::ConvBlock(s / "middle", y, width, 3, {.stride = stride});
  y = nn::ConvBlock(s / "widen", y, 4 * width, 1, {.activation = none});
  if (stride != 1 || x.shape().back() != 4 * width)
    x = nn::ConvBlock(s / "shortcut", x, 4 * width, 1, {.stride = stride, .activation = none});
  return relu(x + y);
}

// images bf16[batch side side colours], of half the bytes that a host copies for each step of fp32, labels
// i32[batch].
Tensor PictureLoss(Model* model, Tensor images, Tensor labels, const ProbeShape& shape) {
  const Scope scope = model->scope();
  Tensor x = nn::ConvBlock(scope / "stem", cast(images, DType::kFloat32), shape.width, 7, {.stride = 2});
  x = max_pool2d(x, {.kernel = {3}, .stride = {2}, .padding = {1}});
  int64_t block = 0;
  for (const int64_t times : {1, 2, 4, 8})
    for (const bool first : {true, false})
      x = Bottleneck(scope / Cat("block", block++), x, times * shape.width, first && times > 1 ? 2 : 1);
  const Tensor logits = nn::Linear(scope / "classes", mean(x, {1, 2}), kClasses);
  return mean(cross_entropy(logits, labels));
}

}  // namespace

Tensor ProbeLoss(Model* model, Tensor tokens, Tensor targets, const ProbeShape& shape) {
  const Scope scope = model->scope();
  const double dropped = shape.llama ? 0 : shape.dropout;
  nn::TransformerOptions block;
  block.attention.heads = shape.heads;
  block.attention.kv_heads = shape.kv_heads;
  block.rms_norm = block.swiglu = shape.llama;
  if (shape.llama) {
    block.attention.rope = RopeOptions{};
    block.attention.bias = block.mlp.bias = shape.kv_heads == 0;
  }
  block.mlp.inner = shape.inner;
  if (shape.erf) block.mlp.activation = [](Tensor y) { return gelu_erf(y); };
  block.dropout = block.attention.dropout = dropped;
  Tensor spread;
  if (shape.experts > 0) {
    block.feed_forward = [&](Scope s, Tensor x) {
      nn::ExpertsOptions experts;
      experts.experts = shape.experts;
      experts.inner = shape.inner;
      experts.room = shape.room;
      experts.order = shape.room > 0 ? nn::ExpertOrder::kWeight : nn::ExpertOrder::kChoice;
      experts.aux_loss = 0.01;
      const nn::ExpertsResult given = nn::Experts(s / "experts", x, experts);
      spread = spread.defined() ? spread + given.loss : given.loss;
      return given.y;
    };
  }
  Tensor table = nn::EmbeddingTable(scope / "table", shape.vocabulary, shape.width);
  Tensor x = embedding(table, tokens);
  if (!shape.llama) {
    x = x + scope.Weight("positions", {shape.context, shape.width}, Normal(0.02));
    if (dropped > 0) x = dropout(x, dropped);
  }
  x = nn::layers(scope, x, shape.layers,
                 [&](Scope s, Tensor y, int64_t) { return nn::TransformerBlock(s, y, block); });
  x = shape.llama ? nn::RmsNorm(scope / "norm", x) : nn::LayerNorm(scope / "norm", x);
  const Tensor loss = mean(cross_entropy(einsum("bsw,vw->bsv", x, table), targets));
  return spread.defined() ? loss + spread : loss;
}

TrainOptions ProbeTraining(const ProbeShape& shape, DType dtype, const std::string& batch,
                           const std::string& tensor) {
  TrainOptions train;
  train.dtype = dtype;
  train.clip_norm = shape.clip_norm;
  train.micro_batches = shape.micro_batches;
  train.check_finite = false;
  train.parallel = {.batch = batch, .tensor = tensor, .context = ""};
  return train;
}

Session DeviceProbe(Model* model, const ProbeShape& shape, DType dtype) {
  const int64_t rows = shape.batch * shape.micro_batches;
  const TrainOptions training = ProbeTraining(shape, dtype, "dp", "");
  if (shape.side > 0) {
    Tensor images = model->Input("in", {rows, shape.side, shape.side, kColours}, DType::kBFloat16);
    Tensor labels = model->Input("targets", {rows}, DType::kInt32);
    return Train(PictureLoss(model, images, labels, shape), Sgd{.lr = 0.1, .momentum = 0.9}, training);
  }
  Tensor tokens = model->Input("in", {rows, shape.context}, DType::kInt32);
  Tensor targets = model->Input("targets", {rows, shape.context}, DType::kInt32);
  return Train(ProbeLoss(model, tokens, targets, shape), AdamW{.lr = 1e-3}, training);
}

Feeds ProbeFeeds(const ProbeShape& shape) {
  const int64_t rows = shape.batch * shape.micro_batches;
  const auto integers = [](const Dims& dims, int64_t below, uint64_t key) {
    HostTensor tensor = HostTensor::Make(DType::kInt32, dims);
    for (int64_t i = 0; i < tensor.elements(); ++i)
      tensor.as<int32_t>()[i] = static_cast<int32_t>(RandomBits(key, 0, i) % static_cast<uint64_t>(below));
    return tensor;
  };
  constexpr uint64_t kIn = 1, kTargets = 2;
  if (shape.side == 0) {
    const Dims tokens = {rows, shape.context};
    return {{"in", integers(tokens, shape.vocabulary, kIn)},
            {"targets", integers(tokens, shape.vocabulary, kTargets)}};
  }
  HostTensor images = HostTensor::Make(DType::kBFloat16, {rows, shape.side, shape.side, kColours});
  for (int64_t i = 0; i < images.elements(); ++i)
    images.as<BFloat16>()[i] = ToBFloat16(static_cast<float>(RandomBits(kIn, 0, i) % 256) / 128 - 1);
  return {{"in", images}, {"targets", integers({rows}, kClasses, kTargets)}};
}

}  // namespace oneflow_like
