// Cuts boxes into runs: parts that are contiguous in the piece of memory that holds them.
#pragma once

#include <functional>

#include "core/dims.h"
#include "core/dtype.h"

namespace oneflow_like {

// Calls `use` with boxes that cover `box`, each of at most `most` elements (or of one) and contiguous in
// `piece`, which contains `box`; in the order of the piece. `axis`: the axes before it have extent 1.
void ForEachRun(const Box& box, const Box& piece, int64_t most, const std::function<void(const Box&)>& use,
                int axis = 0);

// Bytes from the start of a piece to a run's first element.
int64_t OffsetIn(const Box& piece, const Box& run, DType dtype);

}  // namespace oneflow_like
