// Sessions through the public API: whatever the mesh, the micro-batches, the stages and the schedule, a
// session gives what one device gives.
// ctest: asan=135
#include <functional>

#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

// --- Feeds and fetches ---

TEST(Session, FeedsAndFetchesEveryType) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32, DType::kInt64,
                      DType::kUInt8, DType::kBool}) {
    for (const Dims& shape : {Dims{5, 3}, Dims{1, 2}, Dims{0, 3}, Dims{4}}) {
      Model model(FullMesh("cpu:dp=2,tp=2"));
      Tensor x = model.Input("x", shape, dtype, {{"dp", S(0)}});
      Session session = Evaluate({{"x", x}, {"whole", annotate(x, {{"dp", B()}, {"tp", B()}})}});
      HostTensor feed = HostTensor::Make(dtype, shape);
      for (size_t i = 0; i < feed.bytes(); ++i)
        feed.as<uint8_t>()[i] = RandomBits(1, 0, i) % (dtype == DType::kBool ? 2 : 64);
      StepResult result = session.Run({{"x", feed}});
      EXPECT_TRUE(SameBytes(result.Get("x"), feed)) << Name(dtype) << shape.str();
      EXPECT_TRUE(SameBytes(result.Get("whole"), feed)) << Name(dtype) << shape.str();
    }
  }
}

TEST(Session, ScalarInputAndCasts) {
  Model model(FullMesh("cpu:dp=2"));
  Tensor factor = model.Input("factor", {}, DType::kFloat32, {}, -1);
  Tensor x = model.Input("x", {3, 2}, DType::kFloat32);
  Tensor half = cast(x * factor, DType::kBFloat16);
  Session session =
      Evaluate({{"back", cast(half, DType::kFloat32)}, {"int", cast(x * factor, DType::kInt64)}});
  StepResult r = session.Run(
      {{"factor", ToHost<float>({2}, {})}, {"x", ToHost<float>({1, 2, -3, 0.5, 1.001f, 100}, {3, 2})}});
  EXPECT_TRUE(SameBytes(r.Get("back"), ToHost<float>({2, 4, -6, 1, 2, 200}, {3, 2})));
  EXPECT_TRUE(SameBytes(r.Get("int"), ToHost<int64_t>({2, 4, -6, 1, 2, 200}, {3, 2})));
}

// --- One model of many operators, every signature ---

// Annotates what it is given at random: each mesh axis that works here gets B, a cut, a partial sum, or no
// word.
struct Marker {
  uint64_t seed = 0;  // 0: never
  uint64_t count = 0;
  Tensor operator()(Tensor x) {
    if (seed == 0) return x;
    Annotation annotation;
    std::vector<bool> cut(x.shape().rank() + 1, false);
    for (const char* axis : {"dp", "tp"}) {
      uint32_t draw = RandomBits(seed, 1, count++), which = draw % 5;
      int tensor_axis = x.shape().rank() ? draw / 8 % x.shape().rank() : 0;
      if (which == 0) annotation.push_back({axis, B()});
      if (which == 1 && x.dtype() == DType::kFloat32) annotation.push_back({axis, P()});
      if (which >= 3 && x.shape().rank() && !cut[tensor_axis]) {
        annotation.push_back({axis, S(tensor_axis)});
        cut[tensor_axis] = true;
      }
    }
    return annotate(x, annotation);
  }
};

constexpr int kBatch = 7;

std::map<std::string, Tensor> Mixed(Model& model, Marker mark) {
  Tensor x = model.Input("x", {kBatch, 5, 6}, DType::kFloat32),
         ids = model.Input("ids", {kBatch, 5}, DType::kInt32);
  Scope s = model.scope() / "mixed";
  Tensor table = s.Weight("table", {11, 6}, Normal(1)), w = s.Weight("w", {6, 9}, Normal(.5));
  std::map<std::string, Tensor> o;
  Tensor h = mark(layer_norm(x, s.Weight("gamma", {6}, Uniform(.5, 1.5)), s.Weight("beta", {6}, Normal(.1))));
  Tensor e = mark(embedding(table, ids)), g = mark(gather(table, ids));
  Tensor a = o["einsum"] = mark(einsum("bsd,dk->bsk", h + e, w));
  Tensor soft = o["softmax"] = mark(softmax(a));
  Tensor arg = o["argmax"] = mark(argmax(a));
  Tensor c = o["concat"] = mark(concat({soft, mark(one_hot(arg, 9))}, 2));
  std::vector<Tensor> parts = split(c, 2, 3);
  Tensor t = o["transpose"] = mark(transpose(mark(slice(c, 1, 1, 4)), {2, 0, 1}));
  Tensor flat = o["reshape"] = mark(reshape(t, {18, -1}));
  Tensor chosen = o["where"] = mark(where(greater(h, e), parts[0], mark(parts[1] * g)));
  Tensor total = o["sum"] = mark(sum(chosen, {1}));
  o["log_softmax"] = mark(log_softmax(total));
  o["max"] = mark(max(mark(flat), {1}));
  o["min"] = mark(min(chosen, {0}));
  o["max_all"] = mark(max(total));
  o["padded"] = mark(pad(parts[2], 1, 2, 1));
  o["mean"] = mark(mean(square(total))) + mean(mark(gelu(a))) + mean(mark(max(flat, {0}))) +
              mean(square(min(chosen, {1})));
  o["mean_of_extremes"] = o["mean"] + mean(o["max"]) + mean(square(o["min"]));  // which take the whole batch
  return o;
}

