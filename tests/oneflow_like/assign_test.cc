// Variables that the user's graph writes: assign, Updated, and optimizers made of them.
#include <cmath>
#include <functional>
#include <regex>
#include <set>

#include "compiler/compile.h"
#include "oneflow_like/session/session_impl.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

std::vector<float> Numbers(const HostTensor& t) { return {t.as<float>(), t.as<float>() + t.elements()}; }

const char* const kMeshes[] = {"cpu:dp=1", "cpu:dp=2", "cpu:tp=2", "cpu:dp=2,tp=2", "cpu:dp=3"};

// --- assign ---

TEST(Assign, GivesTheNewValueAndReadersTheOld) {
  for (const char* mesh : kMeshes)
    for (Annotation cut : {Annotation{}, Annotation{{"dp", S(0)}}, Annotation{{"tp", S(1)}}}) {
      Model model(FullMesh(mesh));
      Tensor v = model.scope().Weight("v", {4, 3}, Full(5), cut);
      Tensor next = assign(v, shift(v, 1));
      Session session = Evaluate({{"old", v}, {"new", next}, {"twice", scale(next, 2)}});
      for (int step = 0; step < 4; ++step) {
        StepResult r = session.Run({});
        EXPECT_EQ(Numbers(r.Get("old")), std::vector<float>(12, 5 + step)) << mesh;
        EXPECT_EQ(Numbers(r.Get("new")), std::vector<float>(12, 6 + step)) << mesh;
        EXPECT_EQ(Numbers(r.Get("twice")), std::vector<float>(12, 12 + 2 * step)) << mesh;
      }
      EXPECT_EQ(Numbers(model.Read("v")), std::vector<float>(12, 9)) << mesh;
    }
}

TEST(Assign, HappensWhereItIsAskedFor) {
  Model model(FullMesh("cpu:dp=2"));
  Tensor v = model.scope().Weight("v", {4}, Zeros()), next = assign(v, shift(v, 1));
  Session look = Evaluate({{"v", v}});
  SessionOptions options;
  options.also = {next};
  Session count = Evaluate({}, options);
  for (int i = 0; i < 3; ++i) count.Run({}).Wait();
  EXPECT_EQ(Numbers(look.Run({}).Get("v")), std::vector<float>(4, 3));
  EXPECT_EQ(Numbers(look.Run({}).Get("v")), std::vector<float>(4, 3)) << "looking changes nothing";
}

// Several variables, cut in any way, each given a sum of others' old and new values: step by step as computed
// here.
TEST(Assign, RandomProgramsFollowTheHost) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    uint64_t at = 0;
    auto draw = [&](int n) { return static_cast<int>(RandomBits(seed, 1, at++) % n); };
    const char* mesh = kMeshes[draw(5)];
    Model model(FullMesh(mesh));
    const int count = 2 + draw(4);
    std::vector<Tensor> old, now;
    std::vector<double> values;
    std::string text = Cat("seed ", seed, " on ", mesh, ":");
    for (int i = 0; i < count; ++i) {
      Annotation cut;
      if (draw(2)) cut.push_back({"dp", S(draw(2))});
      if (draw(2) && (cut.empty() || cut[0].second.axis == 1)) cut.push_back({"tp", S(0)});
      values.push_back(1 + draw(5));
      old.push_back(model.scope().Weight(Cat("v", i), {4, 6}, Full(values[i]), cut));
    }
    // Each is what it was, or an affine function of what others were or are now.
    struct Rule {
      int a, b;  // old values below count, new values of the assigns from there on
      double by, offset;
      bool plain;
    };
    std::vector<Rule> rules;
    now = old;
    std::vector<Tensor> sources = old;
    std::map<std::string, Tensor> outputs;
    for (int i = 0; i < count; ++i) {
      Rule rule{draw(static_cast<int>(sources.size())), draw(static_cast<int>(sources.size())),
                0.25 * (draw(5) - 2), 0.5 * draw(3), draw(3) == 0};
      Tensor value = rule.plain ? sources[rule.a]
                                : shift(sources[rule.a] + scale(sources[rule.b], rule.by), rule.offset);
      text += Cat(" v", i, "=", rule.a, rule.plain ? "" : Cat("+", rule.by, "*", rule.b, "+", rule.offset));
      now[i] = assign(old[i], value);
      sources.push_back(now[i]);
      rules.push_back(rule);
      outputs[Cat("new", i)] = now[i];
      if (draw(2)) outputs[Cat("old", i)] = scale(old[i], 1);
      // Old and new, with an operator in between that nothing fuses with.
      if (draw(2)) outputs[Cat("far", i)] = old[i] + broadcast_to(mean(now[i], {0}), {4, 6});
    }
    Session session = Evaluate(outputs);
    for (int step = 0; step < 3; ++step) {
      std::vector<double> all = values;
      for (const Rule& r : rules) all.push_back(r.plain ? all[r.a] : all[r.a] + r.by * all[r.b] + r.offset);
      StepResult result = session.Run({});
      for (const auto& [name, tensor] : outputs) {
        int i = std::stoi(name.substr(3));
        double want = name[0] == 'n' ? all[count + i] : name[0] == 'o' ? all[i] : all[i] + all[count + i];
        for (float got : Numbers(result.Get(name)))
          ASSERT_NEAR(got, want, 1e-5 * (1 + std::abs(want))) << text << ", " << name << " in step " << step;
      }
      for (int i = 0; i < count; ++i) values[i] = all[count + i];
    }
    for (int i = 0; i < count; ++i)
      EXPECT_NEAR(Numbers(model.Read(Cat("v", i)))[23], values[i], 1e-5 * (1 + std::abs(values[i]))) << text;
  }
}

