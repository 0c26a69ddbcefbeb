// The learning-rate schedule of an update operator, from its attributes: lr(step) = lr *
// ScheduleFactor(step).
//
//   schedule  "constant" (or absent), "linear_warmup", "cosine", "step"
//   warmup    steps of linear rise to the base rate, factor (step + 1) / warmup; any schedule but constant
//   total     cosine: the step, warmup included, at which the fall ends; `final` is the factor from there on
//   every     step: the factor is multiplied by `gamma` every so many steps, counted from the first
#pragma once

#include <cstdint>
#include <string>

#include "core/attrs.h"

namespace oneflow_like {

// `step` is 0-based. REQUIRES: CheckSchedule passed.
double ScheduleFactor(const Attrs& attrs, int64_t step);

// Throws Error, opening with `who`, when the numbers make no schedule.
void CheckSchedule(const std::string& who, const Attrs& attrs);

}  // namespace oneflow_like
