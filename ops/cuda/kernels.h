// Functions by which the files of this folder add their kernels to the registry, for the manifest.
#pragma once

#include "core/device/kernel.h"

namespace oneflow_like::cuda {

void AddElementwiseKernels(KernelRegistry* registry);    // chain.cc, elementwise.cu
void AddMoveKernels(KernelRegistry* registry);           // move.cu
void AddReduceKernels(KernelRegistry* registry);         // reduce.cu
void AddSquareSumKernels(KernelRegistry* registry);      // square_sum.cu
void AddInitKernels(KernelRegistry* registry);           // init.cu
void AddBoxingCudaKernels(KernelRegistry* registry);     // boxing.cu
void AddSoftmaxKernels(KernelRegistry* registry);        // softmax.cu, cross_entropy.cu
void AddNormKernels(KernelRegistry* registry);           // norm.cu
void AddLookupKernels(KernelRegistry* registry);         // lookup.cu
void AddOptimizerKernels(KernelRegistry* registry);      // optimizer.cu
void AddProductKernels(KernelRegistry* registry);        // product.cc
void AddLinearKernels(KernelRegistry* registry);         // linear.cc
void AddAttentionKernels(KernelRegistry* registry);      // attention_choice.cu
void AddSortKernels(KernelRegistry* registry);           // sort.cu
void AddScanKernels(KernelRegistry* registry);           // scan.cu
void AddLoopKernels(KernelRegistry* registry);           // loop.cu
void AddTakeKernels(KernelRegistry* registry);           // take.cu
void AddEmbeddingBagKernels(KernelRegistry* registry);   // embedding_bag.cu
void AddSparseRowsKernels(KernelRegistry* registry);     // sparse_rows.cu
void AddGroupedMatmulKernels(KernelRegistry* registry);  // grouped_matmul.cu
void AddRouteKernels(KernelRegistry* registry);          // routes.cu
void AddRopeKernels(KernelRegistry* registry);           // rope.cu
void AddWithinKernels(KernelRegistry* registry);         // within.cu

void AddTemporalClassificationKernels(KernelRegistry* registry);  // temporal_classification.cu
void AddSolveKernels(KernelRegistry* registry);                   // solve.cu
void AddLinearCrossEntropyKernels(KernelRegistry* registry);      // linear_cross_entropy.cc

void AddConvolutionKernels(KernelRegistry* registry);  // convolution.cu
void AddPoolingKernels(KernelRegistry* registry);      // pooling.cu
void AddInterpolateKernels(KernelRegistry* registry);  // interpolate.cu
void AddGroupNormKernels(KernelRegistry* registry);    // group_norm.cu
void AddChannelKernels(KernelRegistry* registry);      // channel_sums.cu

}  // namespace oneflow_like::cuda