// Variables that take one another's old values, in rings of any length and in any order: each is read before
// it is written.
TEST(Assign, VariablesTakeOneAnothersOldValues) {
  std::vector<std::vector<int>> programs;  // by variable the one whose value it takes
  for (int count = 2; count <= 6; ++count) {
    std::vector<int> up, down;
    for (int i = 0; i < count; ++i) {
      up.push_back((i + 1) % count);
      down.push_back((i + count - 1) % count);
    }
    programs.insert(programs.end(), {up, down});
  }
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    uint64_t at = 0;
    auto draw = [&](int n) { return static_cast<int>(RandomBits(seed, 2, at++) % n); };
    std::vector<int> from(3 + draw(4));
    const int count = static_cast<int>(from.size());
    for (int i = 0; i < count; ++i) from[i] = (i + 1 + draw(count - 1)) % count;
    programs.push_back(from);
  }
  for (const std::vector<int>& from : programs)
    for (const Annotation& cut : {Annotation{}, Annotation{{"dp", S(0)}}}) {
      std::string text = "each takes the value of";
      for (int f : from) text += Cat(" v", f);
      SCOPED_TRACE(text);
      Model model(FullMesh("cpu:dp=2"));
      std::vector<Tensor> variables;
      std::vector<float> values;
      for (size_t i = 0; i < from.size(); ++i) {
        values.push_back(static_cast<float>(i));
        variables.push_back(model.scope().Weight(Cat("v", i), {4}, Full(values[i]), cut));
      }
      SessionOptions options;
      for (size_t i = 0; i < from.size(); ++i)
        options.also.push_back(assign(variables[i], variables[from[i]]));
      Session session = Evaluate({}, options);
      // A ring needs one copy of an old value, what hangs on it none.
      std::set<int> in_rings;
      for (size_t i = 0; i < from.size(); ++i) {
        int at = static_cast<int>(i);
        for (size_t k = 0; k < from.size(); ++k) at = from[at];
        in_rings.insert(at);
      }
      int rings = 0, copies = 0;
      while (!in_rings.empty()) {
        ++rings;
        for (int at = *in_rings.begin(); in_rings.erase(at) > 0;) at = from[at];
      }
      const Graph& graph = session.impl()->compiled.graph;
      for (int n : graph.Order()) copies += graph.node(n).why.find("the old value") == 0;
      EXPECT_EQ(copies, rings);
      for (int step = 0; step < 3; ++step) {
        session.Run({}).Wait();
        const std::vector<float> old = values;
        for (size_t i = 0; i < from.size(); ++i) {
          values[i] = old[from[i]];
          EXPECT_EQ(Numbers(model.Read(Cat("v", i))), std::vector<float>(4, values[i]))
              << "v" << i << " after step " << step;
        }
      }
    }
}

