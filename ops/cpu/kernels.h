// Shared by the files of this folder: their factories and functions for the manifest, and small helpers.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "core/device/kernel.h"
#include "core/device/parallel_for.h"
#include "core/float16.h"

namespace oneflow_like::cpu {

using KernelPtr = std::unique_ptr<Kernel>;

// The operator's own reference kernel, for types or shapes without a faster one.
KernelPtr MakeReference(const KernelSpec& spec);
int64_t ReferenceScratch(const KernelSpec& spec);

// Whether every operand (every input, every output) is f32.
bool AllFloat(const KernelSpec& spec);

// A stateless kernel for f32 operands, the reference for others.
KernelFactory ForFloat(KernelFn fn);

// Elements one range of ParallelFor should hold at least, so that it outweighs the start of a team.
constexpr int64_t kGrain = 8192;
// The same in rows of `width` elements.
inline int64_t RowGrain(int64_t width) { return width >= kGrain ? 1 : kGrain / (width > 0 ? width : 1); }

// An element of any type as a float, and a float as an element of any type (bool: whether it is not 0).
template <typename T>
float AsFloat(T value) {
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
    return ToFloat(value);
  } else {
    return static_cast<float>(value);
  }
}
template <typename T>
T FromFloat(float value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return ToBFloat16(value);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return ToFloat16(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != 0.0f;
  } else {
    return static_cast<T>(value);
  }
}

// A piece seen as rows along its last axis.
struct Rows {
  int64_t rows = 0, width = 0;
};
inline Rows RowsOf(const TensorArg& arg) {
  Rows r{1, arg.extent.rank() ? arg.extent.back() : 1};
  for (int i = 0; i + 1 < arg.extent.rank(); ++i) r.rows *= arg.extent[i];
  return r;
}

// Copies `rows` runs of `bytes` bytes between strided places, in parallel. Strides in bytes.
void CopyRuns(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t rows,
              int64_t bytes);

// Zeroes memory in parallel.
void FillZero(void* data, int64_t bytes);

// to (contiguous, of these extents) = from read with these strides, in elements of `size` bytes.
void PermuteCopy(void* to, const void* from, const Dims& extent, const Dims& strides, int64_t size);

// bits[i] = DropBits(key, step, first + i).
void FillDropBits(uint64_t key, uint64_t step, uint64_t first, int64_t n, uint16_t* bits);

// work.cc: the work of products, attention and fused kernels
void MatmulWork(const KernelSpec& spec, Work* work);
void EinsumWork(const KernelSpec& spec, Work* work);
void AttentionWork(const KernelSpec& spec, Work* work);
void AttentionGradWork(const KernelSpec& spec, Work* work);
std::vector<std::string> FusedSteps(const KernelSpec& spec);
// block_program.cc
KernelPtr MakeElementwise(const KernelSpec& spec);
KernelPtr MakeFused(const KernelSpec& spec);
KernelPtr MakeAddN(const KernelSpec& spec);
// copy.cc
KernelPtr MakeCast(const KernelSpec& spec);
Status Copy(const KernelContext& context);  // identity, reshape: any type
Status Within(const KernelContext& context);
Status Transpose(const KernelContext& context);    // any type
Status SliceAxis(const KernelContext& context);    // any type
Status Concat(const KernelContext& context);       // any type
Status Pad(const KernelContext& context);          // any type
Status BroadcastTo(const KernelContext& context);  // any type
// reduce.cc
KernelFactory ForSum(
    KernelFn fn);  // a stateless kernel from any floating type to fp32, the reference for others
