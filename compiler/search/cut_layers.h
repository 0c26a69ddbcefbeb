// Divides a model's blocks into pipeline stages by estimated time.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/cost/cost.h"

namespace oneflow_like {

// The number of consecutive blocks, at least one, for each of `stages` stages, such that the slowest stage is
// as fast as possible; of such divisions the most even one (least sum of squares). `seconds`: of each block;
// `before`, `after`: of other work on the first and on the last stage; `most`: blocks that each stage has
// room for, empty for any number. Empty if there is no room for all blocks. REQUIRES: at least as many blocks
// as stages.
std::vector<int64_t> CutLayers(const std::vector<double>& seconds, double before, double after, int stages,
                               const std::vector<int64_t>& most = {});

// Estimated seconds, on one device, of an operator of a graph before signatures are chosen; 0 for other
// nodes.
double SecondsWhole(const Graph& graph, int n, const Machine& machine);

}  // namespace oneflow_like