// A mean over the batch is that of the whole batch, whatever the micro-batches.
TEST(Assign, AReducedValueIsThatOfAllMicroBatches) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2"})
    for (int micro_batches : {1, 2, 3}) {
      Model model(FullMesh(mesh));
      Tensor x = model.Input("x", {6, 2}, DType::kFloat32, {{"dp", S(0)}});
      Tensor centre = model.scope().Weight("centre", {2}, Zeros());
      SessionOptions options;
      options.micro_batches = micro_batches;
      options.also = {assign(centre, scale(centre, 0.5) + mean(x, {0}))};
      Session session = Evaluate({{"sum", sum(x, {0})}}, options);
      std::vector<float> values(12);
      for (int i = 0; i < 12; ++i) values[i] = i;
      for (int step = 0; step < 2; ++step) session.Run({{"x", ToHost(values, {6, 2})}}).Wait();
      EXPECT_EQ(Numbers(model.Read("centre")), (std::vector<float>{7.5, 9})) << mesh << " " << micro_batches;
    }
}

TEST(Assign, MistakesAreNamed) {
  Model model(FullMesh("cpu:dp=2"));
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32), v = model.scope().Weight("v", {4, 3}, Zeros());
  auto refuse = [](const char* wanted, const std::function<void()>& make) {
    std::string error = ErrorOf(make);
    EXPECT_TRUE(std::regex_search(error, std::regex(wanted))) << error << "\n  wanted: " << wanted;
  };
  refuse("^assign at assign_test.cc:\\d+: 'x' is not a variable", [&] { assign(x, x); });
  refuse("^assign at assign_test.cc:\\d+: the variable is \\[4,3\\] but the value is \\[4\\]",
         [&] { assign(v, sum(x, {1})); });
  refuse("^assign at assign_test.cc:\\d+: the variable is f32 but the value is i32; cast",
         [&] { assign(v, cast(x, DType::kInt32)); });
  refuse("^Updated at assign_test.cc:\\d+: 'x' is not a variable", [&] { Updated(x); });
  refuse(
      "^Evaluate at .*: updated 'updated/v' at assign_test.cc:\\d+: nothing in this session gives 'v' a new "
      "value",
      [&] {
        Evaluate({{"y", Updated(v)}});
      });
  refuse("^Evaluate at .*assign.* at assign_test.cc:\\d+: variable 'v' is given a value by assign .* already",
         [&] {
           Evaluate({{"a", assign(v, x)}, {"b", assign(v, scale(x, 2))}});
         });
  Tensor w = model.scope().Weight("w", {4, 3}, Zeros());
  const char* itself =
      "updated 'updated/[vw][^ ]*' at assign_test.cc:\\d+: the new value of '[vw]' is computed from itself";
  refuse(itself, [&] { Evaluate({{"a", assign(v, shift(Updated(v), 1))}}); });
  refuse(itself, [&] {
    Evaluate({{"a", assign(v, shift(Updated(w), 1))}, {"b", assign(w, scale(Updated(v), 2))}});
  });
  refuse(itself, [&] { Train(mean(square(x * v - Updated(v))), Sgd{}); });
  refuse("^Train at .*: no gradient of the loss '[^']*' reaches a weight: it stops at updated 'updated/v",
         [&] { Train(mean(square(Updated(v))), Sgd{}); });
  TrainOptions options;
  options.also = {assign(v, x)};
  refuse("^Train at .*: variable 'v' is given a value by .* already",
         [&] { Train(mean(square(x * v)), Sgd{}, options); });
  refuse("^Train at .*: optimizer 'idle' assigns nothing to weight 'v'",
         [&] { Train(mean(square(x * v)), Optimizer("idle", [](WeightUpdate&) {})); });
  SessionOptions two;
  two.micro_batches = 2;
  two.also = {assign(v, x)};
  refuse("^Evaluate at .*assign.*", [&] { Evaluate({{"x", x}}, two); });
}

