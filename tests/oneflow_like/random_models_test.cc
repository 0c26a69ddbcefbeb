// Models drawn at random, on meshes, stages, signatures, micro-batches, schedules and processes drawn at
// random, train to what one device gives. `--cases` says how many models with whole-batch
// values, `--first_case` says where the seeds of all begin.
// ctest: long=20
#include <gflags/gflags.h>

#include <algorithm>

#include "tests/oneflow_like/thread_job.h"

DEFINE_int32(cases, 100, "Models with whole-batch values; the long test has 300 at least");
DEFINE_uint64(first_case, 0, "The first seed of all models");

namespace oneflow_like {
namespace {

constexpr int kBatch = 6, kWidth = 5, kSteps = 3;

struct Draw {
  uint64_t seed, purpose;
  uint64_t count = 0;
  int operator()(int limit) { return RandomBits(seed, purpose, count++) % limit; }
};

// What may be said of the axes of a mesh.
struct Axes {
  std::vector<std::string> names = {"dp", "tp"};
  bool nest = false;  // several may cut one axis of a tensor
  std::string head = "tp";
};

// The graph is a function of `shape` alone; `place` adds stages and annotations, which change no value.
Tensor RandomLoss(Model& model, uint64_t seed, const Axes& axes = {}) {
  Draw shape{seed, 1}, place{seed, 2}, regions{seed, 4}, experts{seed, 5}, nest{seed, 6}, room{seed, 8};
  const Mesh& mesh = model.mesh();
  int stages = mesh.axis_size(mesh.FindAxis("pp")), blocks = 3 + shape(4), stage = 0;
  bool back = place(3) == 0;  // whether the model may go back to an earlier stage
  std::vector<Tensor> seen = {model.Input("x", {kBatch, kWidth}, DType::kFloat32)};
  const auto nested = [&](Annotation cut, int rank) {
    if (!axes.nest) return cut;
    cut.clear();
    for (const std::string& axis : axes.names)
      if (nest(2)) cut.push_back({axis, S(nest(rank))});
    return cut;
  };
  Tensor ids = model.Input("ids", {kBatch}, DType::kInt32, nested({{"dp", S(0)}}, 1));
  auto annotated = [&](Tensor t) {
    Annotation a;
    bool cut[2] = {false, false};
    for (const std::string& axis : axes.names) {
      int what = place(6), i = place(t.shape().rank());
      if (what == 0) a.push_back({axis, B()});
      if (what == 1) a.push_back({axis, P()});
      if (what == 2 && (axes.nest || !cut[i])) a.push_back({axis, S(i)}), cut[i] = true;
    }
    return place(3) == 0 ? annotate(t, a) : t;
  };
  int tables = 0;
  for (int b = 0; b < blocks; ++b) {
    int next = place(stages);
    stage = b >= blocks - stages ? stages - (blocks - b) : back ? next : std::max(stage, next);
    if (stage < 0) stage = 0;
    Scope s = (model.scope() / Cat("b", b)).Stage("pp", stage);
    if (regions(2)) s.Region();
    // The last three blocks follow each other, so that every stage has work.
    size_t from = shape(static_cast<int>(seen.size()));
    Tensor x = to_stage(b >= blocks - 3 ? seen.back() : seen[from], "pp", stage);
    Annotation cut = nested(place(2) ? Annotation{{"tp", S(place(2))}} : Annotation{}, 2);
    Tensor y;
    switch (shape(6)) {
      case 0:
        y = matmul(x, s.Weight("w", {kWidth, kWidth}, Normal(.4), cut));
        break;
      case 1:
        y = layer_norm(x, s.Weight("gamma", {kWidth}, Ones()), s.Weight("beta", {kWidth}, Zeros()));
        break;
      case 2:
        if (tables++ > 0) cut.clear();  // what the first request said
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
    if (experts(5) == 0) {  // each row goes to two of three, or of as many as all ranks divide
      nn::ExpertsOptions o{
          .experts = 3, .inner = 4, .gate_init = Normal(1), .init = Normal(.4), .out_init = Normal(.4)};
      if (room(2) == 0) o.experts = 24, o.room = 24;
      if (axes.nest) o.ep = axes.head;
      Tensor rows = reshape(y, {kBatch, 1, kWidth});
      y = y + reshape(nn::Experts(s / "experts", rows, o).y, {kBatch, kWidth});
    }
    seen.push_back(annotated(y));
  }
  Tensor table = model.scope().Stage("pp", 0).Weight("table", {7, kWidth}, Normal(.4));
  Tensor last = seen.back() + to_stage(seen[shape(static_cast<int>(seen.size()))], "pp", stage);
  last = last + embedding(table, ids);
  Tensor weight =
      (model.scope() / "head").Stage("pp", stage).Weight("w", {kWidth, 3}, Normal(.5), {{axes.head, S(1)}});
  return mean(square(matmul(last, weight)));
}

Offload DrawOffload(Draw* draw) {
  Offload offload;
  if ((*draw)(3) > 0) return offload;
  offload.activations = (*draw)(2) == 0;
  offload.optimizer = (*draw)(3) / 2.0;
  offload.weights = (*draw)(2) == 0;
  offload.tables = (*draw)(2) == 0;
  offload.prefetch = (*draw)(3);
  offload.small = 0;
  return offload;
}

struct Setting {
  std::string mesh = "cpu:dp=1";
  Zero zero;
  Offload offload;
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
    options.schedule = static_cast<PipelineSchedule>(draw(4));
    options.exact_groups = draw(4) == 0;
    if (draw(4) == 0) zero = {.axis = "dp", .stage = 1 + draw(3), .prefetch = draw(3), .small = 0};
    options.recompute = kRecomputeModes[draw(kRecomputeModes.size())];
    if (draw(2)) options.overlap = {.chunks = 2 + draw(3), .always = true};
    const int64_t buckets[] = {0, 64, 300, 2000, 25 << 20};
    zero.bucket_bytes = buckets[draw(5)];
    const int role = draw(3);
    if (role == 0 && mesh.find("dp=") != std::string::npos) options.parallel.batch = "dp";
    if (role == 1) options.parallel.batch = "";  // cost decides
    offload = DrawOffload(&draw);
  }
  std::string str() const {
    return Cat(mesh, " micro_batches=", options.micro_batches, " in flight ", options.steps_in_flight, " ",
               Name(options.schedule), options.exact_groups ? " exact groups" : "",
               zero.axis.empty() ? "" : Cat(" ZeRO ", zero.stage), " bucket=", zero.bucket_bytes,
               options.parallel.batch ? Cat(" batch role '", *options.parallel.batch, "'") : "",
               " recompute=", Name(options.recompute), " overlap=", options.overlap.chunks,
               offload.any() ? Cat(" offload=", OffloadText(offload), " prefetch=", offload.prefetch) : "");
  }
};

Outputs Training(uint64_t seed, const Setting& setting, const Axes& axes = {}) {
  Model model(axes.nest ? Mesh::Parse(setting.mesh) : FullMesh(setting.mesh),
              {.zero = setting.zero, .offload = setting.offload});
  Session session = Train(RandomLoss(model, seed, axes), Sgd{.lr = .1, .momentum = .9}, setting.options);
  std::vector<StepResult> results;
  for (int step = 0; step < kSteps; ++step)
    results.push_back(session.Run({{"x", Floats(step, {kBatch, kWidth})}, {"ids", Ids(step, {kBatch}, 7)}}));
  Outputs values;
  for (int step = 0; step < kSteps; ++step) values[Cat("loss", step)] = results[step].Get("loss");
  for (const std::string& name : model.Variables()) values[name] = model.Read(name);
  return values;
}

void ExpectTrainingLikeOneDevice(uint64_t models) {
  for (uint64_t seed = FLAGS_first_case; seed < FLAGS_first_case + models; ++seed) {
    Setting setting(seed);
    std::string where = Cat("seed ", seed, ": ", setting.str());
    try {
      ExpectNear(Training(seed, setting), Training(seed, {}), 2e-5, where);
    } catch (const Error& e) {
      ADD_FAILURE() << where << ": " << e.what();
    }
  }
}
// Cuts that nest: groups of axes in annotations, experts, ZeRO and roles.
struct NestedSetting : Setting {
  Axes axes;
  explicit NestedSetting(uint64_t seed) : Setting(seed) {
    Draw draw{seed, 7};
    const char* meshes[] = {"cpu:r=2,dp=2,tp=2,pp=1", "cpu:dp=4,r=2,tp=1,pp=1", "cpu:r=2,pp=1,dp=4,tp=1",
                            "cpu:dp=2,r=1,tp=4,pp=1", "cpu:r=2,pp=2,dp=2,tp=1", "cpu:tp=2,dp=2,pp=2,r=1",
                            "cpu:r=3,dp=2,tp=1,pp=1", "cpu:tp=2,r=2,dp=2,pp=1"};
    mesh = meshes[draw(8)];
    const Mesh plain = Mesh::Parse(mesh);
    const auto product = [&](std::initializer_list<const char*> names) {
      MeshAxes all;
      for (const char* name : names) all.push_back(plain.FindAxis(name));
      std::sort(all.begin(), all.end());
      return plain.NameOf(all);
    };
    const std::string two = product({"r", "dp"}), three = product({"r", "dp", "tp"});
    mesh += Cat(";two=", two, ",three=", three);
    const std::string choices[] = {"two", "three", product({"dp", "tp"}), "dp", "r"};
    axes = {.names = {"r", "dp", "tp"}, .nest = true, .head = choices[draw(5)]};
    if (zero.axis == "dp" || draw(2))
      zero.axis = choices[draw(5)], zero.stage = 1 + draw(3), zero.prefetch = draw(3), zero.small = draw(20);
    options.parallel = {};
    const int role = draw(4);
    if (role == 0) options.parallel.batch = two;
    if (role == 1) options.parallel.batch = "";
    if (role == 2) options.parallel = {.batch = "r", .tensor = product({"dp", "tp"})};
  }
};

void ExpectNestedLikeOneDevice(uint64_t first, uint64_t models) {
  first += FLAGS_first_case;
  for (uint64_t seed = first; seed < first + models; ++seed) {
    const NestedSetting setting(seed);
    Setting alone;
    alone.mesh = "cpu:r=1,dp=1,tp=1,pp=1;two=r*dp,three=r*dp*tp";
    Axes whole = setting.axes;
    if (whole.head.find('*') != std::string::npos) whole.head = "three";
    const std::string where = Cat("seed ", seed, ": ", setting.str(), " over ", setting.zero.axis,
                                  " experts over ", setting.axes.head);
    try {
      ExpectNear(Training(seed, setting, setting.axes), Training(seed, alone, whole), 1e-5, where);
    } catch (const Error& e) {
      ADD_FAILURE() << where << ": " << e.what();
    }
  }
}
TEST(NestedCuts, TrainLikeOneDevice) { ExpectNestedLikeOneDevice(0, 60); }
TEST(LongNestedCuts, TrainLikeOneDevice) { ExpectNestedLikeOneDevice(60, 200); }

TEST(RandomModels, TrainLikeOneDevice) { ExpectTrainingLikeOneDevice(100); }
TEST(LongRandomModels, TrainLikeOneDevice) { ExpectTrainingLikeOneDevice(200); }

// --- Whole-batch values ---
//
// Statistics over the batch that are read for each example again: what leads to them is passed over once, who
// reads them comes in another pass over the micro-batches, in the backward pass too.

constexpr int kRows = 7;

// `shape` draws what is computed, `place` stages and signatures.
struct WholeBatchModel {
  Model& model;
  Draw shape, place;
  int stages = model.mesh().axis_size(2);

