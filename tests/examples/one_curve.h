// Runs of one model that must have one loss curve: on other meshes, in micro-batches, with other schedules,
// ZeRO and recomputation.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "oneflow_like/oneflow_like.h"

namespace oneflow_like {

struct CurveRun {
  std::string mesh;
  int micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int zero = 0;
  Recompute recompute = Recompute::kNone;
  int virtual_stages = 1;
};

inline std::string TextOf(const CurveRun& run) {
  return Cat(run.mesh, " in ", run.micro_batches, ", ", Name(run.schedule), ", zero ", run.zero);
}

inline ModelOptions ModelOptionsOf(const CurveRun& run) {
  ModelOptions options;
  options.seed = 3;
  options.pipeline.virtual_stages = run.virtual_stages;
  if (run.zero > 0) options.zero = {.axis = "dp", .stage = run.zero, .small = 0};
  return options;
}

inline TrainOptions TrainOptionsOf(const CurveRun& run) {
  TrainOptions options;
  options.micro_batches = run.micro_batches;
  options.schedule = run.schedule;
  options.recompute = run.recompute;
  return options;
}

// Of the first `steps` steps, which are under way together.
inline std::vector<float> LossesOf(Session& session, int steps,
                                   const std::function<Feeds(int64_t step)>& feeds) {
  std::vector<StepResult> results;
  for (int step = 0; step < steps; ++step) results.push_back(session.Run(feeds(step)));
  std::vector<float> losses;
  for (const StepResult& r : results) losses.push_back(r.Scalar("loss"));
  return losses;
}

// How far apart two curves are where that is most, as a part of `one`'s loss.
inline double Apart(const std::vector<float>& one, const std::vector<float>& other) {
  double worst = 0;
  for (size_t step = 0; step < one.size(); ++step)
    worst = std::max<double>(worst, std::abs(other[step] - one[step]) / one[step]);
  return worst;
}

}  // namespace oneflow_like
