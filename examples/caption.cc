// Trains a Vision Transformer and a Llama to say what is in synthetic pictures, on any mesh of axes dp, tp
// and pp: the blocks of the text model on the stages of pp, the Vision Transformer on all devices.
//   build/examples/caption --mesh=cpu:dp=2,tp=2,pp=2 --micro_batches=2
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "examples/caption_model.h"
#include "oneflow_like/program/program.h"
#include "oneflow_like/program/synthetic.h"

namespace examples {
namespace {

using namespace oneflow_like;

struct Flags {
  int64_t image_size = 16, eye_layers = 2, layers = 4;
  double weight_decay = 0.01;
} flags;

FlagGroup ModelGroup() {
  return {
      "model",
      "Model",
      {{"image_size", &flags.image_size, "Sets the pixels along a side of a picture.", RangeOf(4, 1 << 14),
        kCommon | kKept},
       {"eye_layers", &flags.eye_layers, "Sets the number of blocks that read the picture.",
        RangeOf(1, 10'000), kCommon | kKept},
       {"layers", &flags.layers, "Sets the number of blocks that write the text.", RangeOf(1, 10'000),
        kCommon | kKept},
       {"weight_decay", &flags.weight_decay, "Sets the weight decay of AdamW.", RangeOf(0, 1e30), kKept}}};
}

constexpr int64_t kClasses = 10, kWords = 8, kChannels = 3;

// Pictures of classes, each of which is said in words of its own; one in eight is not shown. Fields: "images"
// f32[channels, height, width]; "shown" f32[], 1 or 0; "tokens" i32[kWords], which begin with 0; "targets"
// i32[kWords], the words.
class Captions final : public SampleSource {
 public:
  Captions(int64_t side, int64_t first, int64_t samples)
      : images_({.channels = kChannels,
                 .height = side,
                 .width = side,
                 .classes = kClasses,
                 .first = first,
                 .samples = samples}),
        first_(first),
        fields_{images_.fields()[0],
                {"shown", DType::kFloat32, {}},
                {"tokens", DType::kInt32, {kWords}},
                {"targets", DType::kInt32, {kWords}}} {}
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override { return images_.samples(); }
  void Read(const SampleId& id, std::span<void* const> to) const override {
    int32_t label = 0;
    void* const picture[] = {to[0], &label};
    images_.Read(id, picture);
    *static_cast<float*>(to[1]) = (first_ + id.index) % 8 == 7 ? 0.0f : 1.0f;
    auto *tokens = static_cast<int32_t*>(to[2]), *targets = static_cast<int32_t*>(to[3]);
    for (int32_t i = 0; i < kWords; ++i) {
      targets[i] = 1 + label * static_cast<int32_t>(kWords) + i;
      tokens[i] = i == 0 ? 0 : targets[i - 1];
    }
  }

 private:
  const SyntheticImages images_;
  const int64_t first_;
  const std::vector<SampleField> fields_;
};

template <typename Graph>
Tensor Loss(Graph& graph, const CaptionConfig& config, bool training) {
  const int64_t n = training_flags().batch, side = flags.image_size;
  const Annotation batch = CutBatch(graph.scope().mesh());
  Annotation all = batch;
  all.push_back({"pp", S(0)});
  Tensor images = graph.Input("images", {n, kChannels, side, side}, DType::kFloat32, all);
  Tensor shown = graph.Input("shown", {n}, DType::kFloat32, all);
  Tensor tokens = graph.Input("tokens", {n, kWords}, DType::kInt32, batch);
  Tensor targets = graph.Input("targets", {n, kWords}, DType::kInt32, batch);
  images = transpose(images, {0, 2, 3, 1});
  return mean(cross_entropy(CaptionLogits(graph.scope(), images, shown, tokens, config, training), targets));
}

void MeasureHeldOut(const Launcher& launcher, Model& model, const CaptionConfig& config,
                    const std::shared_ptr<const SampleSource>& held_out, Metrics& metrics) {
  if (training_flags().eval_batches == 0) return;
  ModelGraph graph = model.NewGraph("eval");
  Session eval = Evaluate({{"loss", Loss(graph, config, false)}}, EvaluateOptionsOfFlags("eval"));
  double loss = 0;
  int64_t batches = 0;
  ForEachHeldOut(launcher, eval, held_out, {}, [&](const StepResult& result, int64_t) {
    loss += static_cast<double>(result.Scalar("loss"));
    ++batches;
  });
  eval.Close();
  metrics.Add(model.next_step(), {{"held_out_loss", loss / batches}});
  launcher.Print("held-out loss %.4f a word; without pictures at least %.4f\n", loss / batches,
                 std::log(static_cast<double>(kClasses)) / kWords);
}

int TrainCaptions(const Launcher& launcher) {
  CheckTrainingFlags();
  CaptionConfig config;
  config.eye.layers = flags.eye_layers;
  config.text.layers = flags.layers;
  config.text.vocabulary = 1 + kClasses * kWords;
  if (flags.image_size % config.eye.patch != 0)
    Fail("--image_size=", flags.image_size, ": must be a multiple of the ", config.eye.patch,
         " pixels of a patch");
  const Mesh mesh = launcher.mesh(kAxes, kTrainingMesh, kMoreAxes);
  CheckLlama(config.text, mesh, "caption");
  launcher.CheckFiles({}, {{"log_json", training_flags().log_json}});
  RequireFolders(launcher);
  constexpr int64_t kPictures = 1 << 16;
  const auto train = std::make_shared<Captions>(flags.image_size, 0, kPictures);
  const auto held_out = std::make_shared<Captions>(flags.image_size, kPictures, kPictures);
  return TrainProgram(
      launcher, mesh,
      {.about = Cat("synthetic pictures of ", kClasses, " classes, said in ", kWords, " words"),
       .samples = train,
       .unit = "texts",
       .loss = [&](Model& model) { return Loss(model, config, true); },
       .optimizer = AdamW{.lr = training_flags().lr, .weight_decay = flags.weight_decay},
       .model = ModelOptionsOfFlags(launcher),
       .train = TrainOptionsOfFlags(),
       .end = [&](Model& model,
                  Metrics& metrics) { MeasureHeldOut(launcher, model, config, held_out, metrics); }});
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) {
  using namespace examples;
  training_flags().unit = "texts";
  training_flags().batch = 32;
  return ProgramMain(
      argc, argv,
      "Trains a Vision Transformer and a Llama to say what pictures show, on any mesh of axes dp, tp and pp.",
      {ModelGroup()}, [](const Launcher& launcher) { return TrainCaptions(launcher); });
}
