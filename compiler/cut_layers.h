// Cutting a model's blocks into pipeline stages by estimated time.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/cost.h"

namespace oneflow_like {

// How many blocks, one behind another, each of `stages` consecutive stages gets, at least one, so that the
// longest stage is as short as it can be, and of such cuts the most even one (least sum of squares).
// `seconds`: of each block; `before`, `after`: what stands with the first and with the last; `most`: blocks
// that each stage has room for, empty for any number. Empty where they have not room for all. REQUIRES: at
// least as many blocks as stages.
std::vector<int64_t> CutLayers(const std::vector<double>& seconds, double before, double after, int stages,
                               const std::vector<int64_t>& most = {});

// Estimated seconds of an operator of a graph that nothing has been chosen for yet, on one device; of other
// nodes 0.
double SecondsWhole(const Graph& graph, int n, const Machine& machine, RuleCache* rules);

}  // namespace oneflow_like