Feeds MixedFeeds(int step) {
  return {{"x", Floats(10 + step, {kBatch, 5, 6})}, {"ids", Ids(50 + step, {kBatch, 5}, 11)}};
}

Outputs MixedValues(const std::string& mesh, uint64_t seed, int micro_batches = 1) {
  Model model(FullMesh(mesh));
  std::map<std::string, Tensor> tensors = Mixed(model, {seed});
  if (micro_batches > 1)
    tensors.erase("reshape");  // its batch is merged behind another axis: no part of time is one box
  SessionOptions options;
  options.micro_batches = micro_batches;
  Session session = Evaluate(tensors, options);
  StepResult r = session.Run(MixedFeeds(0));
  Outputs values;
  for (const auto& [name, tensor] : tensors) values[name] = r.Get(name);
  return values;
}

Outputs Without(Outputs values, const std::string& name) {
  values.erase(name);
  return values;
}

Outputs MixedTraining(const std::string& mesh, uint64_t seed, const char* loss, int micro_batches = 1) {
  Model model(FullMesh(mesh));
  TrainOptions options;
  options.micro_batches = micro_batches;
  options.clip_norm = 1;
  Session session = Train(Mixed(model, {seed})[loss], Sgd{.lr = .1, .momentum = .5}, options);
  Outputs values;
  for (int step = 0; step < 3; ++step) {
    StepResult r = session.Run(MixedFeeds(step));
    for (const char* name : {"loss", "grad_norm"}) values[Cat(name, step)] = r.Get(name);
  }
  for (const char* w : {"table", "w", "gamma", "beta"}) values[w] = model.Read(Cat("mixed/", w));
  return values;
}

TEST(Session, EveryMeshGivesTheValuesOfOneDevice) {
  Outputs one = MixedValues("cpu:dp=1", 0);
  for (const char* mesh : {"cpu:dp=2", "cpu:tp=2", "cpu:dp=2,tp=2", "cpu:dp=3", "cpu:dp=4,tp=3"})
    for (uint64_t seed = 0; seed < 7; ++seed)
      for (int micro_batches : {1, 3})
        ExpectNear(MixedValues(mesh, seed, micro_batches), micro_batches == 1 ? one : Without(one, "reshape"),
                   1e-5, Cat(mesh, " annotated by seed ", seed, ", ", micro_batches, " micro-batches"));
}

TEST(Session, EveryMeshTrainsLikeOneDevice) {
  Outputs one = MixedTraining("cpu:dp=1", 0, "mean"),
          extremes = MixedTraining("cpu:dp=1", 0, "mean_of_extremes");
  for (const char* mesh : {"cpu:dp=2", "cpu:tp=2", "cpu:dp=2,tp=2", "cpu:dp=3"})
    for (uint64_t seed = 0; seed < 7; ++seed) {
      std::string where = Cat(mesh, " annotated by seed ", seed);
      ExpectNear(MixedTraining(mesh, seed, "mean"), one, 2e-5, where);
      ExpectNear(MixedTraining(mesh, seed, "mean", 3), one, 2e-5, where + ", 3 micro-batches");
      ExpectNear(MixedTraining(mesh, seed, "mean_of_extremes"), extremes, 2e-5, where + ", extremes");
    }
}

