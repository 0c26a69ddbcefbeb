#include "oneflow_like/simulate/probe_model.h"

#include "oneflow_like/experts.h"
#include "oneflow_like/nn.h"

namespace oneflow_like {

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
  x = nn::layers(scope, x, kProbeLayers,
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

}  // namespace oneflow_like
