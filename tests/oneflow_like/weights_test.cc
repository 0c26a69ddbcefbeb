// Weights and what is said of them: options, patterns, frozen weights, state that layers keep,
// initialisers, explicit gradients, and the optimizers and schedules that are made of assigns.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compiler/graph/graph.h"
#include "core/float16.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/session.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

std::vector<float> Numbers(const HostTensor& t) { return {t.as<float>(), t.as<float>() + t.elements()}; }

// A mesh and a number of micro-batches; the first is what the others are compared with.
struct Setting {
  const char* mesh;
  int micro_batches;
};
const Setting kSettings[] = {{"cpu:dp=1", 1}, {"cpu:dp=2", 1},      {"cpu:dp=1", 3},
                             {"cpu:tp=2", 2}, {"cpu:dp=2,tp=2", 3}, {"cpu:dp=3", 1}};

// --- Frozen weights and options ------------------------------------------------------------------

// Two layers, the first frozen.
struct HalfFrozen {
  Model model;
  Tensor x, y, loss;
  explicit HalfFrozen(const char* mesh, DType dtype = DType::kFloat32, const ModelOptions& options = {})
      : model(FullMesh(mesh), options) {
    x = model.Input("x", {6, 4}, DType::kFloat32, {{"dp", S(0)}});
    y = model.Input("y", {6, 2}, DType::kFloat32, {{"dp", S(0)}});
    Scope s = model.scope();
    Tensor up = s.Weight("up", {4, 8}, Normal(.5), {.sbp = "tp:S1", .trainable = false, .dtype = dtype});
    Tensor down = s.Weight("down", {8, 2}, Normal(.5), {{"tp", S(0)}});
    loss = mean(square(matmul(tanh(matmul(x, up)), down) - y));
  }
  Feeds FeedsOf(int step) const { return {{"x", Floats(step, {6, 4})}, {"y", Floats(50 + step, {6, 2})}}; }
};

TEST(Frozen, KeepsItsBitsAndHasNoStateOnEveryMesh) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    std::vector<float> first_losses;
    for (const Setting& setting : kSettings) {
      HalfFrozen of(setting.mesh, dtype);
      TrainOptions options;
      options.micro_batches = setting.micro_batches;
      Session train = Train(of.loss, AdamW{.lr = .05}, options);
      const HostTensor before = of.model.Read("up");
      EXPECT_EQ(before.dtype, dtype);
      std::vector<float> losses;
      for (int step = 0; step < 5; ++step) losses.push_back(train.Run(of.FeedsOf(step)).Scalar("loss"));
      const HostTensor after = of.model.Read("up");
      EXPECT_EQ(std::memcmp(before.data.get(), after.data.get(), before.bytes()), 0);
      for (const std::string& name : of.model.Variables())
        EXPECT_TRUE(name.find("/up") == std::string::npos) << name;
      if (first_losses.empty()) first_losses = losses;
      for (int step = 0; step < 5; ++step)
        EXPECT_NEAR(losses[step] / first_losses[step], 1, 1e-5) << setting.mesh << " step " << step;
    }
  }
}

// In 16 bits it is read as it lies, with no copy in fp32.
TEST(Frozen, InTheTypeOfTheProductsIsNotConverted) {
  HalfFrozen narrow("cpu:dp=1", DType::kBFloat16), wide("cpu:dp=1");
  TrainOptions options;
  options.dtype = DType::kBFloat16;
  Session of_narrow = Train(narrow.loss, Sgd{.lr = .1}, options),
          of_wide = Train(wide.loss, Sgd{.lr = .1}, options);
  EXPECT_LT(of_narrow.Summaries()[0].peak_bytes, of_wide.Summaries()[0].peak_bytes);
  for (int step = 0; step < 3; ++step) {
    const float a = of_narrow.Run(narrow.FeedsOf(step)).Scalar("loss"),
                b = of_wide.Run(wide.FeedsOf(step)).Scalar("loss");
    EXPECT_EQ(a, b) << step;  // a product in bf16 rounds its weight anyway
  }
}

TEST(Frozen, SendsNothing) {
  auto bytes = [](bool trainable) {
    Model model(FullMesh("cpu:dp=2"));
    Tensor x = model.Input("x", {4096, 64}, DType::kFloat32, {{"dp", S(0)}});
    Tensor a = model.scope().Weight("a", {64, 64}, Normal(.1), {.trainable = trainable});
    Tensor b = model.scope().Weight("b", {64, 64}, Normal(.1));
    return Train(mean(square(matmul(matmul(x, a), b))), Sgd{}).Summaries()[0].bytes_sent;
  };
  const double both = bytes(true), one = bytes(false);
  EXPECT_NEAR(both - one, 64 * 64 * 4, 64);  // an all-reduce sends 2 (n - 1) / n of it
}

TEST(Frozen, AllOfThemLeaveNothingToTrain) {
  ModelOptions options;
  options.weights = {{"*", {.trainable = false}}};
  HalfFrozen of("cpu:dp=1", DType::kFloat32, options);
  EXPECT_NE(ErrorOf([&] { Train(of.loss, Sgd{}); }).find("nothing is left to train: all weights that"),
            std::string::npos);
}