// Reductions of a tensor in every signature to a result in every signature.
TEST(Session, ReductionsInEverySignature) {
  HostTensor feed = Floats(3, {5, 4});
  std::vector<Sbp> in = {B(), S(0), S(1), P()}, out = {B(), S(0), P()};
  using Reduction = std::function<Tensor(Tensor)>;
  std::map<std::string, Reduction> reductions = {{"max", [](Tensor t) { return max(t, {0}); }},
                                                 {"min", [](Tensor t) { return min(t, {0}); }},
                                                 {"sum", [](Tensor t) { return sum(t, {0}); }},
                                                 {"mean", [](Tensor t) { return mean(t, {1}); }}};
  for (const auto& [name, reduce] : reductions) {
    HostTensor wanted;
    for (const char* mesh : {"cpu:dp=1", "cpu:dp=2", "cpu:dp=3"})
      for (const Sbp& from : in)
        for (const Sbp& to : out) {
          Model model(Mesh::Parse(mesh));
          Tensor x = model.Input("x", {5, 4}, DType::kFloat32);
          Tensor y = annotate(reduce(annotate(x, {{"dp", from}})), {{"dp", to}});
          HostTensor got = Evaluate({{"y", scale(y, 2)}}).Run({{"x", feed}}).Get("y");
          if (!wanted.data) wanted = got;
          EXPECT_LE(Difference(got, wanted), 1e-6)
              << name << " on " << mesh << " " << from.str() << " -> " << to.str();
        }
  }
}

// --- Pipelines ---

struct Training {
  std::string mesh = "cpu:dp=1";
  int micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::string zero_axis;
  int steps_in_flight = 2;
  int threads = 0;
  std::string str() const {
    return Cat(mesh, " micro_batches=", micro_batches, schedule == PipelineSchedule::kGPipe ? " GPipe" : "",
               zero_axis.empty() ? "" : " ZeRO", " in flight ", steps_in_flight);
  }
};

struct Pipelined {
  Tensor loss, logits, masks;
};

// Two blocks on two stages (or one, where the mesh has no pipeline), with everything that can cross a stage
// boundary: an input read on both, a skip connection, a table read at both ends, a weight asked for twice by
// name.
Pipelined PipelinedModel(Model& model) {
  int last = model.mesh().axis_size(model.mesh().FindAxis("pp")) - 1;
  Scope first = model.scope().Stage("pp", 0), second = model.scope().Stage("pp", last);
  Tensor ids = model.Input("ids", {kBatch, 4}, DType::kInt32, {{"dp", S(0)}});
  Tensor target = model.Input("target", {kBatch, 4}, DType::kInt32, {{"dp", S(0)}});
  Tensor bias = model.Input("bias", {kBatch, 4, 8}, DType::kFloat32, {{"dp", S(0)}});
  Tensor table = first.Weight("table", {12, 8}, Normal(.5));
  Tensor x = embedding(table, ids) + bias;
  auto block = [&](Scope s, Tensor h) {
    Tensor up = s.Weight("up", {8, 16}, Normal(.3), {{"tp", S(1)}});
    Tensor down = s.Weight("down", {16, 8}, Normal(.3), {{"tp", S(0)}});
    Tensor n = rms_norm(h, s.Weight("norm", {8}, Ones()));
    return h + dropout(matmul(gelu(matmul(n, up)), down), .2);
  };
  Tensor middle = block(first / "a", x);
  Tensor h = block(second / "b", to_stage(middle, "pp", last) + bias);
  h = h + to_stage(x, "pp", last);  // the skip
  h = h +
      matmul(gelu(matmul(h, (second / "b").Weight("up", {8, 16}, Normal(.3), {{"tp", S(1)}}))),
             (second / "b").Weight("down", {16, 8}, Normal(.3), {{"tp", S(0)}}));  // the weights of b again
  Tensor logits = einsum("bsd,vd->bsv", h, table);  // tied with the first stage's
  Tensor masks = dropout(shift(scale(bias, 0), 1), .5);
  return {mean(cross_entropy(logits, target)), logits, masks};
}

struct Recipe {
  Optimizer optimizer = AdamW{.lr = 1e-2};
  int steps = 6;
  double clip_norm = .5;
};

Feeds PipelinedFeeds(int64_t step) {
  return {{"ids", Ids(step, {kBatch, 4}, 12)},
          {"target", Ids(100 + step, {kBatch, 4}, 12)},
          {"bias", Floats(200 + step, {kBatch, 4, 8})}};
}

TrainOptions ToTrainOptions(const Training& run) {
  TrainOptions options;
  options.micro_batches = run.micro_batches;
  options.schedule = run.schedule;
  options.steps_in_flight = run.steps_in_flight;
  return options;
}

Outputs PipelinedTraining(const Training& run, const Recipe& recipe = {}) {
  ModelOptions model_options;
  model_options.threads = run.threads;
  model_options.zero = {run.zero_axis};
  Model model(FullMesh(run.mesh), model_options);
  Pipelined p = PipelinedModel(model);
  TrainOptions options = ToTrainOptions(run);
  options.clip_norm = recipe.clip_norm;
  options.outputs = {{"logits", p.logits}, {"masks", p.masks}};
  Session session = Train(p.loss, recipe.optimizer, options);
  std::vector<StepResult> results;
  for (int step = 0; step < recipe.steps; ++step) results.push_back(session.Run(PipelinedFeeds(step)));
  Outputs values;
  for (int step = 0; step < recipe.steps; ++step) {  // every result is readable after all later steps
    EXPECT_EQ(results[step].step(), step);
    for (const char* name : {"loss", "grad_norm", "logits", "masks"})
      values[Cat(name, step)] = results[step].Get(name);
  }
  for (const std::string& name : model.Variables()) values[name] = model.Read(name);
  return values;
}

