// The backend API of cuDNN: descriptors with attributes, finalized one after another.
#if defined(OFL_HAVE_CUDNN)

#include "ops/cuda/graph_cudnn.h"

#include <algorithm>
#include <map>

namespace oneflow_like::cuda {

CudnnTensor CudnnGraph::Make(int64_t id, cudnnDataType_t type, const Extents& extent, const Extents& strides,
                             bool inside, bool by_value, int64_t alignment) {
  auto d = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d->Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type)
      .Set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, extent.data())
      .Set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data())
      .Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id)
      .Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment)
      .Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inside)
      .Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value)
      .Finalize();
  ok_ = ok_ && d->ok();
  kept_.push_back(d);
  return {id, extent, d};
}

CudnnTensor CudnnGraph::Tensor(int64_t id, cudnnDataType_t type, const Extents& extent,
                               const Extents& strides, int64_t alignment) {
  return Make(id, type, extent, strides, false, false, alignment);
}
CudnnTensor CudnnGraph::Inside(cudnnDataType_t type, const Extents& extent, const Extents& strides) {
  return Make(next_++, type, extent, strides, true, false, 16);
}
CudnnTensor CudnnGraph::Number(int64_t id, cudnnDataType_t type) {
  return Make(id, type, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true, 4);
}

void CudnnGraph::Keep(const CudnnPtr& operation) {
  operation->Finalize();
  ok_ = ok_ && operation->ok();
  kept_.push_back(operation);
  operations_.push_back(operation->raw());
}

void CudnnGraph::Matmul(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& y) {
  auto how = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  how->Set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type).Finalize();
  kept_.push_back(how);
  auto operation = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation->Set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, *a.descriptor)
      .Set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, *b.descriptor)
      .Set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, *y.descriptor)
      .Set(CUDNN_ATTR_OPERATION_MATMUL_DESC, *how);
  Keep(operation);
}

void CudnnGraph::Pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t type, const CudnnTensor& x,
                           const CudnnTensor* b, const CudnnTensor* t, const CudnnTensor& y, int64_t axis) {
  auto how = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how->Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode)
      .Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
  if (axis >= 0) how->Set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
  how->Finalize();
  kept_.push_back(how);
  auto operation = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation->Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, *how)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x.descriptor)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *y.descriptor);
  if (b) operation->Set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b->descriptor);
  if (t) operation->Set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *t->descriptor);
  Keep(operation);
}

CudnnTensor CudnnGraph::Pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor* b,
                                  const CudnnTensor* t) {
  CudnnTensor y = Inside(CUDNN_DATA_FLOAT, x.extent);
  Pointwise(mode, CUDNN_DATA_FLOAT, x, b, t, y);
  return y;
}

CudnnTensor CudnnGraph::Reduce(cudnnReduceTensorOp_t mode, const CudnnTensor& x) {
  CudnnTensor y = Inside(CUDNN_DATA_FLOAT, {x.extent[0], x.extent[1], x.extent[2], 1});
  Reduce(mode, x, y);
  return y;
}

void CudnnGraph::Reduce(cudnnReduceTensorOp_t mode, const CudnnTensor& x, const CudnnTensor& y) {
  auto how = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  how->Set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode)
      .Set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type)
      .Finalize();
  kept_.push_back(how);
  auto operation = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation->Set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, *how)
      .Set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, *x.descriptor)
      .Set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, *y.descriptor);
  Keep(operation);
}

void CudnnGraph::Reshape(const CudnnTensor& x, const CudnnTensor& y) {
  auto operation = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation->Set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, *x.descriptor)
      .Set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, *y.descriptor);
  Keep(operation);
}

void CudnnGraph::Convolution(ConvolutionKind kind, const CudnnWindow& window, const CudnnTensor& x,
                             const CudnnTensor& filter, const CudnnTensor& y) {
  auto how = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const int64_t axes = 2;
  how->Set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type)
      .Set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode)
      .Set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &axes)
      .Set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, axes, window.stride.data())
      .Set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, axes, window.padding.data())
      .Set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, axes, window.padding.data())
      .Set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, axes, window.dilation.data())
      .Finalize();
  kept_.push_back(how);
  struct Names {
    cudnnBackendDescriptorType_t operation;
    cudnnBackendAttributeName_t window, x, filter, y, alpha, beta;
  };
  static constexpr Names kNames[] = {
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
  };
  const Names& names = kNames[kind == ConvolutionKind::kForward     ? 0
                              : kind == ConvolutionKind::kGradInput ? 1
                                                                    : 2];
  auto operation = std::make_shared<CudnnDescriptor>(names.operation);
  const float alpha = 1, beta = 0;
  operation->Set(names.window, *how)
      .Set(names.x, *x.descriptor)
      .Set(names.filter, *filter.descriptor)
      .Set(names.y, *y.descriptor)
      .Set(names.alpha, CUDNN_TYPE_FLOAT, 1, &alpha)
      .Set(names.beta, CUDNN_TYPE_FLOAT, 1, &beta);
  Keep(operation);
}

