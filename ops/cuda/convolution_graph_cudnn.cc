// Planes are seen as [n c h w] with the strides of [n h w c], filters as [k c r s] with those of [k r s c].
// How many groups there are follows from the channels of both.
//
// cuDNN's kernels for the gradient of a filter from 16-bit operands give 16 bits, which are widened. In fp32
// it has one where the sum and its storing are two operations: compiled at run time, without parts of the sum
// side by side, it took 376 us for a layer of ResNet-50 on an H100, of batch 64.
#if defined(OFL_HAVE_CUDNN)

#include "ops/cuda/convolution_graph_cudnn.h"

namespace oneflow_like::cuda {
namespace {

cudnnDataType_t CudnnTypeOf(DType dtype) {
  if (dtype == DType::kFloat16) return CUDNN_DATA_HALF;
  return dtype == DType::kBFloat16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

// Of [a b h w] that lies as [a h w b].
Extents ChannelsLast(const Extents& e) { return {e[1] * e[2] * e[3], 1, e[1] * e[3], e[1]}; }

class ConvolutionBuilder {
 public:
  ConvolutionBuilder(const LibraryConvolution& convolution, const CudnnTarget& target)
      : asked_(convolution), shape_(convolution.shape), target_(target) {}

  Extents Filter() const {
    return {shape_.groups * shape_.out, shape_.in, shape_.rows.window, shape_.columns.window};
  }

  // `apart`: the sum and its storing are two operations.
  CudnnPtr Plan(int64_t room, bool apart, std::string* why) const {
    CudnnGraph graph;
    const CudnnTensor x = Operand(&graph, kConvolutionX, Plane(shape_.in, shape_.rows.in, shape_.columns.in),
                                  ConvolutionKind::kGradInput);
    const CudnnTensor y =
        Operand(&graph, kConvolutionY, Plane(shape_.out, shape_.rows.out, shape_.columns.out),
                ConvolutionKind::kForward);
    const CudnnTensor filter = Operand(&graph, kConvolutionFilter, Filter(), ConvolutionKind::kGradFilter);
    if (apart) {
      const CudnnTensor sum = graph.Inside(CUDNN_DATA_FLOAT, Filter(), ChannelsLast(Filter()));
      graph.Convolution(asked_.kind, Window(), x, sum, y);
      graph.Pointwise(CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, sum, nullptr, nullptr, filter);
    } else {
      graph.Convolution(asked_.kind, Window(), x, filter, y);
    }
    return graph.Plan(
        target_, why,
        {.room = room, .deterministic = true, .whole_fp32 = asked_.dtype == DType::kFloat32 && !asked_.tf32});
  }

  CudnnPtr Widen(int64_t room, std::string* why) const {
    CudnnGraph graph;
    int64_t elements = 1;
    for (int64_t extent : Filter()) elements *= extent;
    const Extents line = {1, elements, 1, 1};
    const CudnnTensor narrow =
                          graph.Tensor(kNarrowFilter, CudnnTypeOf(asked_.dtype), line, ChannelsLast(line)),
                      wide = graph.Tensor(kConvolutionFilter, CUDNN_DATA_FLOAT, line, ChannelsLast(line));
    graph.Pointwise(CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, narrow, nullptr, nullptr, wide);
    return graph.Plan(target_, why, {.room = room});
  }

 private:
  Extents Plane(int64_t channels, int64_t rows, int64_t columns) const {
    return {shape_.batch, shape_.groups * channels, rows, columns};
  }
  CudnnTensor Operand(CudnnGraph* graph, int64_t id, const Extents& extent, ConvolutionKind result) const {
    const DType dtype = asked_.kind == result ? asked_.result : asked_.dtype;
    return graph->Tensor(id, CudnnTypeOf(dtype), extent, ChannelsLast(extent));
  }
  CudnnWindow Window() const {
    return {.stride = {shape_.rows.stride, shape_.columns.stride},
            .padding = {shape_.rows.padding, shape_.columns.padding},
            .dilation = {shape_.rows.dilation, shape_.columns.dilation}};
  }

  const LibraryConvolution asked_;
  const ConvolutionShape& shape_ = asked_.shape;
  const CudnnTarget& target_;
};

}  // namespace

ConvolutionPlan MakeConvolutionPlan(const LibraryConvolution& convolution, size_t room,
                                    const CudnnTarget& target) {
  const int64_t bytes = static_cast<int64_t>(room);
  const ConvolutionBuilder as_asked(convolution, target);
  ConvolutionPlan made;
  made.plan = as_asked.Plan(bytes, false, &made.refused);
  const bool widens =
      convolution.kind == ConvolutionKind::kGradFilter && convolution.result != convolution.dtype;
  if (made.plan || !widens) return made;
  LibraryConvolution narrow = convolution;
  narrow.result = convolution.dtype;
  made.narrow_bytes = 2;
  for (int64_t extent : as_asked.Filter()) made.narrow_bytes *= extent;
  made.narrow_bytes = (made.narrow_bytes + 255) / 256 * 256;
  made.widen = as_asked.Widen(bytes - made.narrow_bytes, &made.refused);
  if (made.widen)
    made.plan = ConvolutionBuilder(narrow, target).Plan(bytes - made.narrow_bytes, false, &made.refused);
  if (made.plan) return made;
  made = ConvolutionPlan();
  made.plan = as_asked.Plan(bytes, true, &made.refused);
  return made;
}

}  // namespace oneflow_like::cuda

#endif
