// Rows added up by index: the gradient of embedding and gather. The order of the additions is fixed.
#pragma once

#include "ops/cuda/operand.h"

namespace oneflow_like::cuda {

// in: ids[..], dy[.. row]; out: dtable[v row], every row the sum of those rows of dy whose id names it, in
// their order, in fp32. An id outside [0, global extent of v) is a fault.
Status SumRowsByIndex(const KernelContext& context, const LaunchContext& launch);

Status FillZeros(const TensorArg& to, const LaunchContext& launch);

}  // namespace oneflow_like::cuda