TEST(Session, PipelinesMicroBatchesAndZeroFollowOneDevice) {
  Outputs one = PipelinedTraining({});
  for (const Training& run :
       {Training{"cpu:dp=1", 3}, Training{"cpu:dp=1", 7}, Training{"cpu:dp=2"}, Training{"cpu:dp=3"},
        Training{"cpu:dp=2", 2}, Training{"cpu:dp=3", 4}, Training{"cpu:tp=2"}, Training{"cpu:tp=2", 2},
        Training{"cpu:pp=2"}, Training{"cpu:pp=2", 3}, Training{"cpu:pp=2", 7, PipelineSchedule::kGPipe},
        Training{"cpu:dp=2,pp=2", 2}, Training{"cpu:tp=2,pp=2", 3}, Training{"cpu:dp=2,tp=2,pp=2", 2},
        Training{"cpu:dp=2", 1, PipelineSchedule::k1F1B, "dp"},
        Training{"cpu:dp=3,pp=2", 2, PipelineSchedule::k1F1B, "dp"},
        Training{"cpu:dp=2,tp=2", 2, PipelineSchedule::k1F1B, "dp"}}) {
    Outputs got = PipelinedTraining(run);
    ExpectNear(got, one, 2e-5, run.str());
    for (int step = 0; step < 6; ++step) {
      std::string masks = Cat("masks", step), norm = Cat("grad_norm", step);
      EXPECT_TRUE(SameBytes(got.at(masks), one.at(masks)))
          << run.str() << ": dropout differs in step " << step;
      double wanted = one.at(norm).as<float>()[0], relative = got.at(norm).as<float>()[0] / wanted - 1;
      if (step == 0) {
        EXPECT_LE(std::abs(relative), 1e-6) << run.str() << ": gradient norm, which is " << wanted;
      }
    }
  }
  EXPECT_FALSE(SameBytes(one.at("masks0"), one.at("masks1")))
      << "the mask of a step must differ from the next's";
}

TEST(Session, GPipeEquals1F1B) {
  for (const char* mesh : {"cpu:pp=2", "cpu:dp=2,pp=2"})
    for (int m : {2, 5})
      ExpectNear(PipelinedTraining({mesh, m, PipelineSchedule::kGPipe}), PipelinedTraining({mesh, m}), 0,
                 Cat(mesh, " with ", m, " micro-batches"));
}

TEST(Session, StepsInFlightAndThreadsChangeNothing) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2,pp=2"}) {
    Outputs one = PipelinedTraining({mesh, 2, PipelineSchedule::k1F1B, "", 1});
    for (int in_flight : {2, 4})
      for (int threads : {1, 3})
        ExpectNear(PipelinedTraining({mesh, 2, PipelineSchedule::k1F1B, "", in_flight, threads}), one, 0,
                   Cat(mesh, " with ", in_flight, " steps in flight on ", threads, " threads"));
  }
}

TEST(Session, ZeroHoldsLessOfEachVariable) {
  auto persistent = [](const std::string& zero_axis) {
    Model model(FullMesh("cpu:dp=2"), {.zero = {zero_axis}});
    return Train(PipelinedModel(model).loss, AdamW{}).Summaries()[0].persistent_bytes;
  };
  EXPECT_LT(persistent("dp"), persistent("") * 0.6);
}

// --- Several sessions over one store ---

Outputs Alternating(const Training& run) {
  Model model(FullMesh(run.mesh));
  Pipelined p = PipelinedModel(model);
  Session train = Train(p.loss, Sgd{.lr = .5, .momentum = .9}, ToTrainOptions(run));
  SessionOptions options;
  options.micro_batches = run.micro_batches;
  Session eval = Evaluate({{"loss", p.loss}}, options);
  // Generation reads one row of the table, and nothing of a batch.
  Tensor token = model.Input("token", {1, 1}, DType::kInt32, {}, -1);
  Tensor table = model.scope().Stage("pp", 0).Weight("table", {12, 8}, Normal(.5));
  Tensor row = embedding(table, token);
  Tensor scores = matmul(to_stage(row, "pp", model.mesh().axis_size(2) - 1), transpose(table, {1, 0}));
  Session generate = Evaluate({{"next", argmax(scores)}, {"row", row}}, {.name = "generate"});
  Outputs values;
  HostTensor before;
  for (int step = 0; step < 4; ++step) {
    StepResult trained = train.Run(PipelinedFeeds(step)), evaluated = eval.Run(PipelinedFeeds(50));
    StepResult generated = generate.Run({{"token", ToHost<int32_t>({step}, {1, 1})}});
    values[Cat("train", step)] = trained.Get("loss");
    values[Cat("eval", step)] = evaluated.Get("loss");
    values[Cat("next", step)] = generated.Get("next");
    HostTensor now = model.Read("table"), row = generated.Get("row");
    EXPECT_EQ(std::memcmp(row.data.get(), now.as<float>() + 8 * step, 8 * sizeof(float)), 0)
        << run.str() << ": generation of step " << step << " does not see the trained table";
    if (step > 0) {
      EXPECT_GT(Difference(now, before), 1e-4) << "training changed nothing";
    }
    before = now;
  }
  return values;
}