namespace {

// Whether an advised engine keeps to the wish: its notes say what it does to numbers.
bool KeepsTo(const CudnnWish& wish, const CudnnDescriptor& config) {
  if (!wish.deterministic && !wish.whole_fp32) return true;
  CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  int64_t count = 0;
  if (cudnnBackendGetAttribute(config.raw(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                               &count, &raw) != CUDNN_STATUS_SUCCESS)
    return false;
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  if (cudnnBackendGetAttribute(engine.raw(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                               CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes) != CUDNN_STATUS_SUCCESS)
    return false;
  for (int64_t i = 0; i < count; ++i) {
    if (wish.deterministic && notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
    const bool rounds = notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
                        notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS ||
                        notes[i] == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
    if (wish.whole_fp32 && rounds) return false;
  }
  return true;
}

// The engines advised for the graph, best first.
std::vector<CudnnPtr> Advised(const CudnnDescriptor& graph, const CudnnTarget& target,
                              cudnnBackendHeurMode_t mode) {
  CudnnDescriptor advice(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  advice.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if CUDNN_VERSION >= 90800
  if (target.device) advice.Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.device);
#endif
  if (!advice.Finalize().ok()) return {};
  constexpr int64_t kMost = 32;
  std::vector<CudnnPtr> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < kMost; ++i) {
    configs.push_back(std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(configs.back()->raw());
  }
  int64_t found = 0;
  cudnnStatus_t status = cudnnBackendGetAttribute(advice.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, kMost, &found, raw.data());
  configs.resize(status == CUDNN_STATUS_SUCCESS ? static_cast<size_t>(std::min(found, kMost)) : 0);
  return configs;
}

}  // namespace

CudnnPtr DescribedDevice(const std::string& json, std::string* why) {
#if CUDNN_VERSION >= 90800
  auto device = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device->Set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<int64_t>(json.size()),
              json.data());
  if (device->Finalize().ok()) return device;
  char text[512] = "";
  cudnnGetLastErrorString(text, sizeof text);
  *why = Cat(cudnnGetErrorString(device->status()), ": ", text);
#else
  *why = "cuDNN before 9.8 makes no plans for a device that is only described";
#endif
  return nullptr;
}

CudnnPtr CudnnGraph::Plan(const CudnnTarget& target, std::string* why, const CudnnWish& wish) {
  if (ok_) {
    if (CudnnPtr plan = PlanOf(target, wish)) return plan;
  }
  char text[512] = "";
  cudnnGetLastErrorString(text, sizeof text);
  *why =
      Cat(ok_ ? "there is no plan for it" : "a part of its graph is refused", text[0] != 0 ? ": " : "", text);
  return nullptr;
}

CudnnPtr CudnnGraph::PlanOf(const CudnnTarget& target, const CudnnWish& wish) const {
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (!target.device) graph.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
  graph.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<int64_t>(operations_.size()), operations_.data());
  if (!graph.Finalize().ok()) return nullptr;
  for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (const CudnnPtr& config : Advised(graph, target, mode)) {
      if (!KeepsTo(wish, *config)) continue;
      auto plan = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
#if CUDNN_VERSION >= 90800
      if (target.device) plan->Set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.device);
#endif
      if (!target.device) plan->Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
      plan->Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *config);
      if (plan->Finalize().ok() && WorkspaceOf(*plan) <= wish.room) return plan;
    }
  }
  return nullptr;
}

int64_t WorkspaceOf(const CudnnDescriptor& plan) {
  int64_t bytes = 0, count = 0;
  cudnnStatus_t status = cudnnBackendGetAttribute(plan.raw(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                  CUDNN_TYPE_INT64, 1, &count, &bytes);
  return status == CUDNN_STATUS_SUCCESS ? bytes : INT64_MAX / 2;
}

Status CudnnHandle(int device, cudnnHandle_t* handle) {
  thread_local std::map<int, cudnnHandle_t> handles;
  auto it = handles.find(device);
  if (it == handles.end()) {
    cudnnHandle_t made = nullptr;
    if (cudnnStatus_t status = cudnnCreate(&made); status != CUDNN_STATUS_SUCCESS)
      return Status(Cat("cudnnCreate: ", cudnnGetErrorString(status)));
    it = handles.emplace(device, made).first;
  }
  *handle = it->second;
  return Status();
}

Status LaunchPlan(cudnnHandle_t handle, const CudnnDescriptor& plan, const std::vector<int64_t>& ids,
                  const std::vector<void*>& data, void* workspace) {
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const int64_t count = static_cast<int64_t>(ids.size());
  pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data())
      .Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data.data())
      .Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace)
      .Finalize();
  const cudnnStatus_t status =
      pack.ok() ? cudnnBackendExecute(handle, plan.raw(), pack.raw()) : pack.status();
  return status == CUDNN_STATUS_SUCCESS ? Status() : Status(cudnnGetErrorString(status));
}

}  // namespace oneflow_like::cuda

#endif
