// Optimizers of a user's that read more than the gradient: a second loss, states of any shape, others by
// groups, beside plain loops on every mesh; and whole optimizers written as assigns.
// ctest: seconds=8 asan=90 tsan=90
#include <cmath>
#include <functional>
#include <regex>

#include "oneflow_like/session/session_impl.h"
#include "tests/oneflow_like/host_net.h"

namespace oneflow_like {
namespace {

constexpr int kRows = 12, kWide = 5, kHidden = 4;

// --- Optimizers that read more ---

// A training of two stages by an optimizer, beside its twin on the host, which is given the gradients of the
// loss, mean (y - 0.5)^2, and of a second one, mean y, and moves the weights.
using OnHost = std::function<void(HostNet* net, std::map<std::string, Numbers>& gradients,
                                  std::map<std::string, Numbers>& of_second)>;
using OnMesh = std::function<Optimizer(Tensor second, const std::map<std::string, Tensor>& weights)>;

void ExpectTwins(const OnMesh& make, const OnHost& move, const std::string& what) {
  for (const Cutting& cut : kCuttings) {
    SCOPED_TRACE(Cat(what, " ", cut.str()));
    Model model(FullMesh(cut.mesh), cut.options());
    Tensor x = model.Input("x", {kRows, kWide}, DType::kFloat32, {{"dp", S(0)}});
    Tensor y = MeshNet(model.scope(), x, kHidden, 2, 0, model.mesh().axis_size(2) - 1);
    std::map<std::string, Tensor> weights;
    for (const char* name : {"up", "bias", "down"}) weights[name] = model.Find(name);
    TrainOptions options;
    options.micro_batches = cut.micro_batches;
    Session session = Train(mean(square(y - 0.5)), make(mean(y), weights), options);
    HostNet net = HostNetOf(model, "", kWide, kHidden, 2);
    for (int step = 0; step < 4; ++step) {
      const HostTensor fed = Floats(100 + step, {kRows, kWide});
      const float loss = session.Run({{"x", fed}}).Scalar("loss");
      const HostNet::Pass pass = net.Forward(NumbersOf(fed));
      const auto [wanted, dy] = MeanSquare(pass.y, 0.5);
      std::map<std::string, Numbers> gradients, of_second;
      (void)net.Backward(pass, dy, &gradients);
      (void)net.Backward(pass, Numbers(pass.y.size(), 1.0 / static_cast<double>(pass.y.size())), &of_second);
      move(&net, gradients, of_second);
      EXPECT_NEAR(loss, wanted, 2e-6) << "step " << step;
      for (const auto& [name, values] : net.weights)
        EXPECT_LE(Apart(NumbersOf(model.Read(name)), values), 3e-6) << name << " step " << step;
    }
  }
}

// The gradients of a second loss, and its value, which scales a step: on every mesh, in micro-batches.
TEST(UsersOptimizer, ReadsASecondLoss) {
  auto make = [](Tensor second, const std::map<std::string, Tensor>& weights) {
    std::vector<Tensor> list;
    for (const auto& [name, w] : weights) list.push_back(w);
    const std::vector<Tensor> found = gradients(second, list);
    std::map<std::string, Tensor> of_second;
    for (const auto& [name, w] : weights) of_second[name] = found[of_second.size()];
    Optimizer two("two", [=](WeightUpdate& u) {
      Tensor h = u.State("h"), now = scale(h, 0.5) + u.Read(of_second.at(u.path()));
      u.Assign(h, now);
      u.Assign(u.weight(), u.weight() - u.Rate(0.2) * (u.gradient() + now * shift(u.Read(second), 1)));
    });
    two.reads = found;
    two.reads.push_back(second);
    return two;
  };
  std::map<std::string, Numbers> h;
  double second = 0;
  auto move = [&](HostNet* net, std::map<std::string, Numbers>& g, std::map<std::string, Numbers>& g2) {
    for (auto& [name, values] : net->weights) {
      h[name].resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        h[name][i] = 0.5 * h[name][i] + g2[name][i];
        values[i] -= 0.2 * (g[name][i] + h[name][i] * (second + 1));
      }
    }
  };
  // The second loss is linear in the last layer: the value follows from its gradient.
  auto begin = [&](HostNet* net, std::map<std::string, Numbers>& g, std::map<std::string, Numbers>& g2) {
    second = 0;
    for (size_t i = 0; i < g2["down"].size(); ++i) second += g2["down"][i] * net->weights["down"][i];
    move(net, g, g2);
  };
  ExpectTwins(
      [&](Tensor s, const std::map<std::string, Tensor>& w) {
        h.clear();
        return make(s, w);
      },
      begin, "two losses");
}

// One number for each column, as Adafactor keeps beside its rows, and one matrix for each weight.
TEST(UsersOptimizer, KeepsStatesOfAnyShape) {
  std::map<std::string, Numbers> columns, products;
  auto make = [&](Tensor, const std::map<std::string, Tensor>&) {
    columns.clear();
    products.clear();
    return Optimizer("columns", [](WeightUpdate& u) {
      Tensor w = u.weight(), g = u.gradient();
      if (w.shape().rank() == 1) return u.Assign(w, w - u.Rate(0.1) * g);
      Tensor c = u.ShapedState("columns", {w.shape()[1]}, {1}, 0.25);
      Tensor p = u.ShapedState("product", {w.shape()[0], w.shape()[0]}, {0, -1});
      Tensor squares = scale(c, 0.5) + mean(square(g), {0}), next = scale(p, 0.5) + einsum("ik,jk->ij", g, g);
      u.Assign(c, squares);
      u.Assign(p, next);
      u.Assign(w, w - u.Rate(0.1) * (g + matmul(next, g)) / unsqueeze(sqrt(squares), 0));
    });
  };
  auto move = [&](HostNet* net, std::map<std::string, Numbers>& g, std::map<std::string, Numbers>&) {
    for (auto& [name, values] : net->weights) {
      const Numbers& d = g[name];
      const int rows = name == "bias" ? 1
                       : name == "up" ? kWide
                                      : kHidden,
                wide = static_cast<int>(values.size()) / rows;
      if (name == "bias") {
        for (size_t i = 0; i < values.size(); ++i) values[i] -= 0.1 * d[i];
        continue;
      }
      Numbers &c = columns[name], &p = products[name];
      c.resize(wide, 0.25);
      p.resize(rows * rows, 0);
      for (int j = 0; j < wide; ++j) {
        double sum = 0;
        for (int i = 0; i < rows; ++i) sum += d[i * wide + j] * d[i * wide + j] / rows;
        c[j] = 0.5 * c[j] + sum;
      }
      for (int i = 0; i < rows; ++i)
        for (int k = 0; k < rows; ++k) {
          double dot = 0;
          for (int j = 0; j < wide; ++j) dot += d[i * wide + j] * d[k * wide + j];
          p[i * rows + k] = 0.5 * p[i * rows + k] + dot;
        }
      for (int i = 0; i < rows; ++i)
        for (int j = 0; j < wide; ++j) {
          double step = d[i * wide + j];
          for (int k = 0; k < rows; ++k) step += p[i * rows + k] * d[k * wide + j];
          values[i * wide + j] -= 0.1 * step / std::sqrt(c[j]);
        }
    }
  };
  ExpectTwins(make, move, "columns");
}

// A state of columns is cut where its weight's columns are.
TEST(UsersOptimizer, StatesOfColumnsAreCutAsTheyAre) {
  Model model(FullMesh("cpu:tp=2"));
  Tensor x = model.Input("x", {4, 6}, DType::kFloat32);
  Tensor w = model.scope().Weight("w", {6, 1024}, Normal(1), {{"tp", S(1)}});
  Optimizer columns("columns", [](WeightUpdate& u) {
    Tensor c = u.ShapedState("columns", {1024}, {1});
    u.Assign(c, c + mean(square(u.gradient()), {0}));
    u.Assign(u.weight(), u.weight() - u.gradient());
  });
  Session session = Train(mean(square(matmul(x, w))), columns);
  int64_t state = 0;
  const RankSummary first = session.Summaries()[0];
  for (const auto& [purpose, bytes] : first.purposes)
    if (purpose == "optimizer state") state = bytes;
  EXPECT_EQ(state, 4 * 1024 / 2);
}

// Groups with numbers of their own, another optimizer among them, and rows of a table.
TEST(Groups, UpdateEachWeightByTheFirstThatMatches) {
  std::map<std::string, Numbers> v;
  auto make = [&](Tensor, const std::map<std::string, Tensor>&) {
    v.clear();
    return Groups({{"b*", Sgd{.lr = 0.3}},
                   {"?p", Sgd{.lr = 0.1, .momentum = 0.9}},
                   {"*", Sgd{.lr = 0.2, .momentum = 0.5}}});
  };
  auto move = [&](HostNet* net, std::map<std::string, Numbers>& g, std::map<std::string, Numbers>&) {
    for (auto& [name, values] : net->weights) {
      const double momentum = name == "bias" ? 0
                              : name == "up" ? 0.9
                                             : 0.5,
                   lr = name == "bias" ? 0.3
                        : name == "up" ? 0.1
                                       : 0.2;
      v[name].resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        v[name][i] = momentum * v[name][i] + g[name][i];
        values[i] -= lr * v[name][i];
      }
    }
  };
  ExpectTwins(make, move, "groups");
}