TEST(Patterns, OverrideWhatTheCodeSaysAndTheLastOneCounts) {
  ModelOptions options;
  options.weights = {{"*", {.trainable = false}}, {"d?wn", {.trainable = true}}, {"up", {.sbp = "tp:S0"}}};
  HalfFrozen of("cpu:tp=2", DType::kFloat32, options);
  Session train = Train(of.loss, AdamW{});
  std::vector<std::string> names = of.model.Variables();
  EXPECT_EQ(names, (std::vector<std::string>{"down", "train:adam_m/down", "train:adam_v/down",
                                             "train:updates", "up"}));
  options.weights.push_back({"*/nowhere", {.decay = 0}});
  HalfFrozen other("cpu:tp=2", DType::kFloat32, options);
  EXPECT_NE(ErrorOf([&] {
              Train(other.loss, AdamW{});
            }).find("pattern \"*/nowhere\" of ModelOptions::weights matches no weight requested so far"),
            std::string::npos);
}

// What code says at the first request gives way to a pattern, also each further time. A request that says
// something else than both is refused, with and without a pattern.
TEST(Patterns, LaterRequestsThatContradictThemAreRefused) {
  const std::optional<bool> none, yes = true, no = false;
  struct Case {
    std::optional<bool> pattern, first, later;
    bool refused;
  };
  for (const Case& c :
       {Case{no, none, yes, true}, Case{no, yes, yes, false}, Case{no, no, yes, true},
        Case{no, none, none, false}, Case{no, none, no, false}, Case{no, yes, no, false},
        Case{yes, none, no, true}, Case{yes, no, no, false}, Case{yes, none, yes, false},
        Case{none, no, yes, true}, Case{none, none, yes, true}, Case{none, yes, none, false}}) {
    for (bool other_graph : {false, true}) {
      ModelOptions options;
      if (c.pattern) options.weights = {{"w", {.rate = .5}}, {"?", {.trainable = c.pattern}}};
      Model model(FullMesh("cpu:dp=1"), options);
      ModelGraph graph = model.NewGraph("later");
      model.scope().Weight("w", {4}, Ones(), {.trainable = c.first});
      const Scope s = other_graph ? graph.scope() : model.scope();
      const std::string error = ErrorOf([&] { s.Weight("w", {4}, Ones(), {.trainable = c.later}); });
      EXPECT_EQ(!error.empty(), c.refused) << error;
      if (!c.refused) continue;
      EXPECT_NE(error.find(Cat("it says trainable=", *c.later ? "true" : "false")), std::string::npos)
          << error;
      EXPECT_EQ(error.find("pattern \"?\" of ModelOptions::weights says trainable=") != std::string::npos,
                c.pattern.has_value())
          << error;
    }
  }
}

// Of cuts along one mesh axis the last one said counts, whether as computed or as stored.
TEST(Patterns, SayACutOfAnAxisOnce) {
  const std::pair<WeightOptions, std::vector<WeightPattern>> cases[] = {
      {{.sbp = "tp:S0"}, {{"w", {.stored = "tp:S0"}}}},
      {{.stored = "tp:S0"}, {{"w", {.sbp = "tp:S0"}}}},
      {{}, {{"*", {.sbp = "dp:B tp:B"}}, {"w", {.stored = "tp:S0"}}}},
      {{.sbp = "tp:S1", .stored = "dp:S0"}, {{"w", {.sbp = "dp:S0"}}}},
      {{.sbp = "tp:S1", .stored = "dp:S0"}, {{"w", {.sbp = "tp:S0", .stored = "dp:S1"}}}},
  };
  const std::pair<FixedSbp, std::set<int>> expected[] = {{{{2, S(0)}}, {2}},
                                                         {{{2, S(0)}}, {}},
                                                         {{{1, B()}, {2, S(0)}}, {2}},
                                                         {{{1, S(0)}}, {}},
                                                         {{{1, S(1)}, {2, S(0)}}, {1}}};
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(i);
    Model model(FullMesh("cpu:dp=2,tp=2"), {.weights = cases[i].second});
    model.scope().Weight("w", {8, 8}, Ones(), cases[i].first);
    const Node& node = model.impl()->variables.at("w").node;
    EXPECT_EQ(node.fixed, expected[i].first);
    EXPECT_EQ(node.stored, expected[i].second);
  }
}

// With a gradient of zero only decay moves a weight.
TEST(Decay, SparesBiasesAndNormsHoweverManyAxesTheyHave) {
  for (bool said : {false, true}) {
    Model model(FullMesh("cpu:dp=1"));
    Scope s = model.scope();
    Tensor x = model.Input("x", {2, 3, 4}, DType::kFloat32);
    const WeightOptions option = said ? WeightOptions{.decay = .5} : WeightOptions{};
    Tensor w = s.Weight("w", {4, 2, 5}, Ones(), option), bias = s.Weight("bias", {2, 5}, Ones(), option);
    Tensor gamma = s.Weight("gamma", {4}, Ones(), option), beta = s.Weight("beta", {4}, Ones(), option);
    Tensor turned = s.Weight("turned", {10, 3}, Ones(), option);
    Tensor h = reshape(einsum("bsw,whd->bshd", layer_norm(x, gamma, beta), w) + bias, {2, 3, 10});
    Tensor loss = scale(mean(matmul(h, transpose(transpose(turned, {1, 0}), {1, 0}))), 0);
    Session train = Train(loss, AdamW{.lr = .1, .weight_decay = .5});
    train.Run({{"x", Floats(1, {2, 3, 4})}}).Wait();
    for (const auto& [name, decays] : std::map<std::string, bool>{
             {"w", true}, {"bias", false}, {"gamma", false}, {"beta", false}, {"turned", true}}) {
      const double by = said ? .5 : decays ? 1 : 0;
      EXPECT_NEAR(model.Read(name).as<float>()[0], 1 - .1 * .5 * by, 1e-6) << name << said;
    }
  }
}

