// Losses that contain gradients (of a score with respect to its input): second derivatives of the operators
// that models are made of, trained on every mesh.
#include <cmath>

#include "ops/language/losses.h"
#include "ops/language/sparse.h"
#include "ops/language/vision.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

constexpr int64_t kBatch = 6, kRows = 6, kChannels = 4;

using Network = Tensor (*)(Scope, Tensor x);  // x[batch, 6, 6, 4] -> a number for each example, [batch]

Tensor Head(Scope s, Tensor y) {  // [batch, n] -> [batch]
  return sum(matmul(y, s.Weight("head", {y.shape()[1], 3}, Normal(.4), {{"tp", S(0)}})), {1});
}

Tensor Flat(Tensor y) { return reshape(y, {y.shape()[0], y.shape().elements() / y.shape()[0]}); }

Tensor Pooled(Scope s, Tensor x) {
  Tensor filter = s.Weight("filter", {4, 3, 3, kChannels}, Normal(.4));
  Tensor y =
      max_pool2d(tanh(conv2d(x, filter, {.padding = {1}})), {.kernel = {3}, .stride = {2}, .padding = {1}});
  return Head(s, square(Flat(y)));
}

Tensor Grouped(Scope s, Tensor x) {
  Tensor gamma = s.Weight("gamma", {kChannels}, Normal(1)), beta = s.Weight("beta", {kChannels}, Normal(1));
  return Head(s, Flat(silu(group_norm(x, 2, gamma, beta))));
}

Tensor Normed(Scope s, Tensor x) {
  Tensor y = Flat(x);
  const int64_t width = y.shape()[1];
  y = layer_norm(y, s.Weight("gamma", {width}, Normal(1)), s.Weight("beta", {width}, Normal(1)));
  y = gelu(matmul(y, s.Weight("up", {width, 8}, Normal(.3), {{"tp", S(1)}})));
  return Head(s, mish(rms_norm(y, s.Weight("scale", {8}, Normal(1)))));
}

Tensor Chosen(Scope s, Tensor x) {  // through a softmax and a choice of columns
  Tensor y = matmul(Flat(x), s.Weight("up", {kRows * kRows * kChannels, 8}, Normal(.1), {{"tp", S(1)}}));
  y = mul(softmax(y), sigmoid(y));
  return Head(s, take(log_softmax(y), 1, constant(x.graph(), Ids(5, {5}, 8))));
}

// Four heads of queries to two of keys, causal within a window, and a bias that learns.
Tensor Attended(Scope s, Tensor x) {
  Tensor rows = reshape(x, {kBatch, kRows, kRows * kChannels});
  auto project = [&](const char* name, int64_t heads) {
    Tensor w = s.Weight(name, {kRows * kChannels, heads, 3}, Normal(.3), {{"tp", S(1)}});
    return einsum("bsw,whd->bshd", rows, w);
  };
  AttentionOptions options{.window = 4};
  options.bias = s.Weight("bias", {4, kRows, kRows}, Normal(.5), {{"tp", S(0)}});
  Tensor y = attention(project("q", 4), project("k", 2), project("v", 2), options);
  return Head(s, tanh(Flat(y)));
}

// Tokens of two documents, which do not see each other; half of the probabilities are dropped.
Tensor Dropped(Scope s, Tensor x) {
  Tensor rows = reshape(x, {kBatch, kRows, 4, kRows});
  Tensor w = s.Weight("w", {kRows, kRows}, Normal(.4)), documents = constant(x.graph(), Ids(9, {kRows}, 2));
  AttentionOptions options{.causal = false, .dropout = .5};
  options.query_documents = options.key_documents = documents;
  Tensor y = attention(matmul(rows, w), rows, tanh(rows), options);
  return Head(s, dropout(tanh(Flat(y)), .25));
}

