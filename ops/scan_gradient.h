// The gradient of a loop, which is a loop from the last step to the first.
#pragma once

#include <vector>

#include "ops/op.h"

namespace oneflow_like {

// Of operator "scan"; REQUIRES attribute "keep". A step reads the kept states before it, computes the body
// again, and its gradients. What autograd would add up over all steps of the loop written out is handed from
// step to step in the same parts and added in the same order, so both give the same bits with the same
// kernels.
std::vector<Tensor> ScanGradient(const GradCall& call);

}  // namespace oneflow_like