TEST(Groups, TablesKeepTheirRows) {
  for (bool grouped : {false, true}) {
    Model model(FullMesh("cpu:dp=2"));
    Tensor ids = model.Input("ids", {4}, DType::kInt32, {{"dp", S(0)}});
    Tensor y = embedding(model.scope().Weight("table", {64, 2}, Normal(1)), ids);
    const Optimizer rows = Adagrad{.by_rows = true};
    Session session = Train(mean(square(y)), grouped ? Groups({{"table", rows}}) : rows);
    std::string ops;
    for (int n : session.impl()->compiled.graph.Order())
      ops += session.impl()->compiled.graph.node(n).op + " ";
    EXPECT_NE(ops.find("sgd_rows"), std::string::npos) << grouped << ": " << ops;
  }
}

TEST(UsersOptimizer, MistakesSayWhatItMayRead) {
  auto refuse = [](const std::string& wanted, const std::function<void()>& make) {
    std::string error = ErrorOf(make);
    EXPECT_TRUE(std::regex_search(error, std::regex(wanted))) << error << "\n  wanted: " << wanted;
  };
  Model model(FullMesh("cpu:dp=2"));
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32, {{"dp", S(0)}});
  Tensor w = model.scope().Weight("w", {3}, Ones()), b = model.scope().Weight("b", {3}, Ones());
  Tensor loss = mean(square(x * w + b)), other = mean(x);
  ModelGraph graph = model.NewGraph("elsewhere");
  Tensor apart = full(graph.builder(), {3}, 1);
  auto train = [&](std::function<void(WeightUpdate&)> update, std::vector<Tensor> reads = {}) {
    Optimizer mine("mine", std::move(update));
    mine.reads = std::move(reads);
    return Train(loss, mine);
  };
  const char* may =
      "belongs to another model, or to another graph of this one; optimizer 'mine' computes with "
      "what WeightUpdate gives it: weight, gradient, states, Rate, Updates, and tensors of the "
      "graph by Read$";
  refuse(Cat("^Train at .*: mul at own_optimizers_test.cc:\\d+: .*", may),
         [&] { train([&](WeightUpdate& u) { u.Assign(u.weight(), u.gradient() * other); }); });
  refuse(Cat("^Train at .*: mul at own_optimizers_test.cc:\\d+: .*", may),
         [&] { train([&](WeightUpdate& u) { u.Assign(u.weight(), other * u.gradient()); }); });
  refuse(Cat("^Train at .*: assign .*: .*", may),
         [&] { train([&](WeightUpdate& u) { u.Assign(u.weight(), w); }); });
  refuse("^Train at .*: optimizer 'mine', weight '[wb]': it assigns a Tensor that was never given a value",
         [&] { train([&](WeightUpdate& u) { u.Assign(u.weight(), Tensor()); }); });
  refuse(
      "^Train at .*: optimizer 'mine', weight '[wb]': it assigns to a variable of the graph; Assign takes "
      "the weight",
      [&] { train([&](WeightUpdate& u) { u.Assign(w, u.gradient()); }); });
  auto reads = [&](Tensor tensor) {
    return [tensor](WeightUpdate& u) { u.Assign(u.weight(), u.gradient() * u.Read(tensor)); };
  };
  refuse(
      "^Train at .*: optimizer 'mine', weight '[wb]': it reads '.*', which this session does not compute; "
      "list it in "
      "Optimizer::reads or in TrainOptions::also",
      [&] { train(reads(other)); });
  refuse("optimizer 'mine', weight '[wb]': '.*' belongs to another graph than the loss; Read takes",
         [&] { train(reads(apart)); });
  refuse("optimizer 'mine', weight '[wb]': Read was given a Tensor that was never given a value",
         [&] { train(reads(Tensor())); });
  refuse("^Train at .*: '.*' of Optimizer::reads belongs to another graph",
         [&] { train(reads(other), {apart}); });
  Session fine = train(reads(other), {other});
  auto keeps = [&](Dims shape, std::vector<int> axes) {
    return [shape, axes](WeightUpdate& u) { (void)u.ShapedState("s", shape, axes); };
  };
  const std::string who = "^Train at .*: optimizer 'mine', weight '[wb]': state 's' ";
  refuse(who + "\\[4\\]: its axis 0 has extent 4 but axis 0 of the weight has 3",
         [&] { train(keeps({4}, {0})); });
  refuse(who + "\\[3\\]: its axis 0 goes with axis 1 of the weight, which is \\[3\\]",
         [&] { train(keeps({3}, {1})); });
  refuse(who + "\\[3,3\\] has 2 axes but `axes` names 1", [&] { train(keeps({3, 3}, {0})); });
  refuse(who + "\\[3,3\\]: two of its axes go with axis 0", [&] { train(keeps({3, 3}, {0, 0})); });
  refuse(who + "\\[2\\] was \\[3\\] before", [&] {
    train([](WeightUpdate& u) {
      (void)u.State("s");
      (void)u.ShapedState("s", {2});
    });
  });
  refuse("^Train at .*: no pattern of Groups matches weight 'w'; the last group may be", [&] {
    Train(loss, Groups({{"b", Sgd{}}}));
  });
  refuse("^Train at .*: pattern \"head/\\*\" of Groups is left no weight to update", [&] {
    Train(loss, Groups({{"*", Sgd{}}, {"head/*", Sgd{}}}));
  });
  refuse("^Train at .*: group \"b\": .*lr", [&] {
    Train(loss, Groups({{"b", Sgd{.lr = -1}}, {"*", Sgd{}}}));
  });
  refuse("^Groups: no group is given", [&] { Groups({}); });
}