// --- Training with variables of one's own ---

struct Setting {
  const char* mesh = "cpu:dp=1";
  int micro_batches = 1;
  const char* zero_axis = "";
  double clip_norm = 0;
  std::string str() const {
    return Cat(mesh, " m=", micro_batches, " zero=", zero_axis, " clip=", clip_norm);
  }
};

const Setting kRuns[] = {{},
                         {"cpu:dp=2"},
                         {"cpu:dp=3", 2, "dp"},
                         {"cpu:tp=2", 2},
                         {"cpu:pp=2", 3},
                         {"cpu:dp=2,pp=2", 2, "dp", 0.3},
                         {"cpu:dp=2,tp=2", 1, "", 0.3}};

constexpr int kRows = 12, kWide = 5, kHidden = 4;

ModelOptions ZeroOn(const char* axis) {
  ModelOptions options;
  options.zero.axis = axis;
  return options;
}

// A perceptron on two stages; `averages` adds a moving average of each weight.
struct Perceptron {
  Perceptron(const Setting& run, bool averages) : model(FullMesh(run.mesh), ZeroOn(run.zero_axis)) {
    const int last = model.mesh().axis_size(2) - 1;
    Scope first = model.scope().Stage("pp", 0), second = model.scope().Stage("pp", last);
    Tensor x = model.Input("x", {kRows, kWide}, DType::kFloat32, {{"dp", S(0)}});
    Tensor up = first.Weight("up", {kWide, kHidden}, Normal(0.5), {{"tp", S(1)}});
    Tensor bias = first.Weight("bias", {kHidden}, Normal(0.5));
    Tensor down = second.Weight("down", {kHidden, 2}, Normal(0.5));
    Tensor y = matmul(to_stage(tanh(matmul(x, up) + bias), "pp", last), down);
    loss = mean(square(y));
    options.micro_batches = run.micro_batches;
    options.clip_norm = run.clip_norm;
    if (!averages) return;
    for (auto& [scope, w] : {std::pair{first, up}, {first, bias}, {second, down}}) {
      Tensor average = (scope / "average").Weight(w.name(), w.shape(), Zeros());
      options.also.push_back(assign(average, scale(average, 0.75) + scale(Updated(w), 0.25)));
    }
  }
  Feeds MakeFeeds(int step) const { return {{"x", Floats(100 + step, {kRows, kWide})}}; }

  Model model;
  Tensor loss;
  TrainOptions options;
};

TEST(Updated, AveragesOfWeightsFollowThem) {
  for (const Setting& run : kRuns) {
    Perceptron p(run, true);
    Session session = Train(p.loss, AdamW{.lr = 0.05}, p.options);
    std::map<std::string, std::vector<double>> want;
    for (int step = 0; step < 4; ++step) {
      session.Run(p.MakeFeeds(step)).Wait();
      for (const char* name : {"up", "bias", "down"}) {
        std::vector<float> w = Numbers(p.model.Read(name)),
                           got = Numbers(p.model.Read(Cat("average/", name)));
        std::vector<double>& average = want[name];
        average.resize(w.size());
        for (size_t i = 0; i < w.size(); ++i) {
          average[i] = 0.75 * average[i] + 0.25 * w[i];
          ASSERT_NEAR(got[i], average[i], 1e-6) << run.str() << " step " << step << " " << name << " " << i;
        }
      }
    }
  }
}

// Sgd with momentum and AdamW, written by a user.
Optimizer UsersSgd(double lr, double momentum, double decay) {
  return Optimizer("users_sgd", [=](WeightUpdate& u) {
    Tensor w = u.weight(), v = u.State("users_v");
    Tensor velocity = scale(v, momentum) + u.gradient() + scale(w, decay * u.Decay());
    u.Assign(v, velocity);
    u.Assign(w, w - velocity * u.Rate(lr));
  });
}

