// Models drawn at random, on meshes, stages, signatures, micro-batches and schedules drawn at random, train
// to what one device gives.
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

constexpr int kBatch = 6, kWidth = 5, kSteps = 3;

struct Draw {
  uint64_t seed, purpose;
  uint64_t count = 0;
  int operator()(int limit) { return RandomBits(seed, purpose, count++) % limit; }
};

// The graph is a function of `shape` alone; `place` adds stages and annotations, which change no value.
Tensor RandomLoss(Model& model, uint64_t seed) {
  Draw shape{seed, 1}, place{seed, 2};
  const Mesh& mesh = model.mesh();
  int stages = mesh.axis_size(2), blocks = 3 + shape(4), stage = 0;
  bool back = place(3) == 0;  // whether the model may go back to an earlier stage
  std::vector<Tensor> seen = {model.Input("x", {kBatch, kWidth}, DType::kFloat32)};
  Tensor ids = model.Input("ids", {kBatch}, DType::kInt32, {{"dp", S(0)}});
  auto annotated = [&](Tensor t) {
    Annotation a;
    bool cut[2] = {false, false};
    for (const char* axis : {"dp", "tp"}) {
      int what = place(6), i = place(t.shape().rank());
      if (what == 0) a.push_back({axis, B()});
      if (what == 1) a.push_back({axis, P()});
      if (what == 2 && !cut[i]) a.push_back({axis, S(i)}), cut[i] = true;
    }
    return place(3) == 0 ? annotate(t, a) : t;
  };
  for (int b = 0; b < blocks; ++b) {
    int next = place(stages);
    stage = b >= blocks - stages ? stages - (blocks - b) : back ? next : std::max(stage, next);
    if (stage < 0) stage = 0;
    Scope s = (model.scope() / Cat("b", b)).Stage("pp", stage);
    // The last three blocks follow each other, so that every stage has work.
    size_t from = shape(static_cast<int>(seen.size()));
    Tensor x = to_stage(b >= blocks - 3 ? seen.back() : seen[from], "pp", stage);
    Annotation cut = place(2) ? Annotation{{"tp", S(place(2))}} : Annotation{};
    Tensor y;
    switch (shape(6)) {
      case 0:
        y = matmul(x, s.Weight("w", {kWidth, kWidth}, Normal(.4), cut));
        break;
      case 1:
        y = layer_norm(x, s.Weight("gamma", {kWidth}, Ones()), s.Weight("beta", {kWidth}, Zeros()));
        break;
      case 2:
        y = x + embedding(model.scope().Stage("pp", 0).Weight("table", {7, kWidth}, Normal(.4), cut), ids);
        break;
      case 3:
        y = dropout(gelu(x), .3) + to_stage(seen[0], "pp", stage);
        break;
      case 4:
        y = matmul(softmax(x),
                   (model.scope() / "shared").Stage("pp", 0).Weight("w", {kWidth, kWidth}, Normal(.4)));
        break;
      default:
        y = concat({slice(x, 1, 2, kWidth), slice(x, 1, 0, 2)}, 1) *
            s.Weight("scale", {kWidth}, Normal(.2, 1));
    }
    seen.push_back(annotated(y));
  }
  Tensor table = model.scope().Stage("pp", 0).Weight("table", {7, kWidth}, Normal(.4));
  Tensor last = seen.back() + to_stage(seen[shape(static_cast<int>(seen.size()))], "pp", stage);
  last = last + embedding(table, ids);
  Tensor weight =
      (model.scope() / "head").Stage("pp", stage).Weight("w", {kWidth, 3}, Normal(.5), {{"tp", S(1)}});
  return mean(square(matmul(last, weight)));
}

struct Setting {
  std::string mesh = "cpu:dp=1";
  TrainOptions options;
  Setting() { options.clip_norm = .3; }
  explicit Setting(uint64_t seed) : Setting() {
    Draw draw{seed, 3};
    const char* meshes[] = {"cpu:dp=1",           "cpu:dp=2",      "cpu:tp=2",      "cpu:pp=2",
                            "cpu:pp=3",           "cpu:dp=2,pp=2", "cpu:tp=2,pp=2", "cpu:dp=2,tp=2",
                            "cpu:dp=2,tp=2,pp=2", "cpu:dp=3"};
    mesh = meshes[draw(10)];
    options.micro_batches = 1 + draw(4);
    options.steps_in_flight = 1 + draw(3);
    if (draw(3) == 0) options.schedule = PipelineSchedule::kGPipe;
    if (draw(4) == 0) options.zero_axis = "dp";
  }
  std::string str() const {
    return Cat(mesh, " micro_batches=", options.micro_batches, " in flight ", options.steps_in_flight,
               options.schedule == PipelineSchedule::kGPipe ? " GPipe" : "",
               options.zero_axis.empty() ? "" : " ZeRO");
  }
};

Outputs Training(uint64_t seed, const Setting& setting) {
  Model model(FullMesh(setting.mesh));
  Session session = Train(RandomLoss(model, seed), Sgd{.lr = .1, .momentum = .9}, setting.options);
  std::vector<StepResult> results;
  for (int step = 0; step < kSteps; ++step)
    results.push_back(session.Run({{"x", Floats(step, {kBatch, kWidth})}, {"ids", Ids(step, {kBatch}, 7)}}));
  Outputs values;
  for (int step = 0; step < kSteps; ++step) values[Cat("loss", step)] = results[step].Get("loss");
  for (const std::string& name : model.Variables()) values[name] = model.Read(name);
  return values;
}

TEST(RandomModels, TrainLikeOneDevice) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Setting setting(seed);
    std::string where = Cat("seed ", seed, ": ", setting.str());
    try {
      ExpectNear(Training(seed, setting), Training(seed, {}), 2e-5, where);
    } catch (const Error& e) {
      ADD_FAILURE() << where << ": " << e.what();
    }
  }
}

}  // namespace
}  // namespace oneflow_like
