// All operators of this library, file by file.
#include "ops/manifest.h"

namespace oneflow_like {

const Catalog& BuiltinCatalog() {
  static const Catalog* const catalog = [] {
    auto* all = new Catalog;
    AddElementwise(all);
    AddFunctions(all);
    AddLogic(all);
    AddReduce(all);
    AddReshape(all);
    AddShapeOps(all);
    AddGather(all);
    AddSort(all);
    AddTake(all);
    AddScatterMax(all);
    AddLinearRecurrence(all);
    AddEmbeddingBag(all);
    AddSparseRows(all);
    AddGroupedMatmul(all);
    AddRoutes(all);
    AddRankRoutes(all);
    AddConstant(all);
    AddMatmul(all);
    AddLinear(all);
    AddSoftmax(all);
    AddCrossEntropy(all);
    AddLinearCrossEntropy(all);
    AddNorm(all);
    AddEmbedding(all);
    AddAttention(all);
    AddRope(all);
    AddDropout(all);
    AddConvolution(all);
    AddPooling(all);
    AddInterpolate(all);
    AddGroupNorm(all);
    AddBatchNorm(all);
    AddOptimizers(all);
    AddAssign(all);
    AddLossScaling(all);
    AddTemporalClassification(all);
    AddSolve(all);
    AddWithin(all);
    AddMicroBatch(all);
    AddFused(all);
    AddScan(all);
    return all;
  }();
  return *catalog;
}

}  // namespace oneflow_like