Optimizer UsersAdamW(double lr, double beta1, double beta2, double eps, double decay) {
  return Optimizer("users_adamw", [=](WeightUpdate& u) {
    Tensor w = u.weight(), g = u.gradient(), m = u.State("users_m"), v = u.State("users_s");
    Tensor t = shift(u.Updates(), 1), rate = u.Rate(lr);
    Tensor mean = scale(m, beta1) + scale(g, 1 - beta1),
           square_mean = scale(v, beta2) + scale(square(g), 1 - beta2);
    auto corrected = [&](Tensor x, double beta) { return x / shift(neg(exp(scale(t, std::log(beta)))), 1); };
    Tensor step = corrected(mean, beta1) / shift(sqrt(corrected(square_mean, beta2)), eps);
    step = step + scale(w, decay * u.Decay());
    u.Assign(w, w - step * rate);
    u.Assign(m, mean);
    u.Assign(v, square_mean);
  });
}

TEST(UsersOptimizer, FollowsTheBuiltInOnEveryMesh) {
  const std::pair<Optimizer, Optimizer> pairs[] = {
      {Sgd{.lr = 0.3, .momentum = 0.8, .weight_decay = 0.05}, UsersSgd(0.3, 0.8, 0.05)},
      {AdamW{.lr = 0.05, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.1},
       UsersAdamW(0.05, 0.9, 0.9, 1e-6, 0.1)}};
  for (const auto& [built_in, users] : pairs)
    for (const Setting& run : kRuns)
      for (bool warm : {false, true}) {
        std::map<std::string, std::vector<float>> weights[2];
        for (int who = 0; who < 2; ++who) {
          Perceptron p(run, false);
          if (warm) p.options.lr_schedule = {.kind = Schedule::Kind::kCosine, .warmup = 2, .total = 5};
          Session session = Train(p.loss, who == 0 ? built_in : users, p.options);
          for (int step = 0; step < 5; ++step) session.Run(p.MakeFeeds(step)).Wait();
          for (const char* name : {"up", "bias", "down"}) weights[who][name] = Numbers(p.model.Read(name));
        }
        for (const auto& [name, values] : weights[0])
          for (size_t i = 0; i < values.size(); ++i)
            ASSERT_NEAR(weights[1][name][i], values[i], 2e-5)
                << users.name << " " << run.str() << " " << name;
      }
}

// Lion, as README shows it, by hand.
TEST(UsersOptimizer, LionInTwentyLines) {
  auto lion = [](double lr, double beta1, double beta2, double decay) {
    return Optimizer("lion", [=](WeightUpdate& u) {
      Tensor w = u.weight(), g = u.gradient(), m = u.State("lion_m");
      Tensor direction = sign(scale(m, beta1) + scale(g, 1 - beta1));
      u.Assign(w, w - u.Rate(lr) * (direction + scale(w, decay)));
      u.Assign(m, scale(m, beta2) + scale(g, 1 - beta2));
    });
  };
  Model model(FullMesh("cpu:dp=2"));
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32, {{"dp", S(0)}});
  Tensor w = model.scope().Weight("w", {3}, Ones());
  Session session = Train(sum(x * w), lion(0.1, 0.9, 0.8, 0.2));
  std::vector<double> weight(3, 1), moment(3, 0);
  for (int step = 0; step < 6; ++step) {
    HostTensor fed = Floats(step, {4, 3});
    session.Run({{"x", fed}}).Wait();
    for (int i = 0; i < 3; ++i) {
      double g = 0;
      for (int r = 0; r < 4; ++r) g += fed.as<float>()[3 * r + i];
      double mixed = 0.9 * moment[i] + 0.1 * g;
      weight[i] -= 0.1 * ((mixed > 0) - (mixed < 0) + 0.2 * weight[i]);
      moment[i] = 0.8 * moment[i] + 0.2 * g;
      EXPECT_NEAR(model.Read("w").as<float>()[i], weight[i], 1e-5) << step;
      EXPECT_NEAR(model.Read("train:lion_m/w").as<float>()[i], moment[i], 1e-5) << step;
    }
  }
}