TEST(Session, TrainingEvaluationAndGenerationShareTheWeights) {
  Outputs one = Alternating({});
  for (const Training& run : {Training{"cpu:dp=2"}, Training{"cpu:dp=3", 2}, Training{"cpu:tp=2"},
                              Training{"cpu:pp=2", 3}, Training{"cpu:dp=2,tp=2,pp=2", 2}})
    ExpectNear(Alternating(run), one, 2e-5, run.str());
}

TEST(Session, WeightsAreSharedByName) {
  Model model(FullMesh("cpu:dp=2"));
  Tensor x = model.Input("x", {3, 4}, DType::kFloat32);
  Tensor a = model.scope().Weight("w", {4, 4}, Normal(1)), b = model.scope().Weight("w", {4, 4}, Normal(1));
  Session session = Evaluate({{"a", matmul(x, a)}, {"b", matmul(x, b)}});
  StepResult r = session.Run({{"x", Floats(1, {3, 4})}});
  EXPECT_TRUE(SameBytes(r.Get("a"), r.Get("b")));
  EXPECT_EQ(model.Variables(), std::vector<std::string>{"w"});
}

TEST(Session, CutVariablesAreReadAndWrittenWhole) {
  for (const Training& run :
       {Training{"cpu:dp=3", 1, PipelineSchedule::k1F1B, "dp"}, Training{"cpu:tp=2"}, Training{"cpu:pp=2"},
        Training{"cpu:dp=2,tp=2", 1, PipelineSchedule::k1F1B, "dp"}}) {
    Model model(FullMesh(run.mesh), {.zero = {run.zero_axis}});
    Session train = Train(PipelinedModel(model).loss, AdamW{}, ToTrainOptions(run));
    float first = train.Run(PipelinedFeeds(0)).Scalar("loss");
    std::map<std::string, HostTensor> written;
    for (const std::string& name : model.Variables()) {
      written[name] = Floats(written.size(), model.Read(name).shape);
      model.Write(name, written[name]);
    }
    EXPECT_TRUE(written.count("train:adam_m/a/up") && written.count("train:adam_v/b/down") &&
                written.count("table"));
    for (const auto& [name, value] : written)
      EXPECT_TRUE(SameBytes(model.Read(name), value)) << run.str() << ": " << name;
    EXPECT_NE(train.Run(PipelinedFeeds(0)).Scalar("loss"), first);  // and the next step reads them
  }
}

TEST(Session, OutputsCutOverRanksAndTimeAreFetchedWhole) {
  HostTensor feed = Floats(1, {kBatch, 6});
  for (const Training& run : {Training{"cpu:dp=2"}, Training{"cpu:dp=3", 2}, Training{"cpu:dp=2,tp=2", 3},
                              Training{"cpu:dp=1", 7}}) {
    Model model(FullMesh(run.mesh));
    Tensor x = model.Input("x", {kBatch, 6}, DType::kFloat32, {{"dp", S(0)}, {"tp", S(1)}});
    SessionOptions options;
    options.micro_batches = run.micro_batches;
    Session s = Evaluate(
        {{"x2", scale(x, 2)}, {"sum", sum(x)}, {"rows", sum(x, {1})}, {"columns", max(x, {0})}}, options);
    StepResult r = s.Run({{"x", feed}});
    double sum = 0;
    for (int b = 0; b < kBatch; ++b) {
      double row = 0;
      for (int c = 0; c < 6; ++c) {
        float v = feed.as<float>()[b * 6 + c];
        row += v;
        EXPECT_EQ(r.Get("x2").as<float>()[b * 6 + c], 2 * v) << run.str();
        EXPECT_GE(r.Get("columns").as<float>()[c], v) << run.str();
      }
      EXPECT_NEAR(r.Get("rows").as<float>()[b], row, 1e-5) << run.str();
      sum += row;
    }
    EXPECT_NEAR(r.Scalar("sum"), sum, 1e-5) << run.str();
  }
}

