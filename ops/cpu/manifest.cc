// The readable manifest of the CPU kernels. An operator that is not here runs its reference kernel.
#include "ops/cpu/manifest.h"

#include "ops/cpu/kernels.h"
#include "ops/op.h"

#ifndef OFL_CPU_ENTRY  // a level of instructions has an entry of its own: levels.cc
#define OFL_CPU_ENTRY AddCpuKernelsHere
#endif

namespace oneflow_like {

// A list: a kernel a line.
void OFL_CPU_ENTRY(KernelRegistry* registry);
void OFL_CPU_ENTRY(KernelRegistry* registry) {
  using namespace cpu;
  // A kernel that states no scratch takes none.
  auto add = [registry](const char* name, KernelFactory factory, ScratchFn scratch = nullptr,
                        KernelCost cost = {}) {
    registry->Add(name, "cpu", std::move(factory), std::move(scratch), std::move(cost));
  };

  add("matmul", MakeMatmul, MatmulScratch, {.measured_as = "product", .work = MatmulWork});
  add("einsum", MakeEinsum, EinsumScratch, {.measured_as = "product", .work = EinsumWork});

  // Every operator with a scalar body, but for those with a kernel of their own below.
  for (const std::string& name : BuiltinCatalog().names())
    if (!BuiltinCatalog().Get(name).scalar.empty() && name != "identity" && name != "cast" && name != "add_n")
      add(name.c_str(), MakeElementwise);
  add("fused", MakeFused, nullptr, {.steps = FusedSteps});
  add("add_n", MakeAddN);
  add("cast", MakeCast);

  add("identity", MakeFunctionKernel(Copy));
  add("stop_gradient", MakeFunctionKernel(Copy));
  add("copy", MakeFunctionKernel(Copy));
  add("to_host", MakeFunctionKernel(Copy));
  add("from_host", MakeFunctionKernel(Copy));
  add("within", MakeFunctionKernel(Within));
  add("reshape", MakeFunctionKernel(Copy));
  add("transpose", MakeFunctionKernel(Transpose));
  add("broadcast_to", MakeFunctionKernel(BroadcastTo));
  add("slice", MakeFunctionKernel(SliceAxis));
  add("concat", MakeFunctionKernel(Concat));
  add("pad", MakeFunctionKernel(Pad));

  add("sum", ForSum(Sum));
  add("mean", ForSum(Mean));
  add("max", ForFloat(Max));
  add("min", ForFloat(Min));
  add("sum_to", ForSum(SumTo));
  add("square_sum", ForSum(SquareSum));

  add("softmax", ForFloat(Softmax));
  add("log_softmax", ForFloat(LogSoftmax));
  add("softmax_grad", ForFloat(SoftmaxGrad));
  add("log_softmax_grad", ForFloat(LogSoftmaxGrad));
  add("cross_entropy", MakeCrossEntropy);
  add("cross_entropy_grad", MakeCrossEntropyGrad);
  add("class_statistics", MakeClassStatistics);
  add("layer_norm", MakeLayerNorm);
  add("layer_norm_grad", MakeLayerNormGrad, NormGradScratch);
  add("rms_norm", MakeRmsNorm);
  add("rms_norm_grad", MakeRmsNormGrad, NormGradScratch);
  add("embedding", MakeEmbedding);
  add("embedding_grad", MakeEmbeddingGrad);
  add("argsort", MakeArgsort, ArgsortScratch);
  add("cumsum", MakeCumsum);
  add("flip", MakeFunctionKernel(Flip));
  add("linear_recurrence", ForFloat(LinearRecurrence));
  add("take", MakeFunctionKernel(Take));
  add("take_along_axis", MakeFunctionKernel(TakeAlongAxis));
  add("index_sum", MakeIndexSum);
  add("scatter_sum", MakeScatterSum);
  add("index_max", MakeIndexMax);
  add("scatter_max", MakeScatterMax);
  add("ctc_loss", MakeCtcLoss, CtcLossScratch);
  add("ctc_loss_grad", MakeCtcLossGrad, CtcLossGradScratch);
  add("embedding_bag", MakeEmbeddingBag);
  add("embedding_bag_grad", MakeEmbeddingBagGrad);
  add("embedding_bag_max_grad", MakeEmbeddingBagMaxGrad);
  add("embedding_bag_weights_grad", MakeEmbeddingBagWeightsGrad);
  add("unique_rows", MakeUniqueRows, UniqueRowsScratch);
  add("sgd_rows", ForRowsUpdate(SgdRows));
  add("add_squares_to_rows", ForRowsUpdate(AddSquaresToRows));
  add("adagrad_rows", ForRowsUpdate(AdagradRows));
  add("grouped_matmul", MakeGroupedMatmul, GroupedMatmulScratch);
  add("grouped_matmul_grad_weight", MakeGroupedMatmulGradWeight, GroupedMatmulGradWeightScratch);
  add("route", MakeFunctionKernel(Route), RouteScratch);
  add("route_ranks", MakeFunctionKernel(RouteRanks), RouteScratch);
  add("sort_choices", MakeFunctionKernel(SortChoices));
  add("take_rows", MakeTakeRows);
  add("return_rows", MakeReturnRows);
  add("dot_rows", MakeDotRows);
  add("attention", MakeAttention, AttentionScratch, {.work = AttentionWork});
  add("attention_grad", MakeAttentionGrad, AttentionGradScratch, {.work = AttentionGradWork});
  add("rope", MakeRope, RopeScratch);

  add("conv2d", MakeConv2d, Conv2dScratch);
  add("conv2d_grad_input", MakeConv2dGradInput, Conv2dGradInputScratch);
  add("conv2d_grad_filter", MakeConv2dGradFilter, Conv2dGradFilterScratch);
  add("max_pool2d", MakeMaxPool2d);
  add("max_pool2d_grad", MakeMaxPool2dGrad);
  add("avg_pool2d", MakeAvgPool2d);
  add("avg_pool2d_grad", MakeAvgPool2dGrad);
  add("interpolate", MakeInterpolate, InterpolateScratch);
  add("interpolate_grad", MakeInterpolateGrad, InterpolateGradScratch);
  add("group_norm", MakeGroupNorm, GroupNormScratch);
  add("group_norm_grad", MakeGroupNormGrad, GroupNormGradScratch);
  add("channel_moments", MakeChannelMoments, ChannelMomentsScratch);
  add("channel_products", MakeChannelProducts, ChannelProductsScratch);

  add("sgd_plain", ForUpdate(SgdPlain));
  add("sgd", ForUpdate(Sgd));
  add("adam", ForUpdate(Adam));
  add("adamw", ForUpdate(AdamW));
}

}  // namespace oneflow_like