TEST(Rate, OfAWeightScalesItsStep) {
  for (const Optimizer& optimizer : {Optimizer(Sgd{.lr = .1}), Optimizer(Sgd{.lr = .1, .momentum = .9}),
                                     Optimizer(Adam{.lr = .1}), Optimizer(Lion{.lr = .1})}) {
    Model model(FullMesh("cpu:dp=1"));
    Tensor a = model.scope().Weight("a", {3}, Ones()),
           b = model.scope().Weight("b", {3}, Ones(), {.rate = .25});
    Session train = Train(mean(square(a)) + mean(square(b)), optimizer);
    train.Run({}).Wait();
    const float of_a = 1 - model.Read("a").as<float>()[0], of_b = 1 - model.Read("b").as<float>()[0];
    EXPECT_NEAR(of_b / of_a, .25, 1e-4) << optimizer.name;
  }
}

// --- State ---------------------------------------------------------------------------------------

// A running mean of what a layer sees, kept in training alone.
TEST(State, InTrainingFollowsTrainingAndNoEvaluation) {
  std::vector<float> first;
  for (const Setting& setting : kSettings) {
    Model model(FullMesh(setting.mesh));
    Scope s = model.scope();
    Tensor x = model.Input("x", {6, 4}, DType::kFloat32, {{"dp", S(0)}});
    Tensor w = s.Weight("w", {4, 3}, Normal(.5));
    Tensor h = matmul(x, w), running = s.State("running", {3}, Ones());
    s.InTraining(assign(running, scale(running, .9) + scale(mean(h, {0}), .1)));
    Tensor calls = s.State("calls", {}, Zeros(), {.dtype = DType::kInt64});
    s.InTraining(assign(calls, calls + cast(full(model.builder(), {}, 1), DType::kInt64)));
    Tensor other = s.State("other", {3}, Ones());
    Tensor apart = model.Input("apart", {6, 3}, DType::kFloat32);
    s.InTraining(assign(other, mean(apart, {0})));  // of a loss that is not trained here
    TrainOptions options;
    options.micro_batches = setting.micro_batches;
    Session train = Train(mean(square(h - running)), Sgd{.lr = .1}, options);
    Session look = Evaluate({{"h", h}});
    for (int step = 0; step < 4; ++step) {
      train.Run({{"x", Floats(step, {6, 4})}}).Wait();
      look.Run({{"x", Floats(9, {6, 4})}}).Wait();
    }
    EXPECT_EQ(Numbers(model.Read("other")), std::vector<float>(3, 1));
    const std::vector<float> now = Numbers(model.Read("running"));
    if (first.empty()) first = now;
    for (int i = 0; i < 3; ++i) EXPECT_NEAR(now[i], first[i], 2e-6) << setting.mesh;
    EXPECT_NE(now[0], 1);
    for (const std::string& name : model.Variables())
      EXPECT_EQ(name.find("running") != std::string::npos && name[0] == 't', false);
  }
}

// --- Initialisers --------------------------------------------------------------------------------

TEST(Initialisers, FollowTheFansTheyAreGiven) {
  Model model(FullMesh("cpu:dp=1"));
  Scope s = model.scope();
  auto deviation = [&](const std::string& name) {
    const std::vector<float> v = Numbers(model.Read(name));
    double squares = 0;
    for (float x : v) squares += double{x} * x;
    return std::sqrt(squares / v.size());
  };
  s.Weight("q", {64, 8, 32}, KaimingNormal({.in = {0}}));
  s.Weight("q_xavier", {64, 8, 32}, XavierNormal({.in = {0}, .out = {1, 2}}));
  s.Weight("uniform", {64, 8, 32}, XavierUniform({.in = {0}, .out = {1, 2}}));
  s.Weight("plain", {64, 8, 32}, KaimingNormal());
  EXPECT_NEAR(deviation("q"), std::sqrt(2. / 64), .02 * std::sqrt(2. / 64));
  EXPECT_NEAR(deviation("plain"), std::sqrt(2. / 512), .02 * std::sqrt(2. / 512));
  for (const char* name : {"q_xavier", "uniform"})
    EXPECT_NEAR(deviation(name), std::sqrt(2. / (64 + 256)), .02 * std::sqrt(2. / 320)) << name;
}