// --- Initialisers ---

TEST(Session, InitialisersAreRightAndTheSameOnEveryMesh) {
  struct Case {
    std::string name;
    Initializer init;
    double mean, variance, low, high;
  };
  const double in = 60, out = 90;  // fans of [60, 90]
  const double inf = INFINITY, glorot = 2 / (in + out), he = 2 / in;
  const double truncated = 0.7737;  // variance of a standard normal inside two standard deviations
  std::vector<Case> cases = {
      {"zeros", Zeros(), 0, 0, 0, 0},
      {"ones", Ones(), 1, 0, 1, 1},
      {"full", Full(-.5), -.5, 0, -.5, -.5},
      {"uniform", Uniform(-1, 3), 1, 16 / 12., -1, 3},
      {"normal", Normal(2, 1), 1, 4, -inf, inf},
      {"truncated_normal", TruncatedNormal(2, 1), 1, 4 * truncated, -3, 5},
      {"xavier_uniform", XavierUniform(), 0, glorot, -std::sqrt(3 * glorot), std::sqrt(3 * glorot)},
      {"xavier_normal", XavierNormal(), 0, glorot, -inf, inf},
      {"kaiming_uniform", KaimingUniform(), 0, he, -std::sqrt(3 * he), std::sqrt(3 * he)},
      {"kaiming_normal", KaimingNormal(), 0, he, -inf, inf}};
  std::map<std::string, HostTensor> one;
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2", "cpu:dp=2,tp=2", "cpu:tp=7"}) {
    Model model(FullMesh(mesh));
    std::map<std::string, Tensor> weights;
    for (const Case& c : cases)
      weights[c.name] = model.scope().Weight(c.name, {60, 90}, c.init, {{"dp", S(1)}, {"tp", S(0)}});
    Session session = Evaluate(weights);
    StepResult r = session.Run({});
    for (const Case& c : cases) {
      HostTensor values = r.Get(c.name);
      EXPECT_TRUE(SameBytes(values, model.Read(c.name))) << c.name;
      if (!one.count(c.name)) one[c.name] = values;
      EXPECT_TRUE(SameBytes(values, one[c.name])) << c.name << " on " << mesh;
      double n = values.elements(), mean = 0, square = 0;
      for (int64_t i = 0; i < values.elements(); ++i) {
        double v = values.as<float>()[i];
        EXPECT_TRUE(v >= c.low - 1e-6 && v <= c.high + 1e-6) << c.name << " draws " << v;
        mean += v / n;
        square += v * v / n;
      }
      // Five standard errors of n draws.
      EXPECT_NEAR(mean, c.mean, 5 * std::sqrt(c.variance / n) + 1e-9) << c.name;
      EXPECT_NEAR(square - mean * mean, c.variance, 5 * c.variance * std::sqrt(2 / n) + 1e-9) << c.name;
    }
  }
  EXPECT_FALSE(SameBytes(one["normal"], one["xavier_normal"]));
}

// --- Optimizers, against a loop in double ---

constexpr int kRows = 7, kIn = 5, kOut = 3, kOptimizerSteps = 8;

// What the loop has after some steps of y = x w + b under the mean squared error.
struct Linear {
  std::vector<double> w, b, losses, norms;
};

double FactorByHand(const Schedule& s, int step) {
  using Kind = Schedule::Kind;
  if (s.kind == Kind::kConstant) return 1;
  if (step < s.warmup) return (step + 1.) / s.warmup;
  if (s.kind == Kind::kLinearWarmup) return 1;
  if (s.kind == Kind::kStep) {
    double factor = 1;
    for (int k = s.every; k <= step; k += s.every) factor *= s.gamma;
    return factor;
  }
  double done = std::min(1., double(step - s.warmup) / double(s.total - s.warmup));
  return s.final + (1 - s.final) * (1 + std::cos(M_PI * done)) / 2;
}

// One parameter tensor under one optimizer, as its paper says it.
struct HandOptimizer {
  const Optimizer& o;
  bool decays;
  std::vector<double> first, second;

  double number(const char* name) const { return o.numbers.Float(name); }
  void Step(std::vector<double>* w, const std::vector<double>& gradient, double factor, int step) {
    first.resize(w->size());
    second.resize(w->size());
    double lr = number("lr") * factor, decay = decays ? number("weight_decay") : 0;
    for (size_t i = 0; i < w->size(); ++i) {
      double &x = (*w)[i], g = gradient[i] + (o.name == "adamw" ? 0 : decay * x);
      if (o.name == "sgd") {
        first[i] = number("momentum") * first[i] + g;
        x -= lr * first[i];
        continue;
      }
      double b1 = number("beta1"), b2 = number("beta2");
      first[i] = b1 * first[i] + (1 - b1) * g;
      second[i] = b2 * second[i] + (1 - b2) * g * g;
      if (o.name == "adamw") x *= 1 - lr * decay;
      double m = first[i] / (1 - std::pow(b1, step + 1)), v = second[i] / (1 - std::pow(b2, step + 1));
      x -= lr * m / (std::sqrt(v) + number("eps"));
    }
  }
};

