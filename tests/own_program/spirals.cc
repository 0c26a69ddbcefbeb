// Learns on which of several spirals a point of the plane lies, on any mesh of axes dp, tp and pp.
#include <cmath>
#include <memory>
#include <numbers>
#include <vector>

#include "core/random.h"
#include "oneflow_like/program/program.h"

namespace {

using namespace oneflow_like;

struct Flags {
  int64_t spirals = 3, width = 64, layers = 4;
  double noise = 0.1, weight_decay = 0.01;
} flags;

FlagGroup ModelGroup() {
  return {"model",
          "Model and data",
          {{"spirals", &flags.spirals, "Sets the number of spirals.", RangeOf(2, 100), kCommon | kKept},
           {"width", &flags.width, "Sets the width of each block.", RangeOf(1, 1 << 16), kCommon | kKept},
           {"layers", &flags.layers, "Sets the number of blocks.", RangeOf(1, 1000), kCommon | kKept},
           {"noise", &flags.noise, "Moves points away from their spiral by up to this angle.", RangeOf(0, 3),
            kKept},
           {"weight_decay", &flags.weight_decay, "Sets the weight decay of AdamW.", RangeOf(0, 1)}}};
}

// Points and the number of their spiral; each is a function of its own number alone.
class Spirals final : public SampleSource {
 public:
  Spirals(int64_t first, int64_t samples) : first_(first), samples_(samples) {}
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override { return samples_; }
  void Read(const SampleId& id, std::span<void* const> to) const override {
    const uint64_t key = RandomKey(1, HashName("spirals")), number = first_ + id.index;
    const int64_t spiral = RandomBits(key, number, 0) % flags.spirals;
    const double radius = 0.1 + 0.9 * ToUniform(RandomBits(key, number, 1)),
                 turns = static_cast<double>(spiral) / flags.spirals + radius,
                 angle = 2 * std::numbers::pi * turns +
                         flags.noise * (2 * ToUniform(RandomBits(key, number, 2)) - 1);
    float* point = static_cast<float*>(to[0]);
    point[0] = static_cast<float>(radius * std::cos(angle));
    point[1] = static_cast<float>(radius * std::sin(angle));
    *static_cast<int32_t*>(to[1]) = static_cast<int32_t>(spiral);
  }

 private:
  const int64_t first_, samples_;
  const std::vector<SampleField> fields_ = {{"points", DType::kFloat32, {2}}, {"labels", DType::kInt32, {}}};
};

// points f32[batch, 2] -> f32[batch, spirals]. Hidden layers are cut over tp, blocks are spread over pp.
Tensor Logits(Scope scope, Tensor points) {
  const int64_t width = flags.width, inner = 4 * flags.width;
  Tensor x = matmul(points, scope.Stage("pp", 0).Weight("in", {2, width}, Normal(2)));
  x = nn::layers(scope, sin(x), flags.layers, [&](Scope s, Tensor y, int64_t) {
    Tensor up = s.Weight("up", {width, inner}, KaimingNormal(), {{"tp", S(1)}});
    Tensor down = s.Weight("down", {inner, width}, Normal(0.02), {{"tp", S(0)}});
    return y + matmul(relu(matmul(nn::LayerNorm(s / "norm", y), up)), down);
  });
  return nn::Linear(scope / "out", nn::LayerNorm(scope / "norm", x), flags.spirals);
}

struct Outputs {
  Tensor losses, right;  // f32[batch]
};
// The graph of training, a Model, and that of held-out points, a ModelGraph, share weights by their names.
template <typename Graph>
Outputs Build(Graph& graph) {
  const int64_t batch = training_flags().batch;
  const Annotation cut = CutBatch(graph.scope().mesh());
  Tensor logits = Logits(graph.scope(), graph.Input("points", {batch, 2}, DType::kFloat32, cut));
  Tensor labels = graph.Input("labels", {batch}, DType::kInt32, cut);
  Tensor right = equal(argmax(logits), cast(labels, DType::kInt64));
  return {cross_entropy(logits, labels), cast(right, DType::kFloat32)};
}

void MeasureHeldOut(const Launcher& launcher, Model& model, std::shared_ptr<const SampleSource> points,
                    Metrics& metrics) {
  ModelGraph graph = model.NewGraph("eval");
  const Outputs of = Build(graph);
  Session eval =
      Evaluate({{"loss", sum(of.losses)}, {"right", sum(of.right)}}, EvaluateOptionsOfFlags("eval"));
  double loss = 0, right = 0, count = 0;
  // Rows after the last point are labelled -1, which has no loss and is never right.
  ForEachHeldOut(launcher, eval, points, {{"labels", -1}}, [&](const StepResult& result, int64_t rows) {
    loss += result.Scalar("loss");
    right += result.Scalar("right");
    count += static_cast<double>(rows);
  });
  eval.Close();
  if (count == 0) return;  // --eval_batches=0
  metrics.Add(model.next_step(), {{"held_out_loss", loss / count}, {"held_out_accuracy", right / count}});
  launcher.Print("held-out loss %.4f, %.1f %% of %.0f points right\n", loss / count, 100 * right / count,
                 count);
}

int TrainSpirals(const Launcher& launcher) {
  CheckTrainingFlags();
  const Mesh mesh = launcher.mesh(kAxes, kTrainingMesh, kMoreAxes);
  launcher.CheckFiles({}, {{"log_json", training_flags().log_json}});
  RequireFolders(launcher);
  const auto train = std::make_shared<Spirals>(0, 1 << 16),
             held_out = std::make_shared<Spirals>(1 << 16, 1000);
  return TrainProgram(
      launcher, mesh,
      {.about = Cat("points on ", flags.spirals, " spirals"),
       .samples = train,
       .unit = "points",
       .loss = [](Model& model) { return mean(Build(model).losses); },
       .optimizer = AdamW{.lr = training_flags().lr, .weight_decay = flags.weight_decay},
       .model = ModelOptionsOfFlags(launcher),
       .train = TrainOptionsOfFlags(),
       .end = [&](Model& model, Metrics& metrics) { MeasureHeldOut(launcher, model, held_out, metrics); }});
}

}  // namespace

int main(int argc, char** argv) {
  training_flags().unit = "points";
  training_flags().steps = 300;
  return ProgramMain(argc, argv, "Learns on which spiral a point lies.", {ModelGroup()}, TrainSpirals);
}
