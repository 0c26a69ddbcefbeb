// Learning-rate schedules: lr(step) = lr * factor(step).
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "core/attrs.h"
#include "core/host_device.h"

namespace oneflow_like {

// Used in options, in the attributes of update operators, and in device code.
struct Schedule {
  enum class Kind : int32_t {
    kConstant,
    kLinearWarmup,
    kCosine,
    kStep,
    kLinear,             // linear from 1 to `final`
    kPolynomial,         // final + (1 - final) (1 - done)^power
    kInverseSqrt,        // sqrt(warmup / (step + 1)) after a warmup of at least one step (Vaswani et al.
                         // 2017)
    kOneCycle,           // cosine up from 1 / 25 in warmup, cosine down to `final` at total (Smith 2018)
    kWarmupStableDecay,  // 1 until the last `decay` steps before total, then linear to `final`
  } kind = Kind::kConstant;
  // Steps of linear rise to the base rate: factor (step + 1) / warmup; any kind but constant.
  int64_t warmup = 0;
  // The step, warmup included, at which the fall ends, and the factor from there on: cosine, linear,
  // polynomial, one-cycle, warmup-stable-decay.
  int64_t total = 0;
  double final = 0;
  int64_t every = 0;  // step: number of steps after which the factor is multiplied by gamma, again and again
  double gamma = 0.1;
  double power = 1;   // polynomial
  int64_t decay = 0;  // warmup-stable-decay: steps of the fall

  bool operator==(const Schedule&) const = default;
};

// Writes the attributes of an operator: schedule ("constant", also when absent, "linear_warmup", "cosine",
// "step", "linear", "polynomial", "inverse_sqrt", "one_cycle", "warmup_stable_decay"), warmup, total, final,
// every, gamma, power, decay.
void SetSchedule(const Schedule& schedule, Attrs* attrs);
// REQUIRES: CheckSchedule passed.
Schedule ReadSchedule(const Attrs& attrs);

// Throws Error, beginning with `who`, when the numbers are not a valid schedule.
void CheckSchedule(const std::string& who, const Attrs& attrs);

// From 1 to `final` as `done` goes from 0 to 1, along half a cosine.
OFL_HOST_DEVICE double CosineFall(double final, double done) {
  constexpr double kPi = 3.14159265358979323846;
  return final + (1.0 - final) * 0.5 * (1.0 + ::cos(kPi * done));
}

// `step` is 0-based. REQUIRES: CheckSchedule passed.
OFL_HOST_DEVICE double FactorAt(const Schedule& schedule, int64_t step) {
  using Kind = Schedule::Kind;
  if (schedule.kind == Kind::kConstant) return 1.0;
  const double rise = static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  if (step < schedule.warmup)
    return schedule.kind == Kind::kOneCycle ? 1.0 - CosineFall(0.0, rise) * (1.0 - 1.0 / 25) : rise;
  double done =
      static_cast<double>(step - schedule.warmup) / static_cast<double>(schedule.total - schedule.warmup);
  done = done < 1.0 ? done : 1.0;
  switch (schedule.kind) {
    case Kind::kCosine:
    case Kind::kOneCycle:
      return CosineFall(schedule.final, done);
    case Kind::kStep:
      return ::pow(schedule.gamma, static_cast<double>(step / schedule.every));
    case Kind::kLinear:
      return 1.0 - (1.0 - schedule.final) * done;
    case Kind::kPolynomial:
      return schedule.final + (1.0 - schedule.final) * ::pow(1.0 - done, schedule.power);
    case Kind::kInverseSqrt:
      return ::sqrt(static_cast<double>(schedule.warmup) / static_cast<double>(step + 1));
    case Kind::kWarmupStableDecay: {
      const double left = static_cast<double>(schedule.total - step) / static_cast<double>(schedule.decay);
      return left >= 1.0   ? 1.0
             : left <= 0.0 ? schedule.final
                           : schedule.final + (1.0 - schedule.final) * left;
    }
    default:
      return 1.0;
  }
}
double ScheduleFactor(const Attrs& attrs, int64_t step);

// factor(step); throws Error when the numbers are not a valid schedule.
double LearningRateFactor(const Schedule& schedule, int64_t step);

}  // namespace oneflow_like