Linear ByHand(const Optimizer& optimizer, const Schedule& schedule, double clip, const HostTensor& w0,
              const HostTensor& b0) {
  Linear l{{w0.as<float>(), w0.as<float>() + kIn * kOut}, {b0.as<float>(), b0.as<float>() + kOut}, {}, {}};
  HandOptimizer of_w{optimizer, true, {}, {}}, of_b{optimizer, false, {}, {}};
  for (int step = 0; step < kOptimizerSteps; ++step) {
    HostTensor x = Floats(step, {kRows, kIn}), t = Floats(100 + step, {kRows, kOut});
    std::vector<double> dw(kIn * kOut), db(kOut);
    double loss = 0, square = 0;
    for (int r = 0; r < kRows; ++r)
      for (int c = 0; c < kOut; ++c) {
        double y = l.b[c];
        for (int k = 0; k < kIn; ++k) y += x.as<float>()[r * kIn + k] * l.w[k * kOut + c];
        double error = y - t.as<float>()[r * kOut + c], d = 2 * error / (kRows * kOut);
        loss += error * error / (kRows * kOut);
        db[c] += d;
        for (int k = 0; k < kIn; ++k) dw[k * kOut + c] += d * x.as<float>()[r * kIn + k];
      }
    for (double g : dw) square += g * g;
    for (double g : db) square += g * g;
    l.losses.push_back(loss);
    l.norms.push_back(std::sqrt(square));
    if (clip > 0 && l.norms.back() > clip) {
      for (double& g : dw) g *= clip / l.norms.back();
      for (double& g : db) g *= clip / l.norms.back();
    }
    of_w.Step(&l.w, dw, FactorByHand(schedule, step), step);
    of_b.Step(&l.b, db, FactorByHand(schedule, step), step);
  }
  return l;
}

void CheckAgainstHand(const std::string& mesh, const Optimizer& optimizer, const Schedule& schedule,
                      double clip, const std::string& where) {
  Model model(FullMesh(mesh));
  Tensor x = model.Input("x", {kRows, kIn}, DType::kFloat32, {{"dp", S(0)}});
  Tensor t = model.Input("t", {kRows, kOut}, DType::kFloat32, {{"dp", S(0)}});
  Tensor w = model.scope().Weight("w", {kIn, kOut}, Normal(.5)),
         b = model.scope().Weight("b", {kOut}, Normal(.5));
  Session start = Evaluate({{"w", w}, {"b", b}});
  StepResult initial = start.Run({});
  TrainOptions options;
  options.lr_schedule = schedule;
  options.clip_norm = clip;
  Session train = Train(mean(square(matmul(x, w) + b - t)), optimizer, options);
  Linear hand = ByHand(optimizer, schedule, clip, initial.Get("w"), initial.Get("b"));
  for (int step = 0; step < kOptimizerSteps; ++step) {
    StepResult r = train.Run({{"x", Floats(step, {kRows, kIn})}, {"t", Floats(100 + step, {kRows, kOut})}});
    EXPECT_NEAR(r.Scalar("loss") / hand.losses[step], 1, 2e-5) << where << " step " << step;
    if (clip > 0) {
      EXPECT_NEAR(r.Scalar("grad_norm") / hand.norms[step], 1, 2e-5) << where << " step " << step;
    }
  }
  HostTensor w_now = model.Read("w"), b_now = model.Read("b");
  for (int i = 0; i < kIn * kOut; ++i)
    EXPECT_NEAR(w_now.as<float>()[i], hand.w[i], 1e-5) << where << " w " << i;
  for (int i = 0; i < kOut; ++i) EXPECT_NEAR(b_now.as<float>()[i], hand.b[i], 1e-5) << where << " b " << i;
}

