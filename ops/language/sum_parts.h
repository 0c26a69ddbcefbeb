// The gradient of a value as the sum of what its readers gave, without a tensor of its size for each reader
// of a slice.
#pragma once

#include <vector>

#include "ops/language/tensor.h"

namespace oneflow_like {

// The sum of parts of one shape and type, at least one. Parts that are the gradients of slices (`pad`s) of
// one axis become one `concat`, with zeros in gaps and sums where slices overlap; what other readers gave is
// added to it once. Pads that were taken apart stay in the graph, unread.
Tensor SumOfParts(const std::vector<Tensor>& parts);

}  // namespace oneflow_like
