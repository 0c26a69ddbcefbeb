// Learning-rate schedules.
#include "ops/language/schedule.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/error.h"
#include "ops/language/numbers.h"

namespace oneflow_like {

namespace {

constexpr const char* kNames[] = {"constant",     "linear_warmup", "cosine",
                                  "step",         "linear",        "polynomial",
                                  "inverse_sqrt", "one_cycle",     "warmup_stable_decay"};

}  // namespace

void SetSchedule(const Schedule& schedule, Attrs* attrs) {
  const auto kind = static_cast<size_t>(schedule.kind);  // CheckSchedule refuses one that is none
  attrs->Set("schedule", kind < std::size(kNames) ? std::string(kNames[kind]) : Cat("number ", kind));
  attrs->Set("warmup", schedule.warmup);
  attrs->Set("total", schedule.total);
  attrs->Set("final", schedule.final);
  attrs->Set("every", schedule.every);
  attrs->Set("gamma", schedule.gamma);
  if (schedule.kind == Schedule::Kind::kPolynomial) attrs->Set("power", schedule.power);
  if (schedule.kind == Schedule::Kind::kWarmupStableDecay) attrs->Set("decay", schedule.decay);
}

Schedule ReadSchedule(const Attrs& attrs) {
  const std::string kind = attrs.Str("schedule", "constant");
  Schedule schedule;
  for (size_t k = 0; k < std::size(kNames); ++k)
    if (kind == kNames[k]) schedule.kind = static_cast<Schedule::Kind>(k);
  schedule.warmup = attrs.Int("warmup", 0);
  schedule.total = attrs.Int("total", 0);
  schedule.final = attrs.Float("final", 0);
  schedule.every = attrs.Int("every", 0);
  schedule.gamma = attrs.Float("gamma", 0.1);
  schedule.power = attrs.Float("power", 1);
  schedule.decay = attrs.Int("decay", 0);
  return schedule;
}

double ScheduleFactor(const Attrs& attrs, int64_t step) { return FactorAt(ReadSchedule(attrs), step); }

void CheckSchedule(const std::string& who, const Attrs& attrs) {
  const std::string kind = attrs.Str("schedule", "constant");
  int64_t warmup = attrs.Int("warmup", 0), total = attrs.Int("total", 0), every = attrs.Int("every", 0);
  if (std::find(std::begin(kNames), std::end(kNames), kind) == std::end(kNames)) {
    std::string names;
    for (size_t k = 0; k < std::size(kNames); ++k)
      names += Cat(k == 0 ? "" : k + 1 == std::size(kNames) ? " and " : ", ", kNames[k]);
    Fail(who, ": there is no schedule \"", kind, "\"; there are ", names);
  }
  for (const char* name : {"final", "gamma", "power"})
    NeedNumber(who, Cat("the schedule's ", name), attrs.Float(name, 0), Domain::kNotNegative);
  if (warmup < 0) Fail(who, ": warmup is ", warmup, " steps but cannot be negative");
  if (kind == "linear_warmup" && warmup == 0) {
    Fail(who,
         ": the linear_warmup schedule rises over 0 steps, which must be at least 1; a rate that does not "
         "change is schedule constant");
  }
  if (kind == "inverse_sqrt" && warmup == 0)
    Fail(who, ": the inverse_sqrt schedule has a warmup of 0 steps, which must be at least 1");
  const bool falls = kind == "cosine" || kind == "linear" || kind == "polynomial" || kind == "one_cycle" ||
                     kind == "warmup_stable_decay";
  if (falls && total <= warmup) {
    Fail(who, ": the ", kind, " schedule ends at step ", total, ", which must be later than its warmup of ",
         warmup, " steps");
  }
  const int64_t decay = attrs.Int("decay", 0);
  if (kind == "warmup_stable_decay" && (decay < 1 || decay > total - warmup))
    Fail(who, ": the warmup_stable_decay schedule falls over ", decay,
         " steps, which must be at least 1 and at most ", "the ", total - warmup,
         " between its warmup and step ", total);
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