// The greatest of some rows of a table that the input scales.
Tensor Bagged(Scope s, Tensor x) {
  Tensor table = s.Weight("table", {9, 8}, Normal(1), {{"tp", S(1)}});
  Tensor up = matmul(Flat(x), s.Weight("up", {kRows * kRows * kChannels, 8}, Normal(.1), {{"tp", S(1)}}));
  Tensor scaled = table * sigmoid(sum(up, {0}, true));
  Tensor bags = embedding_bag(scaled, constant(x.graph(), Ids(5, {kBatch, 3}, 9)),
                              constant(x.graph(), Ids(6, {kBatch}, 4)), Bag::kMax);
  return Head(s, tanh(bags * up));
}

struct Setting {
  const char* mesh;
  int micro_batches;
};

struct Curve {
  std::vector<float> losses;
  double norm = 0;  // of the first step's gradient
};

// The mean of the squared gradient is all of the loss.
Curve CurveOf(Network network, const Setting& run, double lr) {
  Model model(FullMesh(run.mesh));
  Scope first = model.scope().Stage("pp", 0);
  Tensor x = model.Input("x", {kBatch, kRows, kRows, kChannels}, DType::kFloat32, {{"dp", S(0)}});
  Tensor score = network(first, x);
  Tensor slope = gradients(sum(score), {x})[0];
  TrainOptions options;
  options.micro_batches = run.micro_batches;
  options.clip_norm = 1e9;
  Session train = Train(scale(mean(square(slope)), 10), Sgd{.lr = lr}, options);
  Curve curve;
  for (int step = 0; step < 4; ++step) {
    StepResult result = train.Run({{"x", Floats(7, {kBatch, kRows, kRows, kChannels})}});
    curve.losses.push_back(result.Scalar("loss"));
    if (step == 0) curve.norm = result.Scalar("grad_norm");
  }
  return curve;
}

const std::map<std::string, Network> kNetworks = {
    {"pooled", Pooled}, {"grouped", Grouped},   {"normed", Normed},  {"chosen", Chosen},
    {"bagged", Bagged}, {"attended", Attended}, {"dropped", Dropped}};

// Its draws differ from step to step, and so does its loss.
bool Draws(const std::string& name) { return name == "dropped"; }

// A small step down the gradient lowers the loss by the step times the square of its norm.
TEST(GradientPenalty, ASmallStepLowersTheLossAsItsGradientSays) {
  for (const auto& [name, network] : kNetworks) {
    if (Draws(name)) continue;
    const Curve probe = CurveOf(network, {"cpu:dp=1", 1}, 0);
    EXPECT_EQ(probe.losses[0], probe.losses[3]) << name;
    const double step = 2e-3 * probe.losses[0] / (probe.norm * probe.norm);
    const Curve curve = CurveOf(network, {"cpu:dp=1", 1}, step);
    const double expected = step * curve.norm * curve.norm;
    EXPECT_NEAR((curve.losses[0] - curve.losses[1]) / expected, 1, .03) << name;
  }
}

TEST(GradientPenalty, TrainsAlikeOnEveryMesh) {
  for (const auto& [name, network] : kNetworks) {
    const double norm = CurveOf(network, {"cpu:dp=1", 1}, 0).norm;
    const double lr = .02 / norm;
    const Curve wanted = CurveOf(network, {"cpu:dp=1", 1}, lr);
    if (!Draws(name)) {
      EXPECT_LT(wanted.losses[3], wanted.losses[0]) << name;
    }
    for (const Setting& run : {Setting{"cpu:dp=2", 1}, Setting{"cpu:dp=1", 5}, Setting{"cpu:tp=2", 2},
                               Setting{"cpu:dp=3", 2}, Setting{"cpu:dp=2,tp=2", 3}, Setting{"cpu:tp=3", 4}}) {
      const Curve got = CurveOf(network, run, lr);
      for (size_t step = 0; step < wanted.losses.size(); ++step)
        EXPECT_NEAR(got.losses[step] / wanted.losses[step], 1, 2e-5)
            << name << " on " << run.mesh << " in " << run.micro_batches << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace oneflow_like