// --- Whole optimizers as assigns ---

// Momentum with clipping and a schedule, as a graph of its own, beside what Train makes of the same.
TEST(ByHand, AnOptimizerOfAssignsIsTheTraining) {
  const Schedule schedule = {.kind = Schedule::Kind::kCosine, .warmup = 2, .total = 5};
  for (const Cutting& cut : kCuttings)
    for (DType dtype : {DType::kFloat32, DType::kFloat16}) {
      SCOPED_TRACE(Cat(cut.str(), " ", Name(dtype)));
      std::map<std::string, Numbers> found[2];
      for (bool hand : {false, true}) {
        Model model(FullMesh(cut.mesh), cut.options());
        Tensor x = model.Input("x", {kRows, kWide}, DType::kFloat32, {{"dp", S(0)}});
        const int last = model.mesh().axis_size(2) - 1;
        Tensor loss = mean(square(MeshNet(model.scope(), x, kHidden, 2, 0, last) - 0.5));
        std::vector<Tensor> weights;
        for (const char* name : {"up", "bias", "down"}) weights.push_back(model.Find(name));
        auto steps = [&](Session session, const std::string& scale) {
          for (int step = 0; step < 6; ++step) {
            if (dtype == DType::kFloat16 && step != 1) {  // the one at 3 overflows
              HostTensor to = HostTensor::Make(DType::kFloat32, {});
              to.as<float>()[0] = step == 3 ? 1e30f : 1024;
              model.Write(scale, to);
            }
            StepResult result = session.Run({{"x", Floats(step, {kRows, kWide})}});
            found[hand]["loss"].push_back(result.Scalar("loss"));
            if (step != 3 || dtype == DType::kFloat32)
              found[hand]["norm"].push_back(result.Scalar("grad_norm"));
          }
          for (const Tensor& w : weights) found[hand][w.name()] = NumbersOf(model.Read(w.name()));
        };
        if (!hand) {
          TrainOptions options;
          options.micro_batches = cut.micro_batches;
          options.dtype = dtype;
          options.clip_norm = 0.1;
          options.lr_schedule = schedule;
          steps(Train(loss, Sgd{.lr = 0.5, .momentum = 0.8}, options), "train:loss_scale");
          continue;
        }
        SessionOptions options;
        options.micro_batches = cut.micro_batches;
        options.dtype = dtype;
        Scope first = model.scope().Stage("pp", 0);
        LossScale scaling(first / "scale");
        const bool scaled = dtype == DType::kFloat16;
        const Clipped clipped = scaled ? scaling.Unscale(gradients(loss * scaling.factor(), weights), 0.1)
                                       : clip_by_norm(gradients(loss, weights), 0.1);
        Tensor lr = learning_rate(model.builder(), 0.5, schedule);
        auto give = [&](Tensor variable, Tensor value) {
          options.also.push_back(assign(variable, scaled ? scaling.Choose(value, variable) : value));
        };
        for (size_t i = 0; i < weights.size(); ++i) {
          Tensor w = weights[i];
          Scope there = model.scope().Stage("pp", w.name() == "down" ? last : 0);
          Tensor v = (there / "velocity").State(w.name(), w.shape(), Zeros());
          Tensor next = 0.8 * v + clipped.gradients[i];
          give(v, next);
          give(w, w - lr * next);
        }
        if (scaled) options.also.push_back(scaling.Update());
        steps(Evaluate({{"loss", loss}, {"grad_norm", clipped.norm}}, options), "scale/loss_scale");
      }
      for (const auto& [name, values] : found[0])
        EXPECT_LE(Apart(found[1][name], values), dtype == DType::kFloat32 ? 2e-6 : 2e-3) << name;
    }
}