// State alone is no update: the weight that is left out is named.
TEST(UsersOptimizer, AssignsEveryWeight) {
  for (const char* left_out : {"v", "w"}) {
    Model model(FullMesh("cpu:dp=2"));
    Tensor x = model.Input("x", {4, 3}, DType::kFloat32, {{"dp", S(0)}});
    Tensor v = model.scope().Weight("v", {3}, Ones()), w = model.scope().Weight("w", {3}, Ones());
    Optimizer forgetful("forgetful", [&](WeightUpdate& u) {
      u.Assign(u.State("kept"), u.gradient());
      if (u.weight().name() != left_out) u.Assign(u.weight(), u.weight() - u.gradient());
    });
    const std::string error = ErrorOf([&] { Train(mean(square(x * v * w)), forgetful); });
    EXPECT_NE(error.find(Cat("optimizer 'forgetful' assigns nothing to weight '", left_out, "'")),
              std::string::npos)
        << "of " << left_out << ": " << error;
  }
}

TEST(UsersOptimizer, RmsPropFollowsItsFormula) {
  for (const RmsProp& rule : {RmsProp{.lr = 0.05}, RmsProp{.lr = 0.02, .alpha = 0.8, .momentum = 0.7},
                              RmsProp{.lr = 0.02, .alpha = 0.8, .eps = 1e-3, .weight_decay = 0.1}}) {
    Model model(FullMesh("cpu:dp=2"));
    Tensor x = model.Input("x", {4, 3}, DType::kFloat32, {{"dp", S(0)}});
    Session session = Train(sum(x * model.scope().Weight("w", {3}, Ones(), {.decay = 1})), rule);
    std::vector<double> w(3, 1), s(3, 0), v(3, 0);
    for (int step = 0; step < 6; ++step) {
      HostTensor fed = Floats(step, {4, 3});
      session.Run({{"x", fed}}).Wait();
      for (int i = 0; i < 3; ++i) {
        double g = rule.weight_decay * w[i];
        for (int r = 0; r < 4; ++r) g += fed.as<float>()[3 * r + i];
        s[i] = rule.alpha * s[i] + (1 - rule.alpha) * g * g;
        v[i] = rule.momentum * v[i] + g / (std::sqrt(s[i]) + rule.eps);
        w[i] -= rule.lr * v[i];
        EXPECT_NEAR(model.Read("w").as<float>()[i], w[i], 1e-5) << step;
      }
    }
  }
}

// --- Skipped steps ---

// A step whose gradients overflow in fp16 leaves nothing but a smaller scale behind: the others train as if
// it had not been, bias corrections included.
TEST(SkippedSteps, LeaveNoTraceInTheOthers) {
  const Optimizer optimizers[] = {Adam{.lr = 0.05}, AdamW{.lr = 0.05}, UsersAdamW(0.05, 0.9, 0.9, 1e-6, 0.1),
                                  Sgd{.lr = 0.1, .momentum = 0.9}};
  for (const Optimizer& optimizer : optimizers)
    for (const Setting& run : kRuns) {
      std::map<std::string, std::vector<float>> weights[2];
      for (int skips = 0; skips < 2; ++skips) {
        Perceptron p(run, false);
        p.options.dtype = DType::kFloat16;
        Session session = Train(p.loss, optimizer, p.options);
        auto set_scale = [&](float to) {
          HostTensor scale = HostTensor::Make(DType::kFloat32, {});
          scale.as<float>()[0] = to;
          p.model.Write("train:loss_scale", scale);
        };
        session.Run(p.MakeFeeds(0)).Wait();
        for (int step = 1; step < 5; ++step) {
          if (skips && step % 2 == 0) {
            set_scale(1e30f);
            session.Run(p.MakeFeeds(50 + step)).Wait();
          }
          set_scale(1024);
          session.Run(p.MakeFeeds(step)).Wait();
        }
        for (const char* name : {"up", "bias", "down"}) weights[skips][name] = Numbers(p.model.Read(name));
        if (optimizer.name != "sgd") weights[skips]["updates"] = Numbers(p.model.Read("train:updates"));
      }
      if (optimizer.name != "sgd") {
        EXPECT_GE(weights[0]["updates"][0], 4) << run.str();
      }
      EXPECT_EQ(weights[1], weights[0]) << optimizer.name << " " << run.str();
    }
}

}  // namespace
}  // namespace oneflow_like
