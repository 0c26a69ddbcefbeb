// Learning-rate schedules.
#include "ops/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace oneflow_like {

double ScheduleFactor(const Attrs& attrs, int64_t step) {
  const std::string kind = attrs.Str("schedule", "constant");
  if (kind == "constant") return 1;
  int64_t warmup = attrs.Int("warmup", 0);
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (kind == "cosine") {
    double fall = static_cast<double>(attrs.Int("total") - warmup), final = attrs.Float("final", 0);
    double done = std::min(1.0, static_cast<double>(step - warmup) / fall);
    return final + (1 - final) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  if (kind == "step")
    return std::pow(attrs.Float("gamma", 0.1), static_cast<double>(step / attrs.Int("every")));
  return 1;
}

void CheckSchedule(const std::string& who, const Attrs& attrs) {
  const std::string kind = attrs.Str("schedule", "constant");
  int64_t warmup = attrs.Int("warmup", 0), total = attrs.Int("total", 0), every = attrs.Int("every", 0);
  if (kind != "constant" && kind != "linear_warmup" && kind != "cosine" && kind != "step") {
    Fail(who, ": there is no schedule \"", kind, "\"; there are constant, linear_warmup, cosine and step");
  }
  for (const char* name : {"final", "gamma"}) {
    double number = attrs.Float(name, 0);
    if (!std::isfinite(number)) Fail(who, ": the schedule's ", name, " is ", number, " but must be finite");
  }
  if (warmup < 0) Fail(who, ": warmup is ", warmup, " steps but cannot be negative");
  if (kind == "cosine" && total <= warmup) {
    Fail(who, ": the cosine schedule ends at step ", total, ", which must be later than its warmup of ",
         warmup, " steps");
  }
  if (kind == "step" && every <= 0) {
    Fail(who, ": the step schedule changes every ", every, " steps, which must be at least 1");
  }
}

}  // namespace oneflow_like