  Tensor Marked(Tensor t) {
    if (place(3) != 0) return t;
    const char* axis = place(2) ? "dp" : "tp";
    return annotate(t, {{axis, place(3) == 0 ? B() : S(place(t.shape().rank()))}});
  }

  // One row for all of x: [1, width].
  Tensor Statistic(Tensor x) {
    int width = static_cast<int>(x.shape()[1]);
    switch (shape(9)) {
      case 0:
        return sum(scale(x, .2), {0}, true);
      case 1:
        return max(x, {0}, true);
      case 2:
        return min(x, {0}, true);
      case 3:  // through views
        return transpose(mean(transpose(x, {1, 0}), {1}, true), {1, 0});
      case 4:
        return reshape(max(reshape(x, {kRows, width, 1}), {0}), {1, width});
      case 5:
        return reshape(mean(reshape(x, {kRows * width}), {0}, true), {1, 1});
      case 6:
        return slice(mean(concat({x, square(x)}, 1), {0}, true), 1, 1, width + 1);
      case 7:
        return sum(dropout(scale(x, .3), .25), {0}, true);
      default:
        return mean(x, {0}, true);
    }
  }

  Tensor Block(Tensor x, const std::vector<Tensor>& seen, const Scope& s, int stage) {
    const int64_t width = x.shape()[1];
    Annotation cut = place(2) ? Annotation{{"tp", S(place(2))}} : Annotation{};
    switch (shape(13)) {
      case 0: {  // batch norm
        Tensor d = x - Marked(mean(x, {0}, true));
        Tensor n = d * rsqrt(shift(mean(square(d), {0}, true), .1));
        return n * s.Weight("gamma", {width}, Normal(.2, 1)) + s.Weight("beta", {width}, Normal(.2));
      }
      case 1:  // how features go together over the batch
        return matmul(x, softmax(matmul(transpose(x, {1, 0}), scale(x, .3))));
      case 2:
        return x / shift(mean(abs(x)), .5);
      case 3:
        return dropout(gelu(x), .2) - Statistic(x);
      case 4:  // a weight that depends on the batch
        return matmul(x, s.Weight("w", {width, width}, Normal(.4), cut) * Statistic(x));
      case 5: {  // of two values, and of an earlier one
        Tensor old = to_stage(seen[shape(static_cast<int>(seen.size()))], "pp", stage);
        return x * sigmoid(Statistic(old)) + Statistic(x);
      }
      case 6:  // a statistic of what a statistic was taken from
        return x - Statistic(x - Statistic(x));
      case 7:
        return layer_norm(x - Statistic(x), s.Weight("gamma", {width}, Ones()),
                          s.Weight("beta", {width}, Zeros()));
      case 8: {  // each row looks at all of them, and of an earlier value
        Tensor old = to_stage(seen[shape(static_cast<int>(seen.size()))], "pp", stage);
        Tensor seen_by = softmax(matmul(scale(x, .5), transpose(Marked(whole_batch(x)), {1, 0})));
        return x + matmul(seen_by, whole_batch(shape(2) ? old : x));
      }
      case 9:  // running sums of the batch, of which each row reads its own
        return x + scale(cumsum(whole_batch(x), 0), .2);
      case 10:
        return x *
               Marked(softmax(whole_batch(matmul(x, s.Weight("w", {width, width}, Normal(.5), cut))), 0)) * 5;
      default:
        return gelu(matmul(x, s.Weight("w", {width, width}, Normal(.5), cut)));
    }
  }