TEST(ByHand, MistakesAreNamed) {
  auto refuse = [](const std::string& wanted, const std::function<void()>& make) {
    std::string error = ErrorOf(make);
    EXPECT_TRUE(std::regex_search(error, std::regex(wanted))) << error << "\n  wanted: " << wanted;
  };
  Model model(FullMesh("cpu:dp=2"));
  Tensor w = model.scope().Weight("w", {3}, Ones());
  ModelGraph graph = model.NewGraph("elsewhere");
  Tensor apart = full(graph.builder(), {3}, 1);
  refuse("^clip_by_norm at own_optimizers_test.cc:\\d+: no gradients are given",
         [&] { clip_by_norm({}, 1); });
  refuse("^clip_by_norm at own_optimizers_test.cc:\\d+: most is 0", [&] { clip_by_norm({w}, 0); });
  refuse("^clip_by_norm at own_optimizers_test.cc:\\d+: '.*' belongs to another graph than the first", [&] {
    clip_by_norm({w, apart}, 1);
  });
  refuse("^learning_rate at own_optimizers_test.cc:\\d+: lr is -1",
         [&] { learning_rate(model.builder(), -1); });
  refuse("^learning_rate at own_optimizers_test.cc:\\d+: no graph", [&] { learning_rate(nullptr, 1); });
  refuse("^LossScale::Choose at own_optimizers_test.cc:\\d+: call Unscale first",
         [&] { LossScale(model.scope()).Choose(w, w); });
  refuse("^LossScale::Update at own_optimizers_test.cc:\\d+: call Unscale first",
         [&] { LossScale(model.scope()).Update(); });
  refuse("^LossScale::Unscale at own_optimizers_test.cc:\\d+: most is -1",
         [&] { LossScale(model.scope()).Unscale({w}, -1); });
}

}  // namespace
}  // namespace oneflow_like
