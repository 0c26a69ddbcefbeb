// Heads whose logits need not all exist at once: products x[.. k] w[c k]^T whose result cross_entropy alone
// reads become linear_cross_entropy.
#pragma once

#include <cstdint>

#include "compiler/graph/graph.h"
#include "compiler/plan/options.h"

namespace oneflow_like {

// Rows of logits that a device has at a time, in the head that has most; 0: there is no such head. `parts`:
// micro-batches times the devices that the batch and sequences are cut over.
int64_t RowsOfLogits(const Graph& graph, int64_t parts);

// Replaces such heads, `tile` rows of logits at a time. In a training the mean of all losses becomes
// linear_cross_entropy_sum, whose gradients need no second product, where that is right: both the table and x
// are trained, classes are whole on every device, and the table's gradient, which waits in fp32 for the
// backward pass, takes no more than the logits of `type` would. REQUIRES: after KeepOnly.
void TileLogits(Graph* graph, int64_t tile, int64_t parts, bool training, DType type);

}  // namespace oneflow_like
