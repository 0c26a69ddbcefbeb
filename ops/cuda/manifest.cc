// All CUDA kernels, file by file.
#include "ops/cuda/manifest.h"

#include "ops/cuda/kernels.h"

namespace oneflow_like {

void AddCudaKernels(KernelRegistry* registry) {
  using namespace cuda;
  AddElementwiseKernels(registry);
  AddMoveKernels(registry);
  AddReduceKernels(registry);
  AddSquareSumKernels(registry);
  AddInitKernels(registry);
  AddBoxingCudaKernels(registry);
  AddSoftmaxKernels(registry);
  AddNormKernels(registry);
  AddLookupKernels(registry);
  AddOptimizerKernels(registry);
  AddProductKernels(registry);
  AddLinearKernels(registry);
  AddAttentionKernels(registry);
  AddSortKernels(registry);
  AddScanKernels(registry);
  AddLoopKernels(registry);
  AddTakeKernels(registry);
  AddEmbeddingBagKernels(registry);
  AddSparseRowsKernels(registry);
  AddGroupedMatmulKernels(registry);
  AddRouteKernels(registry);
  AddRopeKernels(registry);
  AddWithinKernels(registry);
  AddTemporalClassificationKernels(registry);
  AddSolveKernels(registry);
  AddLinearCrossEntropyKernels(registry);
  AddConvolutionKernels(registry);
  AddPoolingKernels(registry);
  AddInterpolateKernels(registry);
  AddGroupNormKernels(registry);
  AddChannelKernels(registry);
}

}  // namespace oneflow_like
