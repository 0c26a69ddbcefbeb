// A small GPT and tokens for it: what tests of plans compile and run.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "examples/gpt_model.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

using namespace examples;

struct SmallGpt {
  std::string mesh = "cpu:dp=1";
  int micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::string zero_axis;
  int zero_stage = 1, prefetch = 1;
  Recompute recompute = Recompute::kNone;
  int64_t batch = 8, context = 16;
  int64_t layers = 4, width = 64, heads = 4, vocabulary = 64;
  ModelOptions model_options = {};
  DType dtype = DType::kFloat32;
  double dropout = 0.1;  // when training
  std::string sequence = "";
  bool ulysses = false;  // over sp
  int64_t logits_tile = 0;
  int64_t bucket_bytes = 25 << 20;
  Parallel parallel = {};
  Overlap overlap = {};
  double average = 0;  // decay of averages of weights
  DType reduce_dtype = DType::kFloat32;
  std::optional<bool> gather_again = {};
  // Name of the run, for messages.
  std::string str() const {
    return Cat(mesh, " m=", micro_batches, " ", Name(schedule),
               model_options.pipeline.virtual_stages > 1 ? " round and round" : "",
               zero_axis.empty() ? "" : Cat(" zero=", zero_axis, " stage ", zero_stage),
               recompute == Recompute::kNone ? "" : Cat(" recompute=", Name(recompute)),
               gather_again ? Cat(" gather_again=", *gather_again) : "",
               model_options.offload.any() ? Cat(" offload=", OffloadText(model_options.offload)) : "");
  }
};

// The model, and sessions made of it.
class GptProgram {
 public:
  explicit GptProgram(const SmallGpt& given) : given_(given) {
    Mesh mesh = Mesh::Parse(given.mesh);
    std::vector<std::pair<std::string, int>> axes;
    for (const char* name : {"dp", "tp", "pp"}) {  // an axis, or a group of such
      const MeshAxes of_name = mesh.FindAxes(name);
      for (int a : of_name) axes.push_back({mesh.axis_name(a), mesh.axis_size(a)});
      if (of_name.empty()) axes.push_back({name, 1});
    }
    Annotation cut = {{"dp", S(0)}};
    for (int a : mesh.FindAxes(given.sequence)) {
      if (mesh.axis_name(a) == "tp") continue;
      axes.push_back({mesh.axis_name(a), mesh.axis_size(a)});
      cut.push_back({mesh.axis_name(a), S(1)});
    }
    ModelOptions options = given.model_options;
    options.zero = {.axis = given.zero_axis,
                    .stage = given.zero_stage,
                    .prefetch = given.prefetch,
                    .small = 0,
                    .bucket_bytes = given.bucket_bytes};
    model_ = std::make_unique<Model>(Mesh(mesh.kind(), axes, {}, mesh.groups()), options);
    tokens_ = model_->Input("tokens", {given.batch, given.context}, DType::kInt32, cut);
    targets_ = model_->Input("targets", {given.batch, given.context}, DType::kInt32, cut);
  }

  Model& model() { return *model_; }

  Session MakeTrain() {
    TrainOptions options;
    options.micro_batches = given_.micro_batches;
    options.schedule = given_.schedule;
    options.dtype = given_.dtype;
    options.recompute = given_.recompute;
    options.gather_again = given_.gather_again;
    options.parallel = given_.parallel;
    options.overlap = given_.overlap;
    options.clip_norm = 1;
    options.average.decay = given_.average;
    options.reduce_dtype = given_.reduce_dtype;
    return Train(GptLoss(model_->scope(), tokens_, targets_, Config(given_.dropout)), AdamW{.lr = 1e-3},
                 options);
  }

  Session MakeEvaluate() {
    SessionOptions options;
    options.micro_batches = given_.micro_batches;
    options.schedule = given_.schedule;
    options.dtype = given_.dtype;
    return Evaluate({{"loss", GptLoss(model_->scope(), tokens_, targets_, Config(0))}}, options);
  }

  Feeds MakeFeeds(int64_t step) const {
    std::vector<int32_t> ids(given_.batch * given_.context);
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<int32_t>(RandomBits(7, step, static_cast<uint64_t>(i)) % given_.vocabulary);
    HostTensor tokens = ToHost(ids, {given_.batch, given_.context});
    return {{"tokens", tokens}, {"targets", tokens}};
  }

  // Runs steps, on the batches from `first` on, and returns their losses.
  std::vector<float> Losses(Session& session, int64_t steps, int64_t first = 0) const {
    std::vector<float> losses;
    for (int64_t step = first; step < first + steps; ++step)
      losses.push_back(session.Run(MakeFeeds(step)).Scalar("loss"));
    return losses;
  }

 private:
  GptConfig Config(double dropout) const {
    GptConfig config;
    config.layers = given_.layers;
    config.width = given_.width;
    config.heads = given_.heads;
    config.context = given_.context;
    config.vocabulary = given_.vocabulary;
    config.dropout = dropout;
    config.sequence = given_.sequence;
    if (given_.ulysses) config.ulysses = "sp";
    config.logits_tile = given_.logits_tile;
    return config;
  }

  SmallGpt given_;
  std::unique_ptr<Model> model_;
  Tensor tokens_, targets_;
};

// The losses of a new training.
inline std::vector<float> LossesOf(const SmallGpt& given, int64_t steps) {
  GptProgram program(given);
  Session train = program.MakeTrain();
  return program.Losses(train, steps);
}

// Of one step, by the rank that sends most.
inline double BytesSent(const Session& session) {
  double sent = 0;
  for (const RankSummary& rank : session.Summaries()) sent = std::max(sent, rank.bytes_sent);
  return sent;
}
inline double BytesSent(const SmallGpt& given) { return BytesSent(GptProgram(given).MakeTrain()); }

// The same in what one of n devices lacks of all weights, (n-1)/n of their bytes: the unit of ZeRO's formulas
// (Rajbhandari et al. 2020).
inline double SharesSent(const SmallGpt& given, int n) {
  GptProgram program(given);
  const Session train = program.MakeTrain();
  double weights = 0;
  for (const auto& [name, variable] : program.model().impl()->variables)
    if (name.find(':') == std::string::npos) weights += 4.0 * static_cast<double>(variable.shape.elements());
  return BytesSent(train) / (weights * (n - 1) / n);
}

}  // namespace oneflow_like
