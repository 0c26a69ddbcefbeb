// Trains a small network of radial functions with an operator, an optimizer and a reader of data that
// oneflow_like does not have. The losses are the same on every mesh, after a restart, and with the operator
// made of built-in ones. Exits with 1 where they are not.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "distance.h"
#include "oneflow_like/data/pipeline.h"
#include "oneflow_like/oneflow_like.h"
#include "ops/oracle.h"
#include "rows.h"

using namespace oneflow_like;

constexpr int64_t kBatch = 48, kWidth = 6, kCentres = 20, kSteps = 60, kLines = 500, kBroken = 77;

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

// Lines of a function of six numbers, one of them broken.
void WriteRows(const std::string& path) {
  std::ofstream file(path);
  for (int64_t line = 0; line < kLines; ++line) {
    if (line == kBroken) file << "0.5,half,0,0,0,0,0\n";
    if (line == kBroken) continue;
    float x[kWidth];
    for (int64_t d = 0; d < kWidth; ++d) x[d] = 2 * ToUniform(RandomBits(1, line, d)) - 1;
    for (float value : x) file << value << ",";
    file << std::sin(3 * x[0]) * x[1] << "\n";
  }
}

ModelOptions Options() {
  ModelOptions options;
  options.operators = {DistanceOperator()};
#ifdef CONSUMER_HAS_CUDA
  options.kernels = AddDistanceCuda;
#endif
  return options;
}

// Steps [0, kSteps); at `restart` the pipeline is another, which goes on where the first one was.
std::vector<float> Losses(const std::string& rows, const std::string& mesh, bool own, int64_t restart = 0) {
  Model model(Mesh::Parse(mesh), Options());
  Tensor x = model.Input("x", {kBatch, kWidth}, DType::kFloat32, {{"dp", S(0)}});
  Tensor y = model.Input("y", {kBatch, 1}, DType::kFloat32, {{"dp", S(0)}});
  Session train = Train(mean(square(Radial(model.scope(), x, own) - y)), Normed(0.05, 0.9));
  std::vector<float> losses;
  auto run = [&](int64_t position, int64_t end) {
    DataPipeline data(std::make_shared<CommaRows>(rows, kWidth), {.batch = kBatch,
                                                                  .seed = 5,
                                                                  .needs = train.Needs(),
                                                                  .start = position,
                                                                  .threads = 2,
                                                                  .broken_share = 0.01});
    while (train.next_step() < end) losses.push_back(train.Run(data).Scalar("loss"));
    return data.position();
  };
  run(restart > 0 ? run(0, restart) : 0, kSteps);
  return losses;
}

// Of the broken line, in a pipeline that allows for none.
std::string ErrorOfBrokenLine(const std::string& rows) {
  DataPipeline data(std::make_shared<CommaRows>(rows, kWidth), {.batch = kLines});
  try {
    data.Next();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Of shapes that do not fit; the sentence has both numbers.
std::string ErrorOfWrongShapes() {
  Model model(Mesh::Parse("cpu:dp=1"), Options());
  try {
    Distance(model.Input("a", {4, 3}, DType::kFloat32), model.Input("b", {5, 2}, DType::kFloat32));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

int main(int argc, char** argv) {
  const std::string rows = argc > 1 ? argv[1] : "rows.csv";
  WriteRows(rows);
  const std::vector<float> alone = Losses(rows, "cpu:dp=1,tp=1", true);
  const std::vector<float> first = {alone.begin(), alone.begin() + 10},
                           last = {alone.end() - 10, alone.end()};
  const std::string faults = OracleTest(DistanceOperator());
  std::printf("%s", faults.c_str());
  bool good = faults.empty();
  struct Case {
    const char* mesh;
    bool own;
    int64_t restart;
  };
  for (auto [mesh, own, restart] : {Case{"cpu:dp=2,tp=2", true, 0}, Case{"cpu:dp=1,tp=4", true, 0},
                                    Case{"cpu:dp=4,tp=1", true, 17}, Case{"cpu:dp=1,tp=1", false, 0}}) {
    const std::vector<float> losses = Losses(rows, mesh, own, restart);
    float apart = 0;
    for (int64_t i = 0; i < kSteps; ++i) apart = std::max(apart, std::abs(losses[i] - alone[i]) / alone[i]);
    std::printf("%s, %s operator: loss %.5f to %.5f, at most %.1e from one device\n", mesh,
                own ? "own" : "built-in", losses.front(), losses.back(), apart);
    good = good && apart < 1e-3;
  }
  float before = 0, after = 0;
  for (float loss : first) before += loss / first.size();
  for (float loss : last) after += loss / last.size();
  const std::string shapes = ErrorOfWrongShapes(), line = ErrorOfBrokenLine(rows);
  std::printf("mean of ten losses: %.5f, then %.5f\n%s\n%s\n", before, after, shapes.c_str(), line.c_str());
  good = good && after < before && shapes.find("distance at ") == 0;
  good = good && line.find(rows + " at byte ") == 0 && line.find("column 2 of line 78") != line.npos;
  return good ? 0 : 1;
}
