// Trains a classifier of Fashion-MNIST on a mesh of axes dp and tp: the hidden layers are data-parallel over
// dp, the last layer and its loss have their classes cut over tp.
//   build/examples/mlp --mesh=cpu:dp=2,tp=2
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "oneflow_like/data/idx.h"
#include "oneflow_like/data/pipeline.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/precision.h"

namespace examples {
namespace {

using namespace oneflow_like;

struct Flags {
  int64_t epochs = 5, batch = 100, hidden = 256;
  double lr = 1e-3, dropout = 0.1;
  std::string dtype = "fp32", data_dir = "/usr/share/datasets/fashion-mnist", log_json, tensorboard;
} flags;

FlagGroup ModelGroup() {
  return {
      "model",
      "Model and training",
      {{"epochs", &flags.epochs, "Trains for this many passes over the images.", RangeOf(1, 1'000'000),
        kCommon},
       {"batch", &flags.batch, "Sets how many images one step takes, over all devices.", RangeOf(1, 1 << 20),
        kCommon},
       {"hidden", &flags.hidden, "Sets the width of the two hidden layers.", RangeOf(1, 1 << 20), kCommon},
       {"lr", &flags.lr, "Sets the highest learning rate of AdamW, from which a cosine falls to 0.",
        RangeAbove(0, 1e30), kCommon},
       {"dropout", &flags.dropout, "Drops values with this probability after each hidden layer.",
        RangeBelow(0, 1), kCommon},
       {"dtype", &flags.dtype, "Computes matrix products and activations in fp32, bf16 or fp16.",
        ChoiceOf({"fp32", "bf16", "fp16"}), kCommon},
       {"data_dir", &flags.data_dir, "Reads Fashion-MNIST's four gzipped IDX files from this folder.",
        kAnyValue, kCommon},
       {"log_json", &flags.log_json, "Writes one JSON object per step to this file.", kAnyValue,
        kCommon | kPerProcess},
       {"tensorboard", &flags.tensorboard, "Writes TensorBoard's event files to this folder.", kAnyValue,
        kCommon | kPerProcess}}};
}

constexpr int64_t kClasses = 10;
constexpr int kStepsInFlight = 2;
const char* const kMesh = "cpu:dp=1,tp=1";

Tensor Logits(Scope s, Tensor x, double drop) {
  const int64_t pixels = x.shape()[1], width = flags.hidden;
  Tensor h = relu(matmul(x, s.Weight("in", {pixels, width}, KaimingNormal())) +
                  s.Weight("in_bias", {width}, Zeros()));
  h = dropout(h, drop);
  h = relu(matmul(h, s.Weight("mid", {width, width}, KaimingNormal())) +
           s.Weight("mid_bias", {width}, Zeros()));
  h = dropout(h, drop);
  Tensor weight = s.Weight("out", {width, kClasses}, XavierNormal(), {{"tp", S(1)}});
  Tensor logits = matmul(h, weight) + s.Weight("out_bias", {kClasses}, Zeros(), {{"tp", S(0)}});
  // Every rank of tp holds some of the classes, and the loss is computed on them as they are. By cost alone
  // so small a weight would be gathered instead.
  return annotate(logits, {{"tp", S(1)}});
}

Session MakeTraining(Model& model, int64_t pixels, int64_t steps) {
  Tensor images = model.Input("images", {flags.batch, pixels}, DType::kFloat32, {{"dp", S(0)}});
  Tensor labels = model.Input("labels", {flags.batch}, DType::kInt32, {{"dp", S(0)}});
  Tensor loss = mean(cross_entropy(Logits(model.scope(), images, flags.dropout), labels));
  TrainOptions options;
  options.steps_in_flight = kStepsInFlight;
  options.dtype = PrecisionOf(flags.dtype);
  options.lr_schedule = {
      .kind = Schedule::Kind::kCosine, .warmup = std::min<int64_t>(100, steps / 10), .total = steps};
  return Train(loss, AdamW{.lr = flags.lr, .weight_decay = 0.01}, options);
}

Session MakeEvaluation(Model& model, int64_t pixels) {
  ModelGraph graph = model.NewGraph("test");
  Tensor images = graph.Input("images", {flags.batch, pixels}, DType::kFloat32, {{"dp", S(0)}});
  return Evaluate({{"class", argmax(Logits(graph.scope(), images, 0))}}, {.name = "test"});
}

// In percent of all images.
double Accuracy(const Launcher& launcher, Session& eval, std::shared_ptr<const IdxImages> set) {
  DataPipeline data(set, {.batch = flags.batch,
                          .shuffle = false,
                          .needs = eval.Needs(),
                          .epochs = 1,
                          .threads = launcher.data_threads()});
  int64_t right = 0;
  while (data.More()) {
    const int64_t begin = data.position();
    StepResult result = eval.Run(data);
    const int64_t* guess = result.Get("class").as<int64_t>();
    for (int64_t row = 0; row < data.rows(); ++row) right += guess[row] == set->label(begin + row);
  }
  return 100.0 * right / set->samples();
}

class Trainer {
 public:
  Trainer(const Launcher& launcher, Session session, std::shared_ptr<const IdxImages> set, int64_t steps,
          uint64_t seed)
      : session_(std::move(session)),
        launcher_(launcher),
        set_(set),
        steps_(steps),
        seed_(seed),
        metrics_(session_, {.json = flags.log_json,
                            .tensorboard = flags.tensorboard,
                            .unit = "images",
                            .per_step = static_cast<double>(flags.batch)}),
        progress_(launcher) {}

