// The learning-rate schedule of an update operator, from its attributes: lr(step) = lr *
// ScheduleFactor(step).
//
//   schedule  "constant" (or absent), "linear_warmup", "cosine", "step"
//   warmup    steps of linear rise to the base rate, factor (step + 1) / warmup; any schedule but constant
//   total     cosine: the step, warmup included, at which the fall ends; `final` is the factor from there on
//   every     step: the factor is multiplied by `gamma` every so many steps, counted from the first
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "core/attrs.h"
#include "core/host_device.h"

namespace oneflow_like {

// The numbers of a schedule, which device code can be given.
struct ScheduleNumbers {
  enum class Kind : int32_t { kConstant, kLinearWarmup, kCosine, kStep };
  Kind kind = Kind::kConstant;
  int64_t warmup = 0, total = 0, every = 1;
  double last = 0, gamma = 0.1;  // last: `final`

  bool operator==(const ScheduleNumbers&) const = default;
};

// REQUIRES: CheckSchedule passed.
ScheduleNumbers ReadSchedule(const Attrs& attrs);

// `step` is 0-based.
OFL_HOST_DEVICE double FactorAt(const ScheduleNumbers& schedule, int64_t step) {
  if (schedule.kind == ScheduleNumbers::Kind::kConstant) return 1.0;
  if (step < schedule.warmup) return static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  if (schedule.kind == ScheduleNumbers::Kind::kCosine) {
    double done =
        static_cast<double>(step - schedule.warmup) / static_cast<double>(schedule.total - schedule.warmup);
    constexpr double kPi = 3.14159265358979323846;
    return schedule.last + (1.0 - schedule.last) * 0.5 * (1.0 + ::cos(kPi * (done < 1.0 ? done : 1.0)));
  }
  if (schedule.kind == ScheduleNumbers::Kind::kStep)
    return ::pow(schedule.gamma, static_cast<double>(step / schedule.every));
  return 1.0;
}

// `step` is 0-based. REQUIRES: CheckSchedule passed.
double ScheduleFactor(const Attrs& attrs, int64_t step);

// Throws Error, opening with `who`, when the numbers make no schedule.
void CheckSchedule(const std::string& who, const Attrs& attrs);

}  // namespace oneflow_like