  Tensor Loss() {
    const Annotation rows = place(2) ? Annotation{{"dp", S(0)}} : Annotation{};
    Tensor x = model.Input("x", {kRows, kWidth}, DType::kFloat32, rows);
    Tensor ids = model.Input("ids", {kRows}, DType::kInt32),
           mask = model.Input("mask", {kRows}, DType::kFloat32);
    std::vector<Tensor> seen = {x};
    const int blocks = 3 + shape(2);
    int stage = 0;
    for (int b = 0; b < blocks; ++b) {
      const int more = stages - 1 - stage;  // every stage has work
      if (b > 0 && more > 0 && (more == blocks - b || place(2))) ++stage;
      Scope s = (model.scope() / Cat("b", b)).Stage("pp", stage);
      Tensor at = to_stage(seen.back(), "pp", stage);
      at = matmul(at, s.Weight("in", {kWidth, kWidth}, Normal(.5)));  // so that every stage has work
      seen.push_back(Marked(Block(at, seen, s, stage)));
    }
    Scope head = (model.scope() / "head").Stage("pp", stage);
    Tensor logits = matmul(seen.back(), head.Weight("w", {kWidth, 4}, Normal(.5), {{"tp", S(1)}}));
    if (shape(3) == 0) logits = logits - Statistic(logits);
    Tensor each = cross_entropy(logits, ids);
    switch (shape(4)) {
      case 0:
        return sum(each * mask) / sum(mask);
      case 1:
        return sum(each * mask / sum(mask));
      case 2:
        return mean(each * mask * sigmoid(each - mean(each)));
      default:
        return mean(each * mask);
    }
  }
};

struct WholeBatchSetting : Setting {
  int processes = 1;
  WholeBatchSetting() = default;
  explicit WholeBatchSetting(uint64_t seed) {
    Draw draw{seed, 4};
    const char* meshes[] = {"cpu:dp=1",      "cpu:dp=2",          "cpu:tp=2",      "cpu:pp=2",
                            "cpu:dp=3",      "cpu:pp=3",          "cpu:dp=2,pp=2", "cpu:tp=2,pp=2",
                            "cpu:dp=2,tp=2", "cpu:dp=2,tp=2,pp=2"};
    mesh = meshes[draw(10)];
    options.micro_batches = 1 + draw(5);
    options.steps_in_flight = 1 + draw(2);
    options.schedule = static_cast<PipelineSchedule>(draw(4));
    if (draw(5) == 0) zero = {"dp"};
    if (FullMesh(mesh).size() % 2 == 0) processes = 1 + draw(2);
    offload = DrawOffload(&draw);
  }
  std::string str() const { return Cat(Setting::str(), " processes=", processes); }
};

Outputs TrainWholeBatch(uint64_t seed, const WholeBatchSetting& setting, std::shared_ptr<Job> job = nullptr) {
  ModelOptions options;
  options.job = job;
  options.zero = setting.zero;
  options.offload = setting.offload;
  Model model(FullMesh(setting.mesh), options);
  WholeBatchModel drawn{model, {seed, 5}, {seed, 6}};
  Session session = Train(drawn.Loss(), Sgd{.lr = .1, .momentum = .9}, setting.options);
  std::vector<StepResult> results;
  for (int step = 0; step < kSteps; ++step) {
    HostTensor mask = Floats(20 + step, {kRows});
    for (int i = 0; i < kRows; ++i) mask.as<float>()[i] = mask.as<float>()[i] > -.3f || i == 2;
    results.push_back(
        session.Run({{"x", Floats(step, {kRows, kWidth})}, {"ids", Ids(step, {kRows}, 4)}, {"mask", mask}}));
  }
  Outputs values;
  for (int step = 0; step < kSteps; ++step) values[Cat("loss", step)] = results[step].Get("loss");
  for (const std::string& name : model.Variables()) values[name] = model.Read(name);
  return values;
}

void ExpectValuesOfOneMicroBatch(int cases) {
  for (uint64_t seed = FLAGS_first_case; seed < FLAGS_first_case + cases; ++seed) {
    const WholeBatchSetting setting(seed);
    const std::string where = Cat("seed ", seed, ": ", setting.str());
    Outputs alone;
    const std::string failed = ErrorOf([&] { alone = TrainWholeBatch(seed, {}); });
    ASSERT_EQ(failed, "") << where;
    if (setting.processes == 1) {
      const std::string error =
          ErrorOf([&] { ExpectNear(TrainWholeBatch(seed, setting), alone, 2e-5, where); });
      EXPECT_EQ(error, "") << where;
      continue;
    }
    for (const std::string& error : RunProcesses(setting.processes, [&](std::shared_ptr<Job> job) {
           ExpectNear(TrainWholeBatch(seed, setting, job), alone, 2e-5, where);
         }))
      EXPECT_EQ(error, "") << where;
  }
}
TEST(RandomModels, WholeBatchValuesAreThoseOfOneMicroBatch) { ExpectValuesOfOneMicroBatch(FLAGS_cases); }
TEST(LongRandomModels, WholeBatchValuesAreThoseOfOneMicroBatch) {
  ExpectValuesOfOneMicroBatch(std::max(FLAGS_cases, 300));
}

}  // namespace
}  // namespace oneflow_like
