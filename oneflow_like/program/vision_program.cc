#include "oneflow_like/program/vision_program.h"

#include "oneflow_like/program/program.h"

namespace oneflow_like {
namespace {

void MeasurePictures(const Launcher& launcher, Model& model, const PictureData& data,
                     const VisionModel& vision, Metrics& metrics) {
  if (training_flags().eval_batches == 0) return;
  ModelGraph graph = model.NewGraph("eval");
  const PictureInputs in = InputsOf(graph, data);
  Tensor logits = vision.logits(graph.scope(), in.images, false);
  // Rows behind the last picture are labelled -1, which counts nowhere.
  Tensor right = equal(argmax(logits), cast(in.labels, DType::kInt64));
  Session eval = Evaluate(
      {{"loss", sum(cross_entropy(logits, in.labels))}, {"right", sum(cast(right, DType::kFloat32))}},
      EvaluateOptionsOfFlags("eval"));
  double loss = 0, correct = 0;
  int64_t pictures = 0;
  ForEachHeldOut(launcher, eval, data.held_out, {{"labels", -1}},
                 [&](const StepResult& result, int64_t rows) {
                   loss += static_cast<double>(result.Scalar("loss"));
                   correct += static_cast<double>(result.Scalar("right"));
                   pictures += rows;
                 });
  eval.Close();
  const double count = static_cast<double>(pictures), accuracy = 100 * correct / count;
  metrics.Add(model.next_step(), {{"held_out_loss", loss / count}, {"held_out_accuracy", accuracy}});
  launcher.Print("held-out accuracy %.2f %% of %lld pictures, loss %.4f\n", accuracy,
                 static_cast<long long>(pictures), loss / count);
}

}  // namespace

int TrainVisionModel(const Launcher& launcher, const MakeVisionModel& make, const PictureScale& scale) {
  CheckPictureFlags(launcher);
  const Mesh mesh = launcher.mesh(kAxes, kTrainingMesh, kMoreAxes);
  SyntheticImages::Options synthetic = {.seed = SeedOfFlags()}, held_out = synthetic;
  held_out.first = synthetic.samples;
  held_out.samples = 1024;
  const PictureData data = OpenPictures(synthetic, held_out, scale);
  if (!data.same_classes)
    Fail("--images=", picture_flags().images, ": train and val must have folders of the same names");
  const VisionModel vision = make(data.shape);
  return TrainProgram(
      launcher, mesh,
      {.about = data.name,
       .samples = data.train,
       .held_out = data.held_out,
       .unit = "pictures",
       .loss =
           [&](Model& model) {
             const PictureInputs in = InputsOf(model, data);
             return mean(cross_entropy(vision.logits(model.scope(), in.images, true), in.labels));
           },
       .optimizer = vision.optimizer,
       .model = ModelOptionsOfFlags(launcher),
       .train = TrainOptionsOfFlags(),
       .state = vision.state,
       .files = vision.files,
       .begin = vision.begin,
       .end =
           [&](Model& model, Metrics& metrics) {
             if (vision.end) vision.end(model);
             MeasurePictures(launcher, model, data, vision, metrics);
           }});
}

}  // namespace oneflow_like
