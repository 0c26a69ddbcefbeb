// Learning-rate schedules.
#include "ops/schedule.h"

#include <cmath>

#include "core/error.h"

namespace oneflow_like {

namespace {

constexpr const char* kNames[] = {"constant", "linear_warmup", "cosine", "step"};

}  // namespace

void SetSchedule(const Schedule& schedule, Attrs* attrs) {
  attrs->Set("schedule", std::string(kNames[static_cast<int>(schedule.kind)]));
  attrs->Set("warmup", schedule.warmup);
  attrs->Set("total", schedule.total);
  attrs->Set("final", schedule.final);
  attrs->Set("every", schedule.every);
  attrs->Set("gamma", schedule.gamma);
}

Schedule ReadSchedule(const Attrs& attrs) {
  const std::string kind = attrs.Str("schedule", "constant");
  Schedule schedule;
  for (int k = 0; k < 4; ++k)
    if (kind == kNames[k]) schedule.kind = static_cast<Schedule::Kind>(k);
  schedule.warmup = attrs.Int("warmup", 0);
  schedule.total = attrs.Int("total", 0);
  schedule.final = attrs.Float("final", 0);
  schedule.every = attrs.Int("every", 0);
  schedule.gamma = attrs.Float("gamma", 0.1);
  return schedule;
}

double ScheduleFactor(const Attrs& attrs, int64_t step) { return FactorAt(ReadSchedule(attrs), step); }

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
  if (kind == "linear_warmup" && warmup == 0) {
    Fail(who,
         ": the linear_warmup schedule rises over 0 steps, which must be at least 1; a rate that does not "
         "change is schedule constant");
  }
  if (kind == "cosine" && total <= warmup) {
    Fail(who, ": the cosine schedule ends at step ", total, ", which must be later than its warmup of ",
         warmup, " steps");
  }
  if (kind == "step" && every <= 0) {
    Fail(who, ": the step schedule changes every ", every, " steps, which must be at least 1");
  }
}

double LearningRateFactor(const Schedule& schedule, int64_t step) {
  Attrs attrs;
  SetSchedule(schedule, &attrs);
  CheckSchedule("LearningRateFactor", attrs);
  return FactorAt(schedule, step);
}

}  // namespace oneflow_like
