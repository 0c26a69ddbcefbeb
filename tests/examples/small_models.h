// Small models of the example programs beside GPT and Llama, with their data: what the tests of one loss
// curve and of PyTorch's losses share.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "examples/bert_model.h"
#include "examples/dlrm_model.h"
#include "examples/face_model.h"
#include "examples/moe_model.h"
#include "examples/resnet_model.h"
#include "examples/unet_model.h"
#include "examples/vit_model.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/data.h"
#include "oneflow_like/program/synthetic.h"

namespace oneflow_like {

using namespace examples;

constexpr int64_t kSmallBatch = 12;

struct SmallModel {
  std::string name;
  std::function<Tensor(Model& model)> loss;
  std::shared_ptr<const SampleSource> samples;
  Optimizer optimizer;
  double clip_norm = 0;
  std::vector<std::string> meshes = {};  // beside those of all models
  int64_t parts = 0;                     // equal parts of the batch that are not to be cut; 0: each sample
  int most_stages = 4;
  bool draws = false;  // random numbers, which no other library draws alike
};

inline Dims SmallBatchOf(const SampleField& field) {
  Dims shape = {kSmallBatch};
  for (int64_t extent : field.shape) shape.push_back(extent);
  return shape;
}

// An input for each field of the samples.
inline std::map<std::string, Tensor> SmallInputs(Model& model, const SampleSource& samples) {
  std::map<std::string, Tensor> inputs;
  for (const SampleField& field : samples.fields()) {
    inputs[field.name] = model.Input(field.name, SmallBatchOf(field), field.dtype, {{"dp", S(0)}});
  }
  return inputs;
}

// The batch of a step: other samples for each.
inline Feeds SmallFeeds(const SmallModel& small, int64_t step) {
  Feeds feeds;
  std::vector<HostTensor> batch;
  for (const SampleField& field : small.samples->fields()) {
    batch.push_back(HostTensor::Make(field.dtype, SmallBatchOf(field)));
    feeds[field.name] = batch.back();
  }
  for (int64_t row = 0; row < kSmallBatch; ++row) {
    std::vector<void*> to;
    for (const HostTensor& t : batch) to.push_back(t.as<char>() + row * (t.bytes() / kSmallBatch));
    small.samples->Read({.seed = 7, .index = step * kSmallBatch + row}, to);
  }
  return feeds;
}

inline Session TrainSmall(Model& model, const SmallModel& small, TrainOptions options) {
  options.clip_norm = small.clip_norm;
  return Train(small.loss(model), small.optimizer, options);
}

// Of pictures: `logits` of [n height width channels].
inline SmallModel SmallVision(const std::string& name, int64_t side, const Optimizer& optimizer,
                              const std::function<Tensor(Scope, Tensor)>& logits) {
  auto samples = std::make_shared<SyntheticImages>(
      SyntheticImages::Options{.height = side, .width = side, .classes = 5, .seed = 3});
  auto loss = [=](Model& model) {
    auto in = SmallInputs(model, *samples);
    return mean(cross_entropy(logits(model.scope(), transpose(in["images"], {0, 2, 3, 1})), in["labels"]));
  };
  return {name, loss, samples, optimizer};
}

inline SmallModel SmallClicks(const std::string& name, const std::string& cut, const Optimizer& optimizer,
                              int64_t rows = 41) {
  DlrmConfig config = {.dense = 3, .tables = 4, .rows = rows, .width = 6};
  config.bottom = {9};
  config.top = {16, 12, 12, 8};
  config.cut = cut;
  auto samples = std::make_shared<SyntheticClicks>(
      SyntheticClicks::Options{.dense = 3, .categorical = 4, .buckets = rows, .seed = 3});
  auto loss = [=](Model& model) {
    auto in = SmallInputs(model, *samples);
    Tensor logits = DlrmLogits(model.scope(), in["dense"], in["ids"], config);
    return mean(bce_with_logits_loss(logits, in["labels"]));
  };
  return {name, loss, samples, optimizer};
}

constexpr int64_t kSmallContext = 10, kSmallTokens = 31;

inline SmallModel SmallMoe() {
  MoeConfig config = {.layers = 4, .width = 18, .heads = 3, .context = 12, .vocabulary = kSmallTokens};
  config.experts = 5;
  config.inner = 14;
  config.capacity = 1;
  config.balance = 0.1;
  auto samples = std::make_shared<LearnableRows>(kSmallContext, kSmallTokens, 0, 1 << 20);
  auto loss = [=](Model& model) {
    auto in = SmallInputs(model, *samples);
    return MoeLoss(model.scope(), in["tokens"], in["targets"], config);
  };
  return {"moe",   loss,
          samples, AdamW{.lr = 2e-3, .beta2 = 0.95, .weight_decay = 0.1},
          1,       {"cpu:dp=1,tp=1,pp=1,ep=2", "cpu:dp=2,tp=1,pp=2,ep=2", "cpu:dp=1,tp=2,pp=1,ep=3"}};
}

inline SmallModel SmallBert() {
  const BertConfig config = {.layers = 4,
                             .width = 18,
                             .heads = 3,
                             .context = 12,
                             .vocabulary = kSmallTokens + MaskedRows::kMoreTokens};
  auto samples = std::make_shared<MaskedRows>(
      std::make_shared<LearnableRows>(kSmallContext, kSmallTokens, 0, 1 << 20), kSmallTokens);
  auto loss = [=](Model& model) {
    auto in = SmallInputs(model, *samples);
    return BertLoss(BertLogits(model.scope(), in["tokens"], in["padding"], config, true), in["targets"]);
  };
  return {"bert", loss, samples, AdamW{.lr = 2e-3, .eps = 1e-6, .weight_decay = 0.01}, 1};
}

inline SmallModel SmallFaces(const std::string& name, int64_t sampled) {
  FaceConfig config = {.width = 7, .identities = 37, .scale = 8, .sampled = sampled};
  config.backbone = {.blocks = {2, 2}, .widths = {5, 6}};
  auto samples = std::make_shared<SyntheticImages>(
      SyntheticImages::Options{.height = 8, .width = 8, .classes = config.identities, .seed = 3});
  auto loss = [=](Model& model) {
    auto in = SmallInputs(model, *samples);
    Tensor images = transpose(in["images"], {0, 2, 3, 1});
    Tensor embeddings = FaceEmbedding(model.scope(), images, config, true);
    return FaceLoss(model.scope() / "identities", embeddings, in["labels"], config);
  };
  return {name, loss, samples, FaceOptimizer(1e-2, 5e-4), 0, {}, 0, 4, sampled > 0};
}

inline SmallModel SmallUnet() {
  const UnetConfig config = {.width = 4, .groups = 2, .times = 50};
  auto samples = std::make_shared<NoisyPictures>(
      std::make_shared<SyntheticImages>(SyntheticImages::Options{.height = 8, .width = 8, .seed = 3}),
      config.times, 0.0f, 1.0f);
  auto loss = [=](Model& model) {
    auto in = SmallInputs(model, *samples);
    Tensor guess = UnetNoise(model.scope(), transpose(in["noisy"], {0, 2, 3, 1}), in["time"], config);
    return mean(square(guess - to_stage_of(transpose(in["noise"], {0, 2, 3, 1}), guess)));
  };
  return {"unet", loss, samples, AdamW{.lr = 2e-3, .weight_decay = 0.01}, 1, {}, 0, 2};
}

inline std::vector<SmallModel> SmallModels() {
  std::vector<SmallModel> models;
  auto resnet = [&](const char* name, int64_t side, const ResNetConfig& config) {
    models.push_back(SmallVision(name, side, Sgd{.lr = 0.05, .momentum = 0.9, .weight_decay = 5e-4},
                                 [=](Scope s, Tensor x) { return ResNetLogits(s, x, config, true); }));
  };
  resnet("resnet", 12, {.blocks = {2, 1, 1}, .widths = {6, 8, 9}, .classes = 5});
  resnet("resnet_parts", 8, {.blocks = {1, 2, 1}, .widths = {4, 6, 8}, .classes = 5, .norm_parts = 4});
  models.back().parts = 4;
  resnet("bottleneck", 16,
         {.blocks = {2, 2}, .widths = {5, 6}, .bottleneck = true, .large_stem = true, .classes = 5});
  models.push_back(SmallVision("vit", 12, AdamW{.lr = 2e-3, .weight_decay = 0.05}, [](Scope s, Tensor x) {
    return VitLogits(s, x, {.layers = 4, .width = 24, .heads = 3, .patch = 4, .classes = 5}, true);
  }));
  models.back().clip_norm = 1;
  models.push_back(SmallClicks("dlrm", "mixed", Adagrad{.lr = 0.05, .by_rows = true}));
  models.push_back(SmallClicks("dlrm_sgd", "rows", Sgd{.lr = 0.2}));
  models.push_back(SmallClicks("dlrm_rows", "rows", Adagrad{.lr = 0.05, .by_rows = true}, 48));
  models.back().parts = 2;  // pools of nn::LookUp, which was not told of more micro-batches
  models.push_back(SmallMoe());
  models.push_back(SmallBert());
  models.push_back(SmallUnet());
  models.push_back(SmallFaces("faces", 0));
  models.push_back(SmallFaces("faces_sampled", 15));
  return models;
}

}  // namespace oneflow_like