TEST(Initialisers, OrthogonalAndGivenOnesAreTheSameOnEveryMesh) {
  HostTensor given = Floats(3, {5, 6});
  std::vector<float> first;
  for (const char* mesh : {"cpu:dp=1", "cpu:tp=2", "cpu:dp=2,tp=3"}) {
    Model model(FullMesh(mesh));
    Scope s = model.scope();
    s.Weight("given", {5, 6}, FromTensor(given), {{"tp", S(1)}});
    s.Weight("wide", {5, 8}, Orthogonal(2), {{"tp", S(1)}});
    s.Weight("tall", {2, 4, 3}, Orthogonal(), {{"tp", S(0)}});
    EXPECT_EQ(Numbers(model.Read("given")), Numbers(given));
    const std::vector<float> wide = Numbers(model.Read("wide")), tall = Numbers(model.Read("tall"));
    for (int a = 0; a < 5; ++a)
      for (int b = 0; b < 5; ++b) {
        double dot = 0;
        for (int i = 0; i < 8; ++i) dot += double{wide[a * 8 + i]} * wide[b * 8 + i];
        EXPECT_NEAR(dot, a == b ? 4 : 0, 1e-5);
      }
    for (int a = 0; a < 3; ++a)
      for (int b = 0; b < 3; ++b) {
        double dot = 0;
        for (int i = 0; i < 8; ++i) dot += double{tall[i * 3 + a]} * tall[i * 3 + b];
        EXPECT_NEAR(dot, a == b ? 1 : 0, 1e-6);
      }
    if (first.empty()) first = wide;
    EXPECT_EQ(wide, first) << mesh;
  }
}

// --- gradients -----------------------------------------------------------------------------------

// |d loss / d x| as part of a loss: the weights' gradients go through a gradient.
TEST(Gradients, CanBePartOfALossOnEveryMesh) {
  std::vector<float> first;
  for (const Setting& setting : kSettings) {
    Model model(FullMesh(setting.mesh));
    Tensor x = model.Input("x", {6, 4}, DType::kFloat32, {{"dp", S(0)}});
    Tensor w = model.scope().Weight("w", {4, 3}, Normal(.5)),
           v = model.scope().Weight("v", {3, 1}, Normal(.5));
    Tensor y = sum(square(matmul(square(matmul(x, w)), v)));
    Tensor penalty = mean(square(gradients(y, {x})[0]));
    TrainOptions options;
    options.micro_batches = setting.micro_batches;
    Session train = Train(mean(square(matmul(x, w))) + scale(penalty, .01), Sgd{.lr = .01}, options);
    std::vector<float> losses;
    for (int step = 0; step < 4; ++step)
      losses.push_back(train.Run({{"x", Floats(step, {6, 4})}}).Scalar("loss"));
    if (first.empty()) first = losses;
    for (int step = 0; step < 4; ++step) EXPECT_NEAR(losses[step] / first[step], 1, 2e-5) << setting.mesh;
  }
}

TEST(Gradients, AreThoseOfFiniteDifferences) {
  Model model(FullMesh("cpu:dp=1"));
  Tensor x = model.Input("x", {2, 3}, DType::kFloat32), h = tanh(x);
  Tensor y = sum(square(h) * x);
  std::vector<Tensor> d = gradients(y, {x, h});
  Session look = Evaluate({{"y", y}, {"dx", d[0]}, {"dh", d[1]}});
  HostTensor at = Floats(1, {2, 3});
  const StepResult here = look.Run({{"x", at}});
  for (int i = 0; i < 6; ++i) {
    double ends[2];
    for (int side : {0, 1}) {
      HostTensor moved = HostTensor::Make(DType::kFloat32, {2, 3});
      std::memcpy(moved.data.get(), at.data.get(), at.bytes());
      moved.as<float>()[i] += side == 0 ? -1e-2f : 1e-2f;
      ends[side] = look.Run({{"x", moved}}).Scalar("y");
    }
    EXPECT_NEAR(here.Get("dx").as<float>()[i], (ends[1] - ends[0]) / 2e-2, 2e-3) << i;
    const double v = at.as<float>()[i];
    EXPECT_NEAR(here.Get("dh").as<float>()[i], 2 * std::tanh(v) * v, 1e-5) << i;
  }
}

// --- Optimizers ----------------------------------------------------------------------------------

using Vec = std::vector<double>;

double NormOf(const Vec& v) { return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.)); }

// One weight [3, 4] under a rule written in double: step(w, gradient, number of the step).
void CheckRule(const Optimizer& optimizer, const std::function<void(Vec*, const Vec&, int)>& rule,
               double tolerance = 1e-5) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2", "cpu:tp=2", "cpu:dp=2,tp=2"})
    for (bool zero : {false, true}) {
      ModelOptions options;
      Mesh m = FullMesh(mesh);
      if (zero && m.axis_size(m.AxisOrFail("dp", "test")) < 2) continue;
      if (zero) options.zero.axis = "dp";
      Model model(m, options);
      Tensor x = model.Input("x", {6, 3}, DType::kFloat32, {{"dp", S(0)}});
      Tensor t = model.Input("t", {6, 4}, DType::kFloat32, {{"dp", S(0)}});
      Tensor w = model.scope().Weight("w", {3, 4}, Normal(.5), {{"tp", S(1)}});
      Session train = Train(mean(square(matmul(x, w) - t)), optimizer);
      const std::vector<float> start = Numbers(model.Read("w"));
      Vec by_hand(start.begin(), start.end());
      for (int step = 0; step < 8; ++step) {
        HostTensor a = Floats(step, {6, 3}), b = Floats(70 + step, {6, 4});
        train.Run({{"x", a}, {"t", b}}).Wait();
        Vec gradient(12, 0.);
        for (int r = 0; r < 6; ++r)
          for (int c = 0; c < 4; ++c) {
            double error = -b.as<float>()[r * 4 + c];
            for (int k = 0; k < 3; ++k) error += a.as<float>()[r * 3 + k] * by_hand[k * 4 + c];
            for (int k = 0; k < 3; ++k) gradient[k * 4 + c] += 2 * error / 24 * a.as<float>()[r * 3 + k];
          }
        rule(&by_hand, gradient, step);
        const std::vector<float> now = Numbers(model.Read("w"));
        for (int i = 0; i < 12; ++i)
          ASSERT_NEAR(now[i], by_hand[i], tolerance)
              << optimizer.name << " " << mesh << " zero " << zero << " step " << step << " element " << i;
      }
    }
}

