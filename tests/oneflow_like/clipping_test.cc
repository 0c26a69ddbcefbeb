// Clipping of gradients by the norm of groups of weights and by value (TrainOptions::clip_groups, clip_value)
// beside a plain loop, on every mesh, with fused optimizers and others, in fp32 and fp16.
#include <functional>

#include "tests/oneflow_like/host_net.h"

namespace oneflow_like {
namespace {

constexpr int kRows = 12, kWide = 3, kHidden = 4, kOut = 2;

struct Clip {
  const char* text;
  double norm = 0, value = 0;
  std::vector<std::pair<std::string, double>> groups = {};
};
// Norms of the weights' gradients are about 1.5, 0.5 and 1.
const std::vector<Clip>& Clips() {
  static const std::vector<Clip> all = {
      {"value", 0, 0.1},
      {"norm and value", 0.8, 0.1},
      {"groups", 0, 0, {{"net/up", 0.3}, {"net/*", 0.4}}},
      {"groups and the others", 0.05, 0, {{"*/down", 0.3}, {"*/bias", 100}}},
      {"groups, others are free", 0, 0, {{"*/bias", 0.05}}},
      {"all", 0.3, 0.06, {{"*/bias", 0.1}}},
      {"one group", 0, 0, {{"*", 0.5}}}};
  return all;
}

// The gradients as they are clipped, and the norms that are given as outputs.
std::map<std::string, double> ClipOnHost(const Clip& clip, std::map<std::string, Numbers>* gradients) {
  std::map<std::string, double> squares, norms;  // by pattern; of the others: ""
  std::map<std::string, std::string> group_of;
  const auto group = [&](const std::string& name) -> std::string {
    const std::string path = "net/" + name;
    for (const auto& [pattern, norm] : clip.groups)
      if (pattern == path || pattern == "*" || pattern == "net/*" || pattern == "*/" + name) return pattern;
    return "";
  };
  double all = 0;
  for (const auto& [name, g] : *gradients)
    for (double v : g) {
      squares[group(name)] += v * v;
      all += v * v;
    }
  std::map<std::string, double> most;
  for (const auto& [pattern, norm] : clip.groups) {
    most[pattern] = norm;
    norms["grad_norm/" + pattern] = std::sqrt(squares.at(pattern));
  }
  if (clip.norm > 0) most[""] = clip.norm;
  if (clip.norm > 0 || !clip.groups.empty()) norms["grad_norm"] = std::sqrt(all);
  for (auto& [name, g] : *gradients) {
    const std::string of = group(name);
    const double factor =
        most.count(of) ? std::min(1.0, most.at(of) / (std::sqrt(squares.at(of)) + 1e-6)) : 1;
    for (double& v : g) {
      v *= factor;
      if (clip.value > 0) v = std::clamp(v, -clip.value, clip.value);
    }
  }
  return norms;
}

// w -= 0.5 g, by the gradient that an update is given.
Optimizer Plain() {
  return Optimizer("plain",
                   [](WeightUpdate& u) { u.Assign(u.weight(), u.weight() - u.Rate(0.5) * u.gradient()); });
}

struct Clipped {
  Clipped(const Cutting& cut, const Clip& clip, const Optimizer& optimizer, DType dtype = DType::kFloat32)
      : model(FullMesh(cut.mesh), cut.options()) {
    Tensor x = model.Input("x", {kRows, kWide}, DType::kFloat32, {{"dp", S(0)}});
    Tensor y = MeshNet(model.scope() / "net", x, kHidden, kOut, 0, model.mesh().axis_size(2) - 1);
    TrainOptions options;
    options.micro_batches = cut.micro_batches;
    options.clip_norm = clip.norm;
    options.clip_value = clip.value;
    options.clip_groups = clip.groups;
    options.dtype = dtype;
    train.emplace_back(Train(mean(square(y - 1)), optimizer, options));
  }
  Model model;
  std::vector<Session> train;
};

TEST(Clipping, FollowsAPlainLoopOnEveryMesh) {
  const std::vector<std::pair<const char*, Optimizer>> optimizers = {
      {"sgd", Sgd{.lr = 0.5}}, {"momentum", Sgd{.lr = 0.5, .momentum = 0.7}}, {"own", Plain()}};
  size_t turn = 0;  // each cut has each clip, with one of the optimizers
  for (const Cutting& cut : kCuttings)
    for (const Clip& clip : Clips()) {
      const auto& [kind, optimizer] = optimizers[turn++ % optimizers.size()];
      SCOPED_TRACE(Cat(cut.str(), ", ", clip.text, ", ", kind));
      Clipped run(cut, clip, optimizer);
      HostNet net = HostNetOf(run.model, "net/", kWide, kHidden, kOut);
      std::map<std::string, Numbers> velocity;
      for (int step = 0; step < 3; ++step) {
        const HostTensor x = Floats(step, {kRows, kWide});
        StepResult r = run.train[0].Run({{"x", x}});
        const HostNet::Pass pass = net.Forward(NumbersOf(x));
        std::map<std::string, Numbers> gradients;
        (void)net.Backward(pass, MeanSquare(pass.y, 1).second, &gradients);
        for (const auto& [output, norm] : ClipOnHost(clip, &gradients))
          EXPECT_NEAR(r.Scalar(output), norm, 1e-5) << output << " of step " << step;
        for (auto& [name, g] : gradients) {
          Numbers& v = velocity[name];
          v.resize(g.size());
          for (size_t i = 0; i < g.size(); ++i) {
            v[i] = (std::string(kind) == "momentum" ? 0.7 * v[i] : 0) + g[i];
            net.weights[name][i] -= 0.5 * v[i];
          }
          EXPECT_LE(Apart(NumbersOf(run.model.Read("net/" + name)), net.weights[name]), 3e-6)
              << name << " after step " << step;
        }
      }
    }
}

// In fp16 norms and bounds are those of gradients without the loss scale, and a step that overflows makes no
// update.
TEST(Clipping, IsOfUnscaledGradientsInFp16) {
  size_t turn = 0;
  for (const Cutting& cut : kCuttings)
    for (const Clip& clip : Clips()) {
      if (turn++ % 3 != 0) continue;
      SCOPED_TRACE(Cat(cut.str(), ", ", clip.text));
      Clipped narrow(cut, clip, AdamW{.lr = 0.05, .eps = 0.1}, DType::kFloat16),
          wide(cut, clip, AdamW{.lr = 0.05, .eps = 0.1});
      narrow.model.Write("train:loss_scale", ToHost<float>({1024}, {}));
      for (int step = 0; step < 3; ++step) {
        const Feeds feeds = {{"x", Floats(step, {kRows, kWide})}};
        narrow.train[0].Run(feeds).Wait();
        wide.train[0].Run(feeds).Wait();
      }
      std::map<std::string, HostTensor> before;
      for (const char* name : {"up", "bias", "down"}) {
        const std::string path = Cat("net/", name);
        before[path] = narrow.model.Read(path);
        EXPECT_LE(Difference(before[path], wide.model.Read(path)), 2e-3) << name;
      }
      narrow.model.Write("train:loss_scale", ToHost<float>({1e30f}, {}));
      narrow.train[0].Run({{"x", Floats(9, {kRows, kWide})}}).Wait();
      for (const auto& [name, value] : before) EXPECT_TRUE(SameBytes(value, narrow.model.Read(name))) << name;
    }
}

// Rows of a table, which an optimizer updates alone, are clipped as the whole gradient would be.
TEST(Clipping, OfTheRowsOfATable) {
  for (const Clip& clip : {Clip{"value", 0, 0.02}, Clip{"groups", 0, 0, {{"table", 0.05}}}}) {
    std::vector<HostTensor> tables;
    for (bool by_rows : {true, false}) {
      Model model(FullMesh("cpu:dp=2"));
      Tensor ids = model.Input("ids", {4}, DType::kInt32, {{"dp", S(0)}});
      Tensor table = model.scope().Weight("table", {40, 3}, Normal(1));
      TrainOptions options;
      options.micro_batches = 2;
      options.clip_value = clip.value;
      options.clip_groups = clip.groups;
      Session train =
          Train(mean(square(embedding(table, ids))), by_rows ? Optimizer(Sgd{.lr = 0.5}) : Plain(), options);
      for (int step = 0; step < 3; ++step) train.Run({{"ids", Ids(step, {4}, 40)}}).Wait();
      tables.push_back(model.Read("table"));
    }
    EXPECT_LE(Difference(tables[0], tables[1]), 1e-6) << clip.text;
  }
}

}  // namespace
}  // namespace oneflow_like
