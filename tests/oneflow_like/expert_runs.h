// Models of two layers of experts, trained on small meshes: shared by tests of both forms of nn::Experts.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {

constexpr int64_t kBatch = 16, kTokens = 6, kWidth = 8, kExperts = 4, kInner = 10;
inline const Dims kShape = {kBatch, kTokens, kWidth};

// A mesh with axes dp, cp, tp, pp and ep, those not named of extent 1.
inline Mesh ExpertMesh(const std::string& text) {
  const Mesh given = Mesh::Parse(text);
  std::vector<std::pair<std::string, int>> axes;
  for (const char* name : {"dp", "cp", "tp", "pp", "ep"}) {
    const int a = given.FindAxis(name);
    axes.push_back({name, a < 0 ? 1 : given.axis_size(a)});
  }
  return Mesh(given.kind(), axes);
}

struct Setting {
  const char* mesh = "cpu:dp=1";
  int micro_batches = 1;
  int zero = 0;
  const char* axis = "ep";
  Recompute recompute = Recompute::kNone;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  DType dtype = DType::kFloat32;
  std::string str() const { return Cat(mesh, " in ", micro_batches, " zero ", zero, " experts over ", axis); }
};

inline nn::ExpertsOptions SmallExperts() {
  nn::ExpertsOptions o;
  o.experts = kExperts;
  o.inner = kInner;
  o.capacity = 1;
  o.gate_init = Normal(1);
  o.init = o.out_init = Normal(0.5);
  return o;
}

// Two layers, dealt over pp; losses, tables and what is shown of each of `steps` steps.
struct Seen {
  std::vector<float> losses;
  std::vector<Outputs> tables;
  Outputs last;
};
inline Seen TrainExperts(const Setting& run, nn::ExpertsOptions o, int steps) {
  ModelOptions model_options;
  if (run.zero > 0) model_options.zero = {.axis = "dp", .stage = run.zero, .small = 0};
  Model model(ExpertMesh(run.mesh), model_options);
  o.ep = run.axis;
  Tensor x = model.Input("x", kShape, DType::kFloat32, {{"dp", S(0)}});
  TrainOptions options;
  options.micro_batches = run.micro_batches;
  options.recompute = run.recompute;
  options.schedule = run.schedule;
  options.dtype = run.dtype;
  std::vector<Tensor> terms;
  Tensor y = nn::layers(model.scope(), x, 2, [&](Scope s, Tensor h, int64_t i) {
    const nn::ExpertsResult result = nn::Experts(s / "experts", nn::RmsNorm(s / "norm", h), o);
    options.outputs[Cat("slots", i)] = result.routes.slots;
    options.outputs[Cat("places", i)] = result.routes.places;
    options.outputs[Cat("counts", i)] = result.routes.counts;
    if (result.loss.defined()) terms.push_back(result.loss);
    return h + result.y;
  });
  Tensor loss = mean(square(y - scale(to_stage_of(x, y), .5)));
  for (Tensor& term : terms) loss = loss + to_stage_of(term, loss);
  Session train = Train(loss, AdamW{.lr = .01}, options);
  Seen seen;
  for (int step = 0; step < steps; ++step) {
    StepResult r = train.Run({{"x", Floats(step, kShape)}});
    seen.losses.push_back(r.Scalar("loss"));
    Outputs tables;
    for (const auto& [name, tensor] : options.outputs) tables[name] = r.Get(name);
    seen.tables.push_back(tables);
    for (const char* shown : {"block0/experts/load", "block1/experts/load_max", "block1/experts/dropped"})
      seen.last[shown] = r.Get(shown);
  }
  return seen;
}

inline void ExpectSame(const Setting& run, const Seen& got, const Seen& wanted, double tolerance = 1e-5) {
  for (size_t step = 0; step < wanted.losses.size(); ++step) {
    ASSERT_NEAR(got.losses[step], wanted.losses[step], tolerance * wanted.losses[step])
        << run.str() << " step " << step;
    for (const auto& [name, table] : wanted.tables[step])
      ASSERT_TRUE(SameBytes(got.tables[step].at(name), table))
          << run.str() << " " << name << " step " << step;
  }
  ExpectNear(got.last, wanted.last, 1e-6, run.str());
}

// Lets a router send all tokens to expert `to`, with nothing for the others: `batch` samples of one token. A
// step then drops the share `dropped`, and changes no weight of the other experts.
inline void ExpectOthersUntouched(int64_t to, int64_t batch, nn::ExpertsOptions o, const char* mesh,
                                  double dropped) {
  Model model(ExpertMesh(mesh));
  o.top_k = 1;
  o.normalise = false;  // else the router has no gradient
  Tensor x = model.Input("x", {batch, kWidth}, DType::kFloat32);
  const nn::ExpertsResult result = nn::Experts(model.scope(), x, o);
  Session train = Train(mean(square(result.y - 1)), Sgd{.lr = .1}, {});
  HostTensor gate = HostTensor::Make(DType::kFloat32, {kWidth, kExperts});
  for (int64_t i = 0; i < gate.elements(); ++i) gate.as<float>()[i] = i % kExperts == to ? 1 : -1;
  model.Write("gate", gate);
  const HostTensor before[] = {model.Read("up"), model.Read("down")};
  HostTensor fed = Floats(3, {batch, kWidth});
  for (int64_t i = 0; i < fed.elements(); ++i) fed.as<float>()[i] = std::abs(fed.as<float>()[i]) + .1f;
  StepResult r = train.Run({{"x", fed}});
  EXPECT_TRUE(std::isfinite(r.Scalar("loss")));
  EXPECT_EQ(r.Get("load").as<float>()[to], 1);
  EXPECT_NEAR(r.Scalar("dropped"), dropped, 1e-6);
  const char* const names[] = {"up", "down"};
  for (int w = 0; w < 2; ++w) {
    const HostTensor after = model.Read(names[w]);
    const int64_t size = after.elements() / kExperts;
    for (int64_t e = 0; e < kExperts; ++e) {
      const bool same = std::memcmp(after.as<float>() + e * size, before[w].as<float>() + e * size,
                                    size * sizeof(float)) == 0;
      EXPECT_EQ(same, e != to) << names[w] << " of expert " << e;
    }
  }
}

}  // namespace oneflow_like