TEST(Optimizers, Nesterov) {
  Vec v(12, 0.);
  CheckRule(Sgd{.lr = .1, .momentum = .9, .weight_decay = .01, .nesterov = true},
            [&](Vec* w, const Vec& g, int step) {
              if (step == 0) v.assign(12, 0.);
              for (int i = 0; i < 12; ++i) {
                const double d = g[i] + .01 * (*w)[i];
                v[i] = .9 * v[i] + d;
                (*w)[i] -= .1 * (d + .9 * v[i]);
              }
            });
}

TEST(Optimizers, Adagrad) {
  Vec s;
  CheckRule(Adagrad{.lr = .1, .initial = .1, .weight_decay = .02}, [&](Vec* w, const Vec& g, int step) {
    if (step == 0) s.assign(12, .1);
    for (int i = 0; i < 12; ++i) {
      const double d = g[i] + .02 * (*w)[i];
      s[i] += d * d;
      (*w)[i] -= .1 * d / (std::sqrt(s[i]) + 1e-10);
    }
  });
  CheckRule(Adagrad{.lr = .1, .by_rows = true}, [&](Vec* w, const Vec& g, int step) {
    if (step == 0) s.assign(3, 0.);
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 4; ++c) s[r] += g[r * 4 + c] * g[r * 4 + c] / 4;
      for (int c = 0; c < 4; ++c) (*w)[r * 4 + c] -= .1 * g[r * 4 + c] / (std::sqrt(s[r]) + 1e-10);
    }
  });
}

TEST(Optimizers, Lamb) {
  Vec m, v;
  CheckRule(
      Lamb{.lr = .05, .weight_decay = .1},
      [&](Vec* w, const Vec& g, int step) {
        if (step == 0) m.assign(12, 0.), v.assign(12, 0.);
        Vec u(12);
        for (int i = 0; i < 12; ++i) {
          m[i] = .9 * m[i] + .1 * g[i];
          v[i] = .999 * v[i] + .001 * g[i] * g[i];
          const double mean = m[i] / (1 - std::pow(.9, step + 1)),
                       square = v[i] / (1 - std::pow(.999, step + 1));
          u[i] = mean / (std::sqrt(square) + 1e-6) + .1 * (*w)[i];
        }
        const double trust = NormOf(*w) / NormOf(u);
        for (int i = 0; i < 12; ++i) (*w)[i] -= .05 * trust * u[i];
      },
      5e-5);
}

TEST(Optimizers, Lion) {
  Vec m;
  CheckRule(Lion{.lr = .01, .weight_decay = .1}, [&](Vec* w, const Vec& g, int step) {
    if (step == 0) m.assign(12, 0.);
    for (int i = 0; i < 12; ++i) {
      const double d = .9 * m[i] + .1 * g[i];
      (*w)[i] -= .01 * ((d > 0) - (d < 0) + .1 * (*w)[i]);
      m[i] = .99 * m[i] + .01 * g[i];
    }
  });
}

TEST(Optimizers, Muon) {
  Vec m;
  CheckRule(
      Muon{.lr = .02, .weight_decay = .1},
      [&](Vec* w, const Vec& g, int step) {
        if (step == 0) m.assign(12, 0.);
        Vec x(12);
        for (int i = 0; i < 12; ++i) {
          m[i] = .95 * m[i] + .05 * g[i];
          x[i] = .95 * m[i] + .05 * g[i];
        }
        const double norm = NormOf(x) + 1e-7;
        for (double& e : x) e /= norm;
        for (int iteration = 0; iteration < 5; ++iteration) {
          double a[3][3] = {}, aa[3][3] = {};
          for (int i = 0; i < 3; ++i)
            for (int j = 0; j < 3; ++j)
              for (int k = 0; k < 4; ++k) a[i][j] += x[i * 4 + k] * x[j * 4 + k];
          for (int i = 0; i < 3; ++i)
            for (int j = 0; j < 3; ++j)
              for (int k = 0; k < 3; ++k) aa[i][j] += a[i][k] * a[k][j];
          Vec next(12);
          for (int i = 0; i < 3; ++i)
            for (int c = 0; c < 4; ++c) {
              next[i * 4 + c] = 3.4445 * x[i * 4 + c];
              for (int k = 0; k < 3; ++k)
                next[i * 4 + c] += (-4.7750 * a[i][k] + 2.0315 * aa[i][k]) * x[k * 4 + c];
            }
          x = next;
        }
        for (int i = 0; i < 12; ++i) (*w)[i] -= .02 * (std::sqrt(4. / 3) * x[i] + .1 * (*w)[i]);
      },
      1e-4);
}