Status Sum(const KernelContext& context);
Status Mean(const KernelContext& context);
Status Max(const KernelContext& context);
Status Min(const KernelContext& context);
Status SumTo(const KernelContext& context);
Status SquareSum(const KernelContext& context);
Status AddN(const KernelContext& context);
// contraction.cc
KernelPtr MakeMatmul(const KernelSpec& spec);
KernelPtr MakeEinsum(const KernelSpec& spec);
int64_t MatmulScratch(const KernelSpec& spec);
int64_t EinsumScratch(const KernelSpec& spec);
// softmax.cc
Status Softmax(const KernelContext& context);
Status LogSoftmax(const KernelContext& context);
Status SoftmaxGrad(const KernelContext& context);
Status LogSoftmaxGrad(const KernelContext& context);
KernelPtr MakeCrossEntropy(const KernelSpec& spec);
KernelPtr MakeCrossEntropyGrad(const KernelSpec& spec);
KernelPtr MakeClassStatistics(const KernelSpec& spec);
// norm.cc
KernelPtr MakeLayerNorm(const KernelSpec& spec);
KernelPtr MakeRmsNorm(const KernelSpec& spec);
KernelPtr MakeLayerNormGrad(const KernelSpec& spec);
KernelPtr MakeRmsNormGrad(const KernelSpec& spec);
int64_t NormGradScratch(const KernelSpec& spec);
// embedding.cc
KernelPtr MakeEmbedding(const KernelSpec& spec);
KernelPtr MakeEmbeddingGrad(const KernelSpec& spec);
// sort.cc
KernelPtr MakeArgsort(const KernelSpec& spec);
int64_t ArgsortScratch(const KernelSpec& spec);
KernelPtr MakeCumsum(const KernelSpec& spec);
Status Flip(const KernelContext& context);  // any type
// linear_recurrence.cc
Status LinearRecurrence(const KernelContext& context);
// take.cc
Status Take(const KernelContext& context);           // any type
Status TakeAlongAxis(const KernelContext& context);  // any type
KernelPtr MakeIndexSum(const KernelSpec& spec);
KernelPtr MakeScatterSum(const KernelSpec& spec);
KernelPtr MakeIndexMax(const KernelSpec& spec);
KernelPtr MakeScatterMax(const KernelSpec& spec);
// temporal_classification.cc
KernelPtr MakeCtcLoss(const KernelSpec& spec);
KernelPtr MakeCtcLossGrad(const KernelSpec& spec);
int64_t CtcLossScratch(const KernelSpec& spec);
int64_t CtcLossGradScratch(const KernelSpec& spec);
// embedding_bag.cc
KernelPtr MakeEmbeddingBag(const KernelSpec& spec);
KernelPtr MakeEmbeddingBagGrad(const KernelSpec& spec);
KernelPtr MakeEmbeddingBagMaxGrad(const KernelSpec& spec);
KernelPtr MakeEmbeddingBagWeightsGrad(const KernelSpec& spec);
// sparse_rows.cc
KernelPtr MakeUniqueRows(const KernelSpec& spec);
int64_t UniqueRowsScratch(const KernelSpec& spec);
KernelFactory ForRowsUpdate(KernelFn fn);  // a stateless kernel for fp32 operands, the reference for others
Status SgdRows(const KernelContext& context);
Status AddSquaresToRows(const KernelContext& context);
Status AdagradRows(const KernelContext& context);
// grouped_matmul.cc
KernelPtr MakeGroupedMatmul(const KernelSpec& spec);
KernelPtr MakeGroupedMatmulGradWeight(const KernelSpec& spec);
int64_t GroupedMatmulScratch(const KernelSpec& spec);
int64_t GroupedMatmulGradWeightScratch(const KernelSpec& spec);
// routes.cc
Status Route(const KernelContext& context);
Status RouteRanks(const KernelContext& context);
int64_t RouteScratch(const KernelSpec& spec);  // of both
Status SortChoices(const KernelContext& context);
KernelPtr MakeTakeRows(const KernelSpec& spec);
KernelPtr MakeReturnRows(const KernelSpec& spec);
KernelPtr MakeDotRows(const KernelSpec& spec);
// attention.cc, attention_grad.cc
KernelPtr MakeAttention(const KernelSpec& spec);
KernelPtr MakeAttentionGrad(const KernelSpec& spec);
int64_t AttentionScratch(const KernelSpec& spec);
int64_t AttentionGradScratch(const KernelSpec& spec);
// rope.cc
KernelPtr MakeRope(const KernelSpec& spec);
int64_t RopeScratch(const KernelSpec& spec);
// convolution.cc
KernelPtr MakeConv2d(const KernelSpec& spec);
KernelPtr MakeConv2dGradInput(const KernelSpec& spec);
KernelPtr MakeConv2dGradFilter(const KernelSpec& spec);
int64_t Conv2dScratch(const KernelSpec& spec);
int64_t Conv2dGradInputScratch(const KernelSpec& spec);
int64_t Conv2dGradFilterScratch(const KernelSpec& spec);
// pooling.cc
KernelPtr MakeMaxPool2d(const KernelSpec& spec);
KernelPtr MakeMaxPool2dGrad(const KernelSpec& spec);
KernelPtr MakeAvgPool2d(const KernelSpec& spec);
KernelPtr MakeAvgPool2dGrad(const KernelSpec& spec);
// interpolate.cc
KernelPtr MakeInterpolate(const KernelSpec& spec);
KernelPtr MakeInterpolateGrad(const KernelSpec& spec);
int64_t InterpolateScratch(const KernelSpec& spec);
int64_t InterpolateGradScratch(const KernelSpec& spec);
// group_norm.cc
KernelPtr MakeGroupNorm(const KernelSpec& spec);
KernelPtr MakeGroupNormGrad(const KernelSpec& spec);
int64_t GroupNormScratch(const KernelSpec& spec);
int64_t GroupNormGradScratch(const KernelSpec& spec);
// channel_sums.cc
KernelPtr MakeChannelMoments(const KernelSpec& spec);
KernelPtr MakeChannelProducts(const KernelSpec& spec);
int64_t ChannelMomentsScratch(const KernelSpec& spec);
int64_t ChannelProductsScratch(const KernelSpec& spec);
// optimizer.cc
KernelFactory ForUpdate(KernelFn fn);  // a stateless kernel for fp32 operands, the reference for others
Status SgdPlain(const KernelContext& context);
Status Sgd(const KernelContext& context);
Status Adam(const KernelContext& context);
Status AdamW(const KernelContext& context);

}  // namespace oneflow_like::cpu
