// Learning-rate schedules: how the rate of an update follows the step, lr(step) = lr * factor(step).
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "core/attrs.h"
#include "core/host_device.h"

namespace oneflow_like {

// As the user gives it, as update operators hold it in their attributes, and as device code reads it.
struct Schedule {
  enum class Kind : int32_t { kConstant, kLinearWarmup, kCosine, kStep } kind = Kind::kConstant;
  // Steps of linear rise to the base rate: factor (step + 1) / warmup; any kind but constant.
  int64_t warmup = 0;
  int64_t total = 0;  // cosine: the step, warmup included, at which the fall ends
  double final = 0;   // cosine: the factor from there on
  int64_t every = 0;  // step: the factor is multiplied by gamma every so many steps, counted from the first
  double gamma = 0.1;

  bool operator==(const Schedule&) const = default;
};

// In the attributes of an operator: schedule ("constant", also when absent, "linear_warmup", "cosine",
// "step"), warmup, total, final, every, gamma.
void SetSchedule(const Schedule& schedule, Attrs* attrs);
// REQUIRES: CheckSchedule passed.
Schedule ReadSchedule(const Attrs& attrs);

// Throws Error, opening with `who`, when the numbers make no schedule.
void CheckSchedule(const std::string& who, const Attrs& attrs);

// `step` is 0-based. REQUIRES: CheckSchedule passed.
OFL_HOST_DEVICE double FactorAt(const Schedule& schedule, int64_t step) {
  if (schedule.kind == Schedule::Kind::kConstant) return 1.0;
  if (step < schedule.warmup) return static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  if (schedule.kind == Schedule::Kind::kCosine) {
    double done =
        static_cast<double>(step - schedule.warmup) / static_cast<double>(schedule.total - schedule.warmup);
    constexpr double kPi = 3.14159265358979323846;
    return schedule.final + (1.0 - schedule.final) * 0.5 * (1.0 + ::cos(kPi * (done < 1.0 ? done : 1.0)));
  }
  if (schedule.kind == Schedule::Kind::kStep)
    return ::pow(schedule.gamma, static_cast<double>(step / schedule.every));
  return 1.0;
}
double ScheduleFactor(const Attrs& attrs, int64_t step);

// factor(step); throws Error when the numbers make no schedule.
double LearningRateFactor(const Schedule& schedule, int64_t step);

}  // namespace oneflow_like