// Weights that are no matrix, or are named, go to the other optimizer.
TEST(Optimizers, MuonLeavesOthersToAnother) {
  Model model(FullMesh("cpu:dp=1"));
  Scope s = model.scope();
  Tensor x = model.Input("x", {6, 4}, DType::kFloat32);
  Tensor h = matmul(x, s.Weight("embedding_out", {4, 4}, Normal(.5))) + s.Weight("bias", {4}, Zeros());
  Session train = Train(mean(square(einsum("bi,ihd->bhd", h, s.Weight("q", {4, 2, 2}, Normal(.5))))), Muon{});
  std::vector<std::string> state;
  for (const std::string& name : model.Variables())
    if (name.find("train:") == 0) state.push_back(name);
  EXPECT_EQ(state,
            (std::vector<std::string>{"train:adam_m/bias", "train:adam_m/embedding_out", "train:adam_v/bias",
                                      "train:adam_v/embedding_out", "train:muon_m/q", "train:updates"}));
  train.Run({{"x", Floats(1, {6, 4})}}).Wait();
}

// --- Rates that are fed, and steps that are skipped ----------------------------------------------

TEST(Rates, OfAFunctionAreThoseOfTheScheduleItDescribes) {
  const Schedule schedule{.kind = Schedule::Kind::kCosine, .warmup = 2, .total = 7, .final = .1};
  for (const Optimizer& optimizer :
       {Optimizer(Sgd{.lr = .1}), Optimizer(Sgd{.lr = .1, .momentum = .9}), Optimizer(Adam{.lr = .05}),
        Optimizer(AdamW{.lr = .05}), Optimizer(RmsProp{.lr = .01}), Optimizer(Lion{.lr = .01})})
    for (const Setting& setting : kSettings) {
      std::vector<float> weights[2];
      for (bool function : {false, true}) {
        HalfFrozen of(setting.mesh);
        TrainOptions options;
        options.micro_batches = setting.micro_batches;
        if (function) {
          options.lr_function = [=](int64_t step) { return FactorAt(schedule, step); };
        } else {
          options.lr_schedule = schedule;
        }
        Session train = Train(of.loss, optimizer, options);
        const Feeds feeds = of.FeedsOf(0);
        for (const auto& [input, boxes] : train.Needs())  // what a pipeline of data is asked for
          EXPECT_EQ(feeds.count(input), 1u) << input;
        for (int step = 0; step < 8; ++step) train.Run(of.FeedsOf(step)).Wait();
        weights[function] = Numbers(of.model.Read("down"));
      }
      for (size_t i = 0; i < weights[0].size(); ++i)
        ASSERT_NEAR(weights[0][i], weights[1][i], 2e-6) << optimizer.name << " " << setting.mesh;
    }
}

TEST(Rates, SetBetweenSteps) {
  Model model(FullMesh("cpu:dp=1"));
  double factor = 1;
  TrainOptions options;
  options.lr_function = [&](int64_t) { return factor; };
  Session train = Train(sum(model.scope().Weight("w", {2}, Ones())), Sgd{.lr = .1}, options);
  float now = 1;
  for (double next : {1., .5, 0., 3.}) {
    factor = next;
    train.Run({}).Wait();
    now -= static_cast<float>(.1 * next);
    EXPECT_NEAR(model.Read("w").as<float>()[0], now, 1e-6);
  }
  factor = NAN;
  EXPECT_NE(ErrorOf([&] { train.Run({}); }).find("lr_function gives NaN for step 4"), std::string::npos);
  factor = 1;
  train.Run({}).Wait();  // nothing was lost
  EXPECT_NEAR(model.Read("w").as<float>()[0], now - .1f, 1e-6);
}

TEST(Schedules, AtTheirCorners) {
  using Kind = Schedule::Kind;
  auto at = [](Schedule s, int64_t step) { return LearningRateFactor(s, step); };
  const Schedule linear{.kind = Kind::kLinear, .warmup = 2, .total = 12, .final = .2};
  EXPECT_DOUBLE_EQ(at(linear, 0), .5);
  EXPECT_DOUBLE_EQ(at(linear, 2), 1);
  EXPECT_DOUBLE_EQ(at(linear, 7), .6);
  EXPECT_DOUBLE_EQ(at(linear, 12), .2);
  EXPECT_DOUBLE_EQ(at(linear, 99), .2);
  const Schedule power{.kind = Kind::kPolynomial, .total = 10, .final = .1, .power = 2};
  EXPECT_DOUBLE_EQ(at(power, 5), .1 + .9 * .25);
  EXPECT_DOUBLE_EQ(at(power, 10), .1);
  const Schedule root{.kind = Kind::kInverseSqrt, .warmup = 4};
  EXPECT_DOUBLE_EQ(at(root, 1), .5);
  EXPECT_DOUBLE_EQ(at(root, 3), 1);
  EXPECT_DOUBLE_EQ(at(root, 15), .5);
  const Schedule cycle{.kind = Kind::kOneCycle, .warmup = 5, .total = 15, .final = 0};
  EXPECT_GT(at(cycle, 0), 1. / 25);
  EXPECT_DOUBLE_EQ(at(cycle, 4), 1);
  EXPECT_DOUBLE_EQ(at(cycle, 10), .5);
  EXPECT_NEAR(at(cycle, 15), 0, 1e-12);
  const Schedule stable{.kind = Kind::kWarmupStableDecay, .warmup = 2, .total = 20, .final = .1, .decay = 10};
  EXPECT_DOUBLE_EQ(at(stable, 9), 1);
  EXPECT_DOUBLE_EQ(at(stable, 15), .1 + .9 * .5);
  EXPECT_DOUBLE_EQ(at(stable, 20), .1);
}

