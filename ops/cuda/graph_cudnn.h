// cuDNN's descriptors, as little of them as attention and convolutions need: an operation graph is built
// tensor by tensor, and becomes an execution plan, which is launched. Only where cuDNN is.
#pragma once

#include <cudnn.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "ops/convolution.h"

namespace oneflow_like::cuda {

using Extents = std::array<int64_t, 4>;
inline Extents Packed(const Extents& e) { return {e[1] * e[2] * e[3], e[2] * e[3], e[3], 1}; }

// Owns one descriptor. The first thing that goes wrong is kept; what follows does nothing.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type) {
    status_ = cudnnBackendCreateDescriptor(type, &raw_);
  }
  CudnnDescriptor(const CudnnDescriptor&) = delete;
  ~CudnnDescriptor() {
    if (raw_) cudnnBackendDestroyDescriptor(raw_);
  }
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                       const void* values) {
    if (status_ == CUDNN_STATUS_SUCCESS) status_ = cudnnBackendSetAttribute(raw_, name, type, count, values);
    return *this;
  }
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    return Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.raw_);
  }
  CudnnDescriptor& Finalize() {
    if (status_ == CUDNN_STATUS_SUCCESS) status_ = cudnnBackendFinalize(raw_);
    return *this;
  }
  bool ok() const { return status_ == CUDNN_STATUS_SUCCESS; }
  cudnnStatus_t status() const { return status_; }
  cudnnBackendDescriptor_t raw() const { return raw_; }

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
  cudnnStatus_t status_;
};
using CudnnPtr = std::shared_ptr<CudnnDescriptor>;

struct CudnnTensor {
  int64_t id = 0;
  Extents extent = {};
  CudnnPtr descriptor;
};

// The device that plans are made for: the device of a handle, or one that is only described (cuDNN 9.8 and
// later), which need not be there.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  CudnnPtr device;  // a DEVICEPROP descriptor, in the place of a handle
};
// A device described in JSON, as cuDNN writes it down (tests/cudnn/devices.h); nullptr, and `why`, where this
// cuDNN refuses the text.
CudnnPtr DescribedDevice(const std::string& json, std::string* why);

// What a plan must keep to.
struct CudnnWish {
  int64_t room = INT64_MAX;    // bytes of work space
  bool deterministic = false;  // among the plans advised; one graph of attention has no others
  bool whole_fp32 = false;     // no rounding of fp32 operands
};

// Of both axes of a plane.
struct CudnnWindow {
  std::array<int64_t, 2> stride, padding, dilation;
};

// A graph under construction. Tensors given an id are the caller's memory; others exist only inside.
class CudnnGraph {
 public:
  // `alignment` of its address in bytes: what every launch of the plan will keep to.
  CudnnTensor Tensor(int64_t id, cudnnDataType_t type, const Extents& extent, const Extents& strides,
                     int64_t alignment = 16);
  CudnnTensor Inside(cudnnDataType_t type, const Extents& extent, const Extents& strides);
  CudnnTensor Inside(cudnnDataType_t type, const Extents& extent) {
    return Inside(type, extent, Packed(extent));
  }
  CudnnTensor Number(int64_t id, cudnnDataType_t type);  // one element, in host memory

  void Matmul(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& y);
  // y = mode(x, b, t); `type` is computed in. The axis is GEN_INDEX's.
  void Pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t type, const CudnnTensor& x, const CudnnTensor* b,
                 const CudnnTensor* t, const CudnnTensor& y, int64_t axis = -1);
  // The same in fp32 into a tensor inside, of x's extents.
  CudnnTensor Pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor* b = nullptr,
                        const CudnnTensor* t = nullptr);
  CudnnTensor Reduce(cudnnReduceTensorOp_t mode, const CudnnTensor& x);  // along the last axis, in fp32
  void Reduce(cudnnReduceTensorOp_t mode, const CudnnTensor& x, const CudnnTensor& y);  // to y's extents
  void Reshape(const CudnnTensor& x, const CudnnTensor& y);
  // One of the three from the others.
  void Convolution(ConvolutionKind kind, const CudnnWindow& window, const CudnnTensor& x,
                   const CudnnTensor& filter, const CudnnTensor& y);

  // nullptr where cuDNN has no engine for the graph; `why` is then what it last said.
  CudnnPtr Plan(const CudnnTarget& target, std::string* why, const CudnnWish& wish = {});

 private:
  CudnnTensor Make(int64_t id, cudnnDataType_t type, const Extents& extent, const Extents& strides,
                   bool inside, bool by_value, int64_t alignment);
  void Keep(const CudnnPtr& operation);
  CudnnPtr PlanOf(const CudnnTarget& target, const CudnnWish& wish) const;

  int64_t next_ = 1000;
  bool ok_ = true;
  std::vector<CudnnPtr> kept_;
  std::vector<cudnnBackendDescriptor_t> operations_;
};

int64_t WorkspaceOf(const CudnnDescriptor& plan);

// The calling thread's handle for a device. A handle belongs to one thread while it is used; it is never
// destroyed (the driver may be gone when a process ends).
Status CudnnHandle(int device, cudnnHandle_t* handle);
// Enqueues a plan on the handle's stream, with the tensors' numbers and addresses.
Status LaunchPlan(cudnnHandle_t handle, const CudnnDescriptor& plan, const std::vector<int64_t>& ids,
                  const std::vector<void*>& data, void* workspace);

}  // namespace oneflow_like::cuda