  void RunEpoch(int64_t epoch) {
    // Rows behind the epoch's end are labelled -1, which no loss counts.
    DataPipeline data(set_, {.batch = flags.batch,
                             .seed = seed_,
                             .needs = session_.Needs(),
                             .start = epoch * set_->samples(),
                             .epochs = epoch + 1,
                             .fill = {{"labels", -1}},
                             .threads = launcher_.data_threads()});
    while (data.More()) {
      in_flight_.push_back(session_.Run(data));
      if (in_flight_.size() >= static_cast<size_t>(kStepsInFlight)) FinishOne(epoch);
    }
    while (!in_flight_.empty()) FinishOne(epoch);
    progress_.End();
  }

  void Measured(double accuracy) { metrics_.Add(session_.next_step(), {{"test_accuracy", accuracy}}); }
  std::string ProfileText() { return session_.ProfileText(); }
  void Close() { session_.Close(); }

 private:
  void FinishOne(int64_t epoch) {
    const float loss = in_flight_.front().Scalar("loss");  // throws, naming the step, when it is NaN
    const int64_t step = in_flight_.front().step();
    metrics_.Step(in_flight_.front());
    in_flight_.pop_front();
    char line[120];
    std::snprintf(line, sizeof line, "epoch %lld/%lld  step %lld/%lld  loss %.4f  %s left",
                  static_cast<long long>(epoch + 1), static_cast<long long>(flags.epochs),
                  static_cast<long long>(step + 1), static_cast<long long>(steps_), static_cast<double>(loss),
                  MinutesAndSeconds(metrics_.step_seconds() * (steps_ - step - 1)).c_str());
    progress_.Update(line);
  }

  Session session_;
  const Launcher& launcher_;
  const std::shared_ptr<const IdxImages> set_;
  int64_t steps_;
  uint64_t seed_;
  Metrics metrics_;
  ProgressLine progress_;
  std::deque<StepResult> in_flight_;
};

int Run(const Launcher& launcher) {
  const Mesh mesh = launcher.mesh({"dp", "tp"}, kMesh);
  auto images = [](const std::string& which) {
    return flags.data_dir + "/" + which + "-images-idx3-ubyte.gz";
  };
  auto labels = [](const std::string& which) {
    return flags.data_dir + "/" + which + "-labels-idx1-ubyte.gz";
  };
  auto load = [&](const std::string& which) {
    return std::make_shared<IdxImages>(images(which), labels(which), kClasses);
  };
  std::vector<Launcher::FlagFile> inputs;
  for (const char* which : {"train", "t10k"})
    for (const std::string& path : {images(which), labels(which)}) inputs.push_back({"data_dir", path});
  launcher.CheckFiles(inputs, {{"log_json", flags.log_json}});
  const std::shared_ptr<const IdxImages> train_set = load("train"), test_set = load("t10k");
  if (train_set->pixels() != test_set->pixels()) {
    Fail(flags.data_dir, ": training images have ", train_set->pixels(), " pixels, test images ",
         test_set->pixels());
  }
  launcher.RequireSameFlags();
  const ModelOptions options = launcher.model_options();
  const int64_t steps = flags.epochs * ((train_set->samples() + flags.batch - 1) / flags.batch);
  Model model(mesh, options);
  Session train = MakeTraining(model, train_set->pixels(), steps);
  if (launcher.explain()) launcher.Print("%s", train.ExplainText().c_str());
  if (launcher.dry_run()) {
    launcher.Print("%s", train.SummaryText().c_str());
    return 0;
  }
  Trainer trainer(launcher, std::move(train), train_set, steps, options.seed);
  Session eval = MakeEvaluation(model, train_set->pixels());
  double accuracy = 0;
  for (int64_t epoch = 0; epoch < flags.epochs; ++epoch) {
    trainer.RunEpoch(epoch);
    accuracy = Accuracy(launcher, eval, test_set);
    trainer.Measured(accuracy);
    launcher.Print("epoch %lld: test accuracy %.2f %%\n", static_cast<long long>(epoch + 1), accuracy);
    std::fflush(stdout);
  }
  launcher.Print("%s", trainer.ProfileText().c_str());
  launcher.Print("test accuracy %.1f %%\n", accuracy);
  eval.Close();
  trainer.Close();  // a trace that cannot be written is an error here
  return 0;
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) {
  using namespace examples;
  Launcher launcher(&argc, &argv, "Trains a classifier of Fashion-MNIST on a mesh of axes dp and tp.", kMesh,
                    {}, {ModelGroup()});
  return launcher.Main([&] { return Run(launcher); });
}