TEST(Skip, OutliersChangeNothing) {
  for (const Setting& setting : kSettings) {
    Model model(FullMesh(setting.mesh));
    Tensor x = model.Input("x", {6, 2}, DType::kFloat32, {{"dp", S(0)}});
    Tensor w = model.scope().Weight("w", {2}, Ones());
    TrainOptions options;
    options.micro_batches = setting.micro_batches;
    options.skip = {.above = 10};
    Session train = Train(sum(x * w), AdamW{.lr = .1}, options);
    auto run = [&](float value) {
      HostTensor fed = HostTensor::Make(DType::kFloat32, {6, 2});
      for (int i = 0; i < 12; ++i) fed.as<float>()[i] = value;
      return train.Run({{"x", fed}}).Scalar("skipped");
    };
    EXPECT_EQ(run(1), 0);  // a norm of 6 sqrt(2)
    const HostTensor before = model.Read("w"), moment = model.Read("train:adam_m/w");
    EXPECT_EQ(run(2), 1);
    EXPECT_EQ(Numbers(model.Read("w")), Numbers(before));
    EXPECT_EQ(Numbers(model.Read("train:adam_m/w")), Numbers(moment));
    EXPECT_EQ(model.Read("train:updates").as<float>()[0], 1);
    EXPECT_EQ(run(-1), 0);
    EXPECT_NE(Numbers(model.Read("w")), Numbers(before));
  }
}

TEST(Skip, AboveTheRunningAverage) {
  Model model(FullMesh("cpu:dp=2"));
  Tensor x = model.Input("x", {6, 2}, DType::kFloat32, {{"dp", S(0)}});
  TrainOptions options;
  options.skip = {.times = 3};
  options.check_finite = false;
  Session train = Train(sum(x * model.scope().Weight("w", {2}, Ones())), Sgd{.lr = .1}, options);
  auto run = [&](float value) {
    HostTensor fed = HostTensor::Make(DType::kFloat32, {6, 2});
    for (int i = 0; i < 12; ++i) fed.as<float>()[i] = value;
    return train.Run({{"x", fed}}).Scalar("skipped");
  };
  EXPECT_EQ(run(5), 0);  // the first ten all count
  for (int step = 0; step < 10; ++step) EXPECT_EQ(run(1), 0) << step;
  for (int step = 0; step < 3; ++step) EXPECT_EQ(run(6), 1) << step;
  EXPECT_EQ(run(2.5), 0);
  EXPECT_EQ(run(NAN), 1);
  EXPECT_EQ(run(1), 0);
}

// --- Last batches, and looking inside ------------------------------------------------------------

// A mean over what counts is that of the small batch alone.
TEST(LastBatch, PaddedRowsCountNothing) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=3"}) {
    std::map<int, float> whole, padded;
    for (int rows : {6, 4, 1})
      for (bool pads : {false, true}) {
        Model model(FullMesh(mesh));
        const int64_t batch = pads ? 6 : rows;
        Tensor x = model.Input("x", {batch, 4}, DType::kFloat32),
               y = model.Input("y", {batch}, DType::kInt32);
        Tensor loss = cross_entropy(matmul(x, model.scope().Weight("w", {4, 3}, Normal(1))), y);
        Tensor counts = greater_equal(y, full(model.builder(), {1}, 0, DType::kInt32));
        Session train = Train(masked_mean(loss, counts), Sgd{.lr = .1});
        Feeds feeds{{"x", Floats(1, {rows, 4})}, {"y", Ids(2, {rows}, 3)}};
        feeds = pads ? train.Padded(feeds, {{"y", -1}}) : feeds;
        float last = 0;
        for (int step = 0; step < 3; ++step) last = train.Run(feeds).Scalar("loss");
        (pads ? padded : whole)[rows] = last;
      }
    for (const auto& [rows, loss] : whole)
      EXPECT_NEAR(padded[rows], loss, 1e-5 * loss) << mesh << " " << rows;
  }
}

TEST(LastBatch, WhatDoesNotFitIsRefused) {
  Model model(FullMesh("cpu:dp=1"));
  Tensor x = model.Input("x", {6, 4}, DType::kFloat32), y = model.Input("y", {6}, DType::kInt32);
  Session look = Evaluate({{"x", x}, {"y", y}});
  auto error = [&](const Feeds& feeds, const std::map<std::string, double>& fill = {}) {
    return ErrorOf([&] { look.Padded(feeds, fill); });
  };
  EXPECT_NE(error({{"x", Floats(1, {3, 4})}, {"y", Ids(1, {2}, 3)}})
                .find("differ in their batch: 'x' has 3 but 'y' has 2"),
            std::string::npos);
  EXPECT_NE(
      error({{"x", Floats(1, {7, 4})}}).find("is f32[6,4] with its batch along axis 0, but is fed f32[7,4]"),
      std::string::npos);
  EXPECT_NE(error({{"x", Floats(1, {3, 5})}}).find("but is fed f32[3,5]"), std::string::npos);
  EXPECT_NE(error({}, {{"z", 1}}).find("'z' is to be filled with 1 but is no input"), std::string::npos);
}

