// Learns embeddings of faces by naming identities, whose centres are cut over mesh axis tp, and tells from
// those of identities that it has not seen which pictures show the same one. Any mesh of axes dp, tp and pp.
//   build/examples/insightface --identities=1000000 --sampled=10000 --mesh=cpu:tp=2
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "examples/face_model.h"
#include "oneflow_like/program/picture_data.h"
#include "oneflow_like/program/program.h"

namespace examples {
namespace {

using namespace oneflow_like;

struct Flags {
  std::string size = "tiny";
  int64_t identities = 1000, width = 64, sampled = 0;
  double scale = 32, margin = 0.3;
} flags;

FlagGroup ModelGroup() {
  return {
      "model",
      "Model",
      {{"size", &flags.size, "Chooses the residual network: tiny, 18 or 50.", kAnyValue, kCommon | kKept},
       {"identities", &flags.identities, "Sets the number of synthetic identities.", RangeOf(2, 1 << 28),
        kCommon | kKept},
       {"width", &flags.width, "Sets the number of components of an embedding.", RangeOf(1, 1 << 16),
        kCommon | kKept},
       {"sampled", &flags.sampled,
        "Compares each picture with this many identities in a step; 0 compares it with all.",
        RangeOf(0, 1 << 28), kCommon | kKept},
       {"scale", &flags.scale, "Multiplies cosines by this number before the softmax.", RangeOf(0, 1e6),
        kKept},
       {"margin", &flags.margin, "Adds this many radians to the angle between a picture and its identity.",
        RangeOf(0, 1.5), kKept}}};
}

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
  if (training_flags().eval_batches == 0) return;
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
  const Mesh mesh = launcher.mesh(kAxes, kTrainingMesh, kMoreAxes);
  SyntheticImages::Options seen = {.classes = flags.identities, .samples = 1 << 24, .seed = SeedOfFlags()},
                           unseen = seen;
  unseen.classes = kUnseen;
  unseen.first_class = flags.identities;
  unseen.first = seen.samples;
  unseen.samples = 1024;
  const PictureData data = OpenPictures(seen, unseen);
  FaceConfig config = {.backbone = ResNetOfSize(flags.size, data.shape.height),
                       .width = flags.width,
                       .identities = data.shape.classes,
                       .scale = flags.scale,
                       .margin = flags.margin,
                       .sampled = flags.sampled};
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
       .optimizer = FaceOptimizer(training_flags().lr, picture_flags().weight_decay),
       .model = ModelOptionsOfFlags(launcher),
       .train = TrainOptionsOfFlags(),
       .end = [&](Model& model, Metrics& metrics) { Verify(launcher, model, data, config, metrics); }});
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) {
  using namespace examples;
  training_flags().unit = "pictures";
  training_flags().steps = 500;
  picture_flags().weight_decay = 0.0005;
  return ProgramMain(
      argc, argv, "Learns embeddings of faces by naming identities, on any mesh of axes dp, tp and pp.",
      {ModelGroup(), PictureGroup()}, [](const Launcher& launcher) { return TrainFaces(launcher); });
}