TEST(Session, OptimizersAndSchedulesFollowTheirDefinitions) {
  using Kind = Schedule::Kind;
  std::map<std::string, Optimizer> optimizers = {
      {"sgd", Sgd{.lr = .2}},
      {"sgd momentum", Sgd{.lr = .1, .momentum = .9, .weight_decay = .02}},
      {"adam", Adam{.lr = .02, .beta1 = .8, .beta2 = .95, .weight_decay = .03}},
      {"adamw", AdamW{.lr = .02, .eps = 1e-6, .weight_decay = .3}}};
  std::map<std::string, Schedule> schedules = {
      {"constant", {}},
      {"linear warm-up", {.kind = Kind::kLinearWarmup, .warmup = 4}},
      {"cosine", {.kind = Kind::kCosine, .warmup = 2, .total = 6, .final = .1}},
      {"step", {.kind = Kind::kStep, .every = 3, .gamma = .5}}};
  for (const auto& [schedule_name, schedule] : schedules) {
    for (int step = 0; step < 12; ++step)
      EXPECT_NEAR(LearningRateFactor(schedule, step), FactorByHand(schedule, step), 1e-12)
          << schedule_name << step;
    for (const auto& [name, optimizer] : optimizers)
      for (const char* mesh : {"cpu:dp=1", "cpu:dp=2"})
        for (double clip : {0., .4}) {
          std::string where = Cat(name, ", ", schedule_name, " on ", mesh, ", clipped at ", clip);
          CheckAgainstHand(mesh, optimizer, schedule, clip, where);
        }
  }
}

// The maximum over the batch is known only after all micro-batches: no limit on those under way may span it.
TEST(Session, WholeBatchMaximumTrainsInMicroBatches) {
  auto losses = [](const std::string& mesh, int micro_batches) {
    Model model(FullMesh(mesh));
    Tensor x = model.Input("x", {6, 4}, DType::kFloat32, {{"dp", S(0)}});
    Tensor h = matmul(x, model.scope().Weight("w", {4, 3}, Normal(1)));
    TrainOptions options;
    options.micro_batches = micro_batches;
    Session session = Train(mean(max(h, {0})), Sgd{.lr = 0.1}, options);
    std::vector<float> values(24), result;
    for (size_t i = 0; i < values.size(); ++i) values[i] = ToUniform(RandomBits(5, 0, i)) - 0.5f;
    for (int step = 0; step < 3; ++step)
      result.push_back(session.Run({{"x", ToHost(values, {6, 4})}}).Scalar("loss"));
    return result;
  };
  std::vector<float> one = losses("cpu:dp=1", 1), cut = losses("cpu:dp=2", 3);
  for (int step = 0; step < 3; ++step) EXPECT_NEAR(cut[step], one[step], 1e-5) << "step " << step;
  EXPECT_NE(one[0], one[2]);
}

// Wherever a NaN stands, the reductions that take it in give NaN, and no other does.
TEST(Session, ANaNWinsEveryReduction) {
  const Dims shape{5, 6, 37};
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2"}) {
    Model model(FullMesh(mesh));
    Tensor x = model.Input("x", shape, DType::kFloat32, {{"dp", S(0)}});
    std::map<std::string, Tensor> outputs;
    const std::vector<std::vector<int64_t>> axes = {{0}, {1}, {2}, {0, 2}, {1, 2}, {0, 1, 2}};
    for (size_t k = 0; k < axes.size(); ++k) {
      outputs[Cat("max", k)] = max(x, axes[k], true);
      outputs[Cat("min", k)] = min(x, axes[k], true);
      outputs[Cat("mean", k)] = mean(x, axes[k], true);
    }
    Session session = Evaluate(outputs);
    for (uint64_t seed = 0; seed < 40; ++seed) {
      HostTensor feed = Floats(seed, shape);
      const int64_t at = static_cast<int64_t>(RandomBits(seed, 3, 1)) % feed.elements();
      feed.as<float>()[at] = NAN;
      const int64_t where[] = {at / (6 * 37), at / 37 % 6, at % 37};
      StepResult r = session.Run({{"x", feed}});
      for (const auto& [name, tensor] : outputs) {
        const HostTensor got = r.Get(name);
        int64_t expected = 0;  // of the element that takes it in
        for (int a = 0; a < 3; ++a) expected = expected * got.shape[a] + (got.shape[a] > 1 ? where[a] : 0);
        for (int64_t i = 0; i < got.elements(); ++i)
          ASSERT_EQ(std::isnan(got.as<float>()[i]), i == expected)
              << name << " seed " << seed << " element " << i;
      }
    }
  }
}

// Merging the batch with another axis cuts in grains; what is fetched is whole all the same.
TEST(Session, FetchOfAMergedBatchAxis) {
  Model model(FullMesh("cpu:dp=2"));
  Tensor x = model.Input("x", {5, 3}, DType::kFloat32, {{"dp", S(0)}});
  SessionOptions options;
  options.micro_batches = 2;
  Session session = Evaluate({{"flat", reshape(scale(x, 2), {15})}}, options);
  std::vector<float> values(15), twice(15);
  for (int i = 0; i < 15; ++i) values[i] = i, twice[i] = 2 * i;
  EXPECT_TRUE(SameBytes(session.Run({{"x", ToHost(values, {5, 3})}}).Get("flat"), ToHost(twice, {15})));
}

}  // namespace
}  // namespace oneflow_like