TEST(Find, GivesWhatAModelComputesInside) {
  Model model(FullMesh("cpu:dp=1"));
  Tensor x = model.Input("x", {2, 3}, DType::kFloat32);
  Tensor y = nn::Mlp(model.scope() / "mlp", x);
  Session look = Evaluate({{"y", y}, {"inside", model.Find("mlp/gelu")}});
  EXPECT_EQ(look.Run({{"x", Floats(1, {2, 3})}}).Get("inside").shape, Dims({2, 12}));
  EXPECT_NE(
      ErrorOf([&] { model.Find("mlp/gelo"); }).find("has no tensor 'mlp/gelo'; the closest is 'mlp/gelu'"),
      std::string::npos);
}

// --- Wrong use -----------------------------------------------------------------------------------

TEST(Wrong, UsesGetOneSentence) {
  Model model(FullMesh("cpu:dp=1,tp=2"));
  Scope s = model.scope();
  auto expect = [](const std::string& words, const std::function<void()>& act) {
    const std::string error = ErrorOf(act);
    EXPECT_NE(error.find(words), std::string::npos) << "wanted: " << words << "\ngot: " << error;
    EXPECT_NE(error.find("weights_test.cc:"), std::string::npos) << error;
  };
  expect("only a frozen weight can be stored as bf16",
         [&] { s.Weight("a", {2}, Ones(), {.dtype = DType::kBFloat16}); });
  expect("dtype is i32 but must be f32, bf16 or f16",
         [&] { s.Weight("a", {2}, Ones(), {.trainable = false, .dtype = DType::kInt32}); });
  expect("decay is -1 but must be 0 or more", [&] { s.Weight("a", {2}, Ones(), {.decay = -1}); });
  expect("rate is NaN", [&] { s.Weight("a", {2}, Ones(), {.rate = NAN}); });
  expect("axis 2 of its initialiser's fans does not exist, the shape is [2,3]", [&] {
    s.Weight("a", {2, 3}, KaimingNormal({.in = {2}}));
  });
  expect("Orthogonal needs two axes or more but the shape is [2]", [&] { s.Weight("a", {2}, Orthogonal()); });
  expect("it is f32[2] but FromTensor was given f32[3]",
         [&] { s.Weight("a", {2}, FromTensor(Floats(1, {3}))); });
  expect("its type is i64, which random numbers do not fill",
         [&] { s.State("a", {2}, Normal(1), {.dtype = DType::kInt64}); });
  expect("mesh axis tp is annotated twice", [&] {
    s.Weight("a", {2, 4}, Ones(), {.sbp = "tp:S1", .stored = "dp*tp:S1"});
  });
  s.Weight("frozen", {2}, Ones(), {.trainable = false});
  s.Weight("free", {2}, Ones());
  expect("it says trainable=true but the weight of that name",
         [&] { s.Weight("frozen", {2}, Ones(), {.trainable = true}); });
  expect("it says trainable=false but the weight of that name",
         [&] { s.Weight("free", {2}, Ones(), {.trainable = false}); });
  s.Weight("frozen", {2}, Ones());  // says nothing: takes the first's
  s.Weight("given", {2}, FromTensor(Floats(1, {2})));
  expect("give both the same initialiser", [&] { s.Weight("given", {2}, FromTensor(Floats(2, {2}))); });
  Tensor w = s.Weight("w", {2}, Ones()), ids = model.Input("ids", {2}, DType::kInt32);
  expect("x 0, 'ids', is i32, which has no gradient", [&] { gradients(sum(w), {ids}); });
  expect("does not depend on x 1, 'free'", [&] { gradients(sum(w), {w, s.Weight("free", {2}, Ones())}); });
  expect("the loss must be one floating point number", [&] { gradients(w, {w}); });
  EXPECT_NE(ErrorOf([] { Annotation("tp"); }).find("'tp' names no mesh axis; write axis:SBP"),
            std::string::npos);
  TrainOptions both;
  both.lr_schedule = {.kind = Schedule::Kind::kInverseSqrt, .warmup = 3};
  both.lr_function = [](int64_t) { return 1.; };
  expect("both lr_schedule and lr_function are given", [&] { Train(sum(w), Sgd{}, both); });
  TrainOptions none;
  none.lr_schedule = {.kind = Schedule::Kind::kWarmupStableDecay, .warmup = 3, .total = 10, .decay = 8};
  expect("falls over 8 steps, which must be at least 1 and at most the 7",
         [&] { Train(sum(w), Sgd{}, none); });
  TrainOptions skip;
  skip.skip.above = -2;
  expect("skip.above is -2", [&] { Train(sum(w), Sgd{}, skip); });
}

}  // namespace
}  // namespace oneflow_like
