// Learns embeddings of faces by naming identities, whose centres are cut over mesh axis tp, and tells from
// those of identities that it has not seen which pictures show the same one. Any mesh of axes dp, tp and pp.
//   build/examples/insightface --identities=1000000 --sampled=10000 --mesh=cpu:tp=2
#include <gflags/gflags.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "examples/face_model.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/program/picture_data.h"
#include "oneflow_like/program/program.h"

DEFINE_string(size, "tiny", "of the network: tiny, 18 or 50");
DEFINE_int64(identities, 1000, "synthetic ones");
DEFINE_int64(width, 64, "of embeddings");
DEFINE_int64(sampled, 0, "identities of a step; 0: all");
DEFINE_double(scale, 32, "of cosines");
DEFINE_double(margin, 0.3, "of the own identity's angle, radians");

namespace oneflow_like {
namespace {

// The largest share, in percent, of pairs that one threshold on their cosine tells apart, where pairs of one
// identity and pairs of two count as much as each other. `same` and `other` are not empty.
double BestThreshold(std::vector<float> same, std::vector<float> other) {
  std::sort(same.begin(), same.end());
  std::sort(other.begin(), other.end());
  double best = 0;
  size_t below = 0;  // of `other`
  for (size_t i = 0; i < same.size(); ++i) {
    while (below < other.size() && other[below] < same[i]) ++below;
    const double hits = static_cast<double>(same.size() - i) / static_cast<double>(same.size()),
                 rejected = static_cast<double>(below) / static_cast<double>(other.size());
    best = std::max(best, 50 * (hits + rejected));
  }
  return best;
}

void Verify(const Launcher& launcher, Model& model, const PictureData& data, const FaceConfig& config,
            Metrics& metrics) {
  if (FLAGS_eval_batches == 0) return;
  ModelGraph graph = model.NewGraph("eval");
  const PictureInputs in = InputsOf(graph, data);
  Session eval = Evaluate({{"embeddings", FaceEmbedding(graph.scope(), in.images, config, false)},
                           {"labels", cast(in.labels, DType::kFloat32)}},
                          EvaluateOptionsOfFlags("eval"));
  std::vector<float> same, other;  // cosines of pairs within a batch
  ForEachHeldOut(launcher, eval, data.held_out, {}, [&](const StepResult& result, int64_t rows) {
    const float *vectors = result.Get("embeddings").as<float>(), *labels = result.Get("labels").as<float>();
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < i; ++j) {
        float cosine = 0;
        for (int64_t k = 0; k < config.width; ++k)
          cosine += vectors[i * config.width + k] * vectors[j * config.width + k];
        (labels[i] == labels[j] ? same : other).push_back(cosine);
      }
  });
  eval.Close();
  if (same.empty() || other.empty()) {
    launcher.Print("no batch held out has pairs of one identity and of two\n");
    return;
  }
  const size_t pairs = same.size();
  const double accuracy = BestThreshold(std::move(same), std::move(other));
  metrics.Add(model.next_step(), {{"verification_accuracy", accuracy}});
  launcher.Print("identities held out: %.2f %% of pairs told apart (%lld pairs of one identity)\n", accuracy,
                 static_cast<long long>(pairs));
}

int TrainFaces(const Launcher& launcher) {
  constexpr int64_t kUnseen = 32;
  CheckPictureFlags(launcher);
  CheckRange<int64_t>("--identities", FLAGS_identities, 2, 1 << 28);
  CheckRange<int64_t>("--width", FLAGS_width, 1, 1 << 16);
  CheckRange<int64_t>("--sampled", FLAGS_sampled, 0, 1 << 28);
  CheckRange("--scale", FLAGS_scale, 0.0, 1e6);
  CheckRange("--margin", FLAGS_margin, 0.0, 1.5);
  const Mesh mesh = launcher.mesh({"dp", "tp", "pp"}, kTrainingMesh);
  SyntheticImages::Options seen = {.classes = FLAGS_identities, .samples = 1 << 24, .seed = SeedOfFlags()},
                           unseen = seen;
  unseen.classes = kUnseen;
  unseen.first_class = FLAGS_identities;
  unseen.first = seen.samples;
  unseen.samples = 1024;
  const PictureData data = OpenPictures(seen, unseen);
  FaceConfig config = {.backbone = ResNetOfSize(FLAGS_size, data.shape.height),
                       .width = FLAGS_width,
                       .identities = data.shape.classes,
                       .scale = FLAGS_scale,
                       .margin = FLAGS_margin,
                       .sampled = FLAGS_sampled};
  return TrainProgram(
      launcher, mesh,
      {.about = Cat(data.name, ", each an identity"),
       .samples = data.train,
       .held_out = data.held_out,
       .unit = "pictures",
       .loss =
           [&](Model& model) {
             const PictureInputs in = InputsOf(model, data);
             Tensor embeddings = FaceEmbedding(model.scope(), in.images, config, true);
             return FaceLoss(model.scope() / "identities", embeddings, in.labels, config);
           },
       .optimizer = FaceOptimizer(FLAGS_lr, FLAGS_weight_decay),
       .model = ModelOptionsOfFlags(launcher),
       .train = TrainOptionsOfFlags(),
       .end = [&](Model& model, Metrics& metrics) { Verify(launcher, model, data, config, metrics); }});
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  oneflow_like::SetDefault("weight_decay", "0.0005");
  oneflow_like::SetDefault("eval_batches", "16");
  oneflow_like::SetDefault("steps", "500");
  oneflow_like::Launcher launcher(
      &argc, &argv, "Learns embeddings of faces by naming identities, on any mesh of axes dp, tp and pp.",
      oneflow_like::kTrainingMesh, oneflow_like::TrainingProgram);
  return launcher.Main([&] { return oneflow_like::TrainFaces(launcher); });
}
