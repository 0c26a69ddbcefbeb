// An operator that oneflow_like does not have: squared distances between rows.
#pragma once

#include "oneflow_like/oneflow_like.h"

// The table entry, for ModelOptions::operators.
oneflow_like::OpDef DistanceOperator();
// x[n d], c[k d] -> [n k], fp32.
oneflow_like::Tensor Distance(oneflow_like::Tensor x, oneflow_like::Tensor c,
                              oneflow_like::Here at = oneflow_like::Here::current());
// The kernel for GPUs, for ModelOptions::kernels: in distance.cu, where there is a CUDA toolkit.
void AddDistanceCuda(oneflow_like::KernelRegistry* registry);
