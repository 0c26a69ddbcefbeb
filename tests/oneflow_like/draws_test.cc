// What random operators draw: the same on every mesh, for every number of micro-batches and processes,
// whatever other graphs the model has and whatever else stands between.
#include <algorithm>
#include <optional>
#include <set>

#include "ops/op.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/thread_job.h"

namespace oneflow_like {
namespace {

constexpr int64_t kBatch = 6;

// --- Graphs ---

// The masks of two dropouts in a scope and one beside it, after `relus` other operators.
std::vector<Tensor> Masks(Scope s, Tensor x, int relus = 0) {
  Tensor w = (s / "block").Weight("w", {8}, Ones());
  Tensor h = x * w;
  for (int i = 0; i < relus; ++i) h = relu(h);
  if (relus < 0) {  // a random operator of another kind
    Tensor one = reshape(h, {1, kBatch, 2, 4});
    h = h + scale(reshape(attention(one, one, one, {.dropout = .5}), {kBatch, 8}), 0);
  }
  Tensor a = dropout(h, .5), b = dropout(a, .5), c = dropout(x, .5);
  return {a, b, c};
}

Outputs MasksOfTraining(const std::string& order, int relus = 0) {
  Model model(FullMesh("cpu:dp=2"));
  std::optional<Session> train;
  std::optional<ModelGraph> apart;
  std::map<std::string, Tensor> outputs;
  Tensor loss;
  for (char what : order) {
    switch (what) {
      case 'g': {  // the training's graph
        Tensor x = model.Input("x", {kBatch, 8}, DType::kFloat32, {{"dp", S(0)}});
        std::vector<Tensor> masks = Masks(model.scope(), x, relus);
        for (size_t i = 0; i < masks.size(); ++i) outputs[Cat("mask", i)] = masks[i];
        loss = mean(square(masks[1] + masks[2]));
        break;
      }
      case 't': {
        TrainOptions options;
        options.outputs = outputs;
        train.emplace(Train(loss, Sgd{.lr = 0}, options));
        break;
      }
      case 'e': {  // another graph of the same scopes, within the model's own
        static int number = 0;
        Tensor x = model.Input(Cat("eval_x", ++number), {kBatch, 8}, DType::kFloat32, {{"dp", S(0)}});
        Session eval = Evaluate({{"y", Masks(model.scope(), x, 1)[1]}}, {.name = Cat("eval", number)});
        break;
      }
      case 'n': {  // one apart
        apart.emplace(model.NewGraph("apart"));
        Tensor x = apart->Input("x", {kBatch, 8}, DType::kFloat32);
        Evaluate({{"y", Masks(apart->scope(), x)[2]}}, {.name = "apart"});
        break;
      }
      case 'd':
        apart.reset();
        break;
    }
  }
  Outputs given;
  HostTensor ones = Floats(1, {kBatch, 8});
  for (int64_t i = 0; i < ones.elements(); ++i) ones.as<float>()[i] = 1;
  for (int step = 0; step < 2; ++step) {
    StepResult result = train->Run({{"x", ones}});
    for (const auto& [name, tensor] : outputs) given[Cat(name, " ", step)] = result.Get(name);
  }
  return given;
}

// gradients() draws again what the operator drew: also where a later dropout stands in the same scope, and an
// input takes the operator's name.
TEST(Draws, OfGradientsAreThoseOfTheOperator) {
  Model model(FullMesh("cpu:dp=2"));
  Tensor x = model.Input("x", {kBatch, 8}, DType::kFloat32, {{"dp", S(0)}});
  Tensor y = dropout(x, .5), slope = gradients(sum(y), {x})[0];
  Tensor z = dropout(x, .5), other = gradients(sum(z), {x})[0];
  Tensor q = reshape(x, {1, kBatch, 2, 4}), v = full(q, q.shape(), 1);
  Tensor kept = attention(q, q, v, {.dropout = .5}), of_v = gradients(sum(kept), {v})[0];
  model.Input("dropout", {1}, DType::kFloat32);  // renames the operator
  Session all = Evaluate(
      {{"y", y}, {"slope", slope}, {"z", z}, {"other", other}, {"kept", sum(kept)}, {"of_v", sum(of_v)}});
  Session alone = Evaluate({{"slope", slope}}, {.name = "alone"});
  HostTensor ones = Floats(1, {kBatch, 8});
  for (int64_t i = 0; i < ones.elements(); ++i) ones.as<float>()[i] = 1;
  for (int step = 0; step < 2; ++step) {
    StepResult result = all.Run({{"x", ones}});
    EXPECT_TRUE(SameBytes(result.Get("y"), result.Get("slope"))) << step;
    EXPECT_TRUE(SameBytes(result.Get("z"), result.Get("other"))) << step;
    EXPECT_FALSE(SameBytes(result.Get("y"), result.Get("z"))) << step;
    // Values of 1: what is kept of the probabilities is what comes back to them.
    EXPECT_NEAR(result.Scalar("kept"), result.Scalar("of_v"), 1e-4) << step;
    EXPECT_TRUE(SameBytes(result.Get("slope"), alone.Run({{"x", ones}}).Get("slope"))) << step;
  }
}

TEST(Draws, AreThoseOfTheGraphAlone) {
  const Outputs wanted = MasksOfTraining("gt");
  std::set<std::string> different;
  for (const auto& [name, mask] : wanted)
    different.insert(std::string(static_cast<const char*>(mask.data.get()), mask.bytes()));
  EXPECT_EQ(different.size(), wanted.size()) << "every operator and step draws its own";
  for (const char* order : {"egt", "get", "eegt", "ngt", "gnt", "ngdt", "enget", "gendet", "nedegt"})
    ExpectNear(MasksOfTraining(order), wanted, 0, order);
  for (int relus : {1, 3, -1})
    ExpectNear(MasksOfTraining("gt", relus), wanted, 0, Cat(relus, " relus before"));
}

TEST(Draws, MayBeNamed) {
  auto masks = [](bool another) {
    Model model(FullMesh("cpu:dp=1"));
    Tensor x = model.Input("x", {kBatch, 8}, DType::kFloat32);
    if (another) x = dropout(x, 0.0001, "early");
    Tensor named = dropout(x, .5, "late");
    Tensor free = uniform(model.builder(), {16}, 0, 1);
    HostTensor ones = HostTensor::Make(DType::kFloat32, {kBatch, 8});
    std::fill_n(ones.as<float>(), ones.elements(), 1.f);
    Session session = Evaluate({{"named", named}, {"free", free}, {"twin", dropout(x, .5, "late")}});
    StepResult result = session.Run({{"x", ones}});
    EXPECT_TRUE(SameBytes(result.Get("named"), result.Get("twin")));
    return Outputs{{"named", result.Get("named")}, {"free", result.Get("free")}};
  };
  ExpectNear(masks(true), masks(false), 1e-3, "a name is all that counts");
}

// Operators with a name of their own are not counted: put before others, between or behind them, they change
// nothing of what those draw.
TEST(Draws, NamedOnesChangeNoneOfTheOthers) {
  constexpr int kUnnamed = 3;
  for (bool attends : {false, true}) {
    auto draw = [&](Tensor x, const std::string& name) {
      if (!attends) return name.empty() ? dropout(x, .5) : dropout(x, .5, name);
      Tensor one = reshape(x, {1, kBatch, 2, 4});
      return attention(one, one, one, {.dropout = .5, .draws = name});
    };
    auto unnamed = [&](int named) {  // a bit for each place
      Model model(FullMesh("cpu:dp=1"));
      Tensor x = model.Input("x", {kBatch, 8}, DType::kFloat32);
      std::map<std::string, Tensor> outputs;
      for (int i = 0; i <= kUnnamed; ++i) {
        if (named >> i & 1) outputs[Cat("named", i)] = draw(x, Cat("mine", i));
        if (i < kUnnamed) outputs[Cat("free", i)] = draw(x, "");
      }
      Session session = Evaluate(outputs);
      StepResult result = session.Run({{"x", Floats(1, {kBatch, 8})}});
      Outputs given;
      for (int i = 0; i < kUnnamed; ++i) given[Cat("free", i)] = result.Get(Cat("free", i));
      return given;
    };
    const Outputs wanted = unnamed(0);
    for (int i = 1; i < kUnnamed; ++i)
      EXPECT_FALSE(SameBytes(wanted.at(Cat("free", i)), wanted.at(Cat("free", i - 1)))) << i;
    for (int named = 1; named < 2 << kUnnamed; ++named)
      ExpectNear(unnamed(named), wanted, attends ? 1e-5 : 0,
                 Cat(attends ? "attention" : "dropout", ", named ones at the places ", named));
  }
}

// --- Every random operator of the catalog ---

Outputs DrawsOf(const OpDef& def, const Sample& sample, const std::string& mesh, int micro_batches,
                std::shared_ptr<Job> job = nullptr) {
  Model model(FullMesh(mesh), {.threads = 1, .job = std::move(job)});
  std::vector<Tensor> in;
  Feeds feeds;
  for (size_t i = 0; i < sample.in.size(); ++i) {
    Dims shape = sample.in[i];
    const std::string name = Cat("x", i);
    in.push_back(model.Input(name, shape, DType::kFloat32, {{"dp", S(0)}}));
    feeds[name] = Floats(i, shape);
  }
  Attrs attrs = sample.attrs;
  std::vector<Tensor> out = Apply(model.builder(), def.name, in, attrs);
  std::map<std::string, Tensor> outputs;
  for (size_t i = 0; i < out.size(); ++i) outputs[Cat("y", i)] = out[i];
  SessionOptions options;
  options.micro_batches = micro_batches;
  Session session = Evaluate(outputs, options);
  Outputs given;
  for (int step = 0; step < 2; ++step) {
    StepResult result = session.Run(feeds);
    for (const auto& [name, tensor] : outputs) given[Cat(name, " ", step)] = result.Get(name);
  }
  return given;
}

TEST(Draws, OfEveryRandomOperatorAreTheSameEverywhere) {
  std::set<std::string> seen;
  for (const std::string& name : BuiltinCatalog().names()) {
    const OpDef& def = BuiltinCatalog().Get(name);
    if (!def.random) continue;
    seen.insert(name);
    int samples = 0;
    for (Sample sample : def.samples) {
      bool empty = false;
      int64_t batch = 1;
      for (const Dims& shape : sample.in) empty = empty || shape.rank() == 0 || shape.elements() == 0;
      empty = empty || sample.attrs.Has("masks");  // whose batch is another axis: tests/ops try them
      if (empty) continue;                         // nothing to cut
      for (const Dims& shape : sample.in) batch = shape[0];
      if (sample.attrs.Has("dropout")) sample.attrs.Set("dropout", .4);
      ++samples;
      const std::string what = Cat(name, " ", sample.attrs.str());
      const Outputs wanted = DrawsOf(def, sample, "cpu:dp=1", 1);
      const double tolerance = def.category == "attention" ? 1e-5 : 0;  // sums in another order
      for (const char* mesh : {"cpu:dp=1", "cpu:dp=2", "cpu:tp=2", "cpu:dp=3", "cpu:dp=2,tp=2"})
        for (int micro_batches = 1; micro_batches <= std::min<int64_t>(3, batch); ++micro_batches)
          ExpectNear(DrawsOf(def, sample, mesh, micro_batches), wanted, tolerance,
                     Cat(what, " on ", mesh, ", ", micro_batches, " micro-batches"));
      for (int processes : {2, 4})
        for (const std::string& error : RunProcesses(processes, [&](std::shared_ptr<Job> job) {
               ExpectNear(DrawsOf(def, sample, "cpu:dp=2,tp=2", 1, job), wanted, tolerance,
                          Cat(what, " on ", processes, " processes"));
             }))
          EXPECT_EQ(error, "") << what;
    }
    EXPECT_GT(samples, 0) << name << " has no sample to try";
  }
  EXPECT_EQ(seen, (std::set<std::string>{"attention", "attention_grad", "dropout", "normal",
                                         "truncated_normal", "uniform"}));
}

// Attention over x with dropout named `draws`, a twin of it and one of another name, behind `others` that
// have no name.
Outputs NamedAttention(const std::string& draws, int others) {
  Model model(FullMesh("cpu:dp=2"));
  Tensor x = model.Input("x", {6, 5, 2, 4}, DType::kFloat32, {{"dp", S(0)}});
  auto named = [&](const std::string& name) { return attention(x, x, x, {.dropout = .5, .draws = name}); };
  std::map<std::string, Tensor> outputs;
  for (int i = 0; i < others; ++i) outputs[Cat("other ", i)] = attention(x, x, x, {.dropout = .5});
  outputs["named"] = named(draws);
  outputs["twin"] = named(draws);
  outputs["else"] = named("else");
  Session session = Evaluate(outputs);
  StepResult result = session.Run({{"x", Floats(3, {6, 5, 2, 4})}});
  Outputs given;
  for (const auto& [name, tensor] : outputs) given[name] = result.Get(name);
  return given;
}

TEST(Draws, NamedOfAttentionDependOnNothingButTheName) {
  const Outputs alone = NamedAttention("late", 0);
  EXPECT_TRUE(SameBytes(alone.at("named"), alone.at("twin")));
  EXPECT_FALSE(SameBytes(alone.at("named"), alone.at("else")));
  for (int others : {1, 2}) {
    Outputs behind = NamedAttention("late", others);
    for (const char* name : {"named", "twin", "else"})
      EXPECT_TRUE(SameBytes(behind.at(name), alone.at(name))) << name << " behind " << others;
    EXPECT_FALSE(SameBytes(behind.at("named"), behind.at("other 0")));
  }
  EXPECT_FALSE(SameBytes(NamedAttention("early", 0).at("named"), alone.at("named")));
}

}  // namespace
}  // namespace oneflow_like
