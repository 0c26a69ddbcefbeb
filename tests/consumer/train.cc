// Trains a small network of radial functions with an operator and an optimizer that oneflow_like does not
// have. The losses are the same on every mesh, and with the operator made of built-in ones. Exits with 1
// where they are not.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "distance.h"
#include "oneflow_like/oneflow_like.h"
#include "ops/oracle.h"

using namespace oneflow_like;

constexpr int64_t kBatch = 48, kWidth = 6, kCentres = 20, kSteps = 60;

// Steps of one length, in the direction of a running mean of the gradient.
Optimizer Normed(double lr, double momentum) {
  return Optimizer("normed", [=](WeightUpdate& u) {
    Tensor m = scale(u.State("mean"), momentum) + scale(u.gradient(), 1 - momentum);
    u.Assign(u.State("mean"), m);
    u.Assign(u.weight(), u.weight() - u.Rate(lr) * m * rsqrt(sum(square(m)) + 1e-12));
  });
}

Tensor Radial(Scope s, Tensor x, bool own) {
  Tensor centres = s.Weight("centres", {kCentres, kWidth}, Uniform(-1, 1), {{"tp", S(0)}});
  Tensor out = s.Weight("out", {kCentres, 1}, Normal(0.3), {{"tp", S(0)}});
  Tensor apart =
      own ? Distance(x, centres)
          : sum(square(reshape(x, {kBatch, 1, kWidth}) - reshape(centres, {1, kCentres, kWidth})), {2});
  return matmul(exp(scale(apart, -0.5)), out);
}

Feeds Batch(int64_t step) {
  std::vector<float> x(kBatch * kWidth), y(kBatch);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 2 * ToUniform(RandomBits(1, step, i)) - 1;
  for (int64_t i = 0; i < kBatch; ++i) y[i] = std::sin(3 * x[i * kWidth]) * x[i * kWidth + 1];
  return {{"x", ToHost(x, {kBatch, kWidth})}, {"y", ToHost(y, {kBatch, 1})}};
}

std::vector<float> Losses(const std::string& mesh, bool own) {
  ModelOptions options;
  options.operators = {DistanceOperator()};
  Model model(Mesh::Parse(mesh), options);
  Tensor x = model.Input("x", {kBatch, kWidth}, DType::kFloat32, {{"dp", S(0)}});
  Tensor y = model.Input("y", {kBatch, 1}, DType::kFloat32, {{"dp", S(0)}});
  Session train = Train(mean(square(Radial(model.scope(), x, own) - y)), Normed(0.05, 0.9));
  std::vector<float> losses;
  for (int64_t step = 0; step < kSteps; ++step) losses.push_back(train.Run(Batch(step)).Scalar("loss"));
  return losses;
}

// Of shapes that do not fit; the sentence has both numbers.
std::string ErrorOfWrongShapes() {
  ModelOptions options;
  options.operators = {DistanceOperator()};
  Model model(Mesh::Parse("cpu:dp=1"), options);
  try {
    Distance(model.Input("a", {4, 3}, DType::kFloat32), model.Input("b", {5, 2}, DType::kFloat32));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

int main() {
  const std::vector<float> alone = Losses("cpu:dp=1,tp=1", true);
  const std::vector<float> first = {alone.begin(), alone.begin() + 10},
                           last = {alone.end() - 10, alone.end()};
  const std::string faults = OracleTest(DistanceOperator());
  std::printf("%s", faults.c_str());
  bool good = faults.empty();
  for (auto [mesh, own] :
       {std::pair{"cpu:dp=2,tp=2", true}, {"cpu:dp=1,tp=4", true}, {"cpu:dp=1,tp=1", false}}) {
    const std::vector<float> losses = Losses(mesh, own);
    float apart = 0;
    for (int64_t i = 0; i < kSteps; ++i) apart = std::max(apart, std::abs(losses[i] - alone[i]) / alone[i]);
    std::printf("%s, %s operator: loss %.5f to %.5f, at most %.1e from one device\n", mesh,
                own ? "own" : "built-in", losses.front(), losses.back(), apart);
    good = good && apart < 1e-3;
  }
  float before = 0, after = 0;
  for (float loss : first) before += loss / first.size();
  for (float loss : last) after += loss / last.size();
  std::printf("mean of ten losses: %.5f, then %.5f\n%s\n", before, after, ErrorOfWrongShapes().c_str());
  good = good && after < before && ErrorOfWrongShapes().find("distance at ") == 0;
  return good ? 0 : 1;
}
