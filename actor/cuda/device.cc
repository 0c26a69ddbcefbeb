// Memory of the device and of the host, and copies that are waited for.
#include "actor/cuda/device.h"

#include <algorithm>

#include "actor/cuda/error.h"
#include "actor/cuda/stream.h"
#include "core/system/host_memory.h"
#include "ops/cuda/driver_turn.h"

namespace oneflow_like::cuda {
namespace {

const std::string kKind = "cuda";

class DeviceMemory : public Memory {
 public:
  DeviceMemory(Gpu* gpu, void* data, size_t bytes) : gpu_(gpu), data_(data), bytes_(bytes) {
    gpu_->AddBytes(static_cast<int64_t>(bytes));
  }
  ~DeviceMemory() override {
    DriverCall call;
    gpu_->Use();
    gpu_->AddBytes(-static_cast<int64_t>(bytes_));
    if (cudaFree(data_) != cudaSuccess) cudaGetLastError();  // the device is lost, and the memory with it
  }
  void* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  Gpu* gpu_;
  void* data_;
  size_t bytes_;
};

class PinnedMemory : public Memory {
 public:
  PinnedMemory(const Gpu* gpu, void* data, size_t bytes) : gpu_(gpu), data_(data), bytes_(bytes) {}
  ~PinnedMemory() override {
    DriverCall call;
    gpu_->Use();  // on a thread that has called nothing yet, the first GPU would be opened for it
    if (cudaFreeHost(data_) != cudaSuccess) cudaGetLastError();
  }
  void* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  const Gpu* gpu_;
  void* data_;
  size_t bytes_;
};

// Somebody else's, which the GPU has been told of: whole pages, as no page may be told of twice.
class RegisteredMemory : public Memory {
 public:
  static constexpr size_t kPage = 4096;
  // What to ask for so that so many bytes lie in pages of their own.
  static size_t WithPages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage + kPage; }

  RegisteredMemory(const Gpu* gpu, std::unique_ptr<Memory> memory, size_t bytes)
      : gpu_(gpu), memory_(std::move(memory)), bytes_(bytes) {
    auto begin = reinterpret_cast<uintptr_t>(memory_->data());
    data_ = reinterpret_cast<void*>((begin + kPage - 1) / kPage * kPage);
  }
  ~RegisteredMemory() override {
    if (!registered_) return;
    DriverCall call;
    gpu_->Use();
    if (cudaHostUnregister(data_) != cudaSuccess) cudaGetLastError();
  }
  cudaError_t Register() {
    cudaError_t error =
        cudaHostRegister(data_, WithPages(bytes_) - kPage, cudaHostRegisterPortable | cudaHostRegisterMapped);
    registered_ = error == cudaSuccess;
    return error;
  }
  void* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  const Gpu* gpu_;
  std::unique_ptr<Memory> memory_;
  void* data_;
  size_t bytes_;
  bool registered_ = false;
};

}  // namespace

CudaDevice::CudaDevice(int rank, Gpu* gpu, MemorySource* host_memory)
    : rank_(rank),
      gpu_(gpu),
      host_memory_(host_memory),
      name_(Cat("device cuda:", rank, " on ", gpu->name())) {
  DriverCall call;
  gpu_->Use();
  Require(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), name_, " gives no stream");
  ++gpu_->ranks();
}

CudaDevice::~CudaDevice() {
  --gpu_->ranks();
  DriverCall call;
  gpu_->Use();
  if (cudaStreamDestroy(copies_) != cudaSuccess) cudaGetLastError();
}

const std::string& CudaDevice::kind() const { return kKind; }

std::unique_ptr<Memory> CudaDevice::Allocate(size_t bytes, const std::string& what) {
  if (Status lost = gpu_->health().status(); !lost.ok()) throw Error(lost.message());
  DriverCall call;
  gpu_->Use();
  size_t free = 0, total = 0;
  Require(cudaMemGetInfo(&free, &total), name_, " has no memory for ", what);
  if (bytes > free) FailShortOfMemory(name_, what, bytes, static_cast<int64_t>(free));
  void* data = nullptr;
  cudaError_t error = cudaMalloc(&data, std::max<size_t>(bytes, 1));
  if (error == cudaErrorMemoryAllocation) {  // taken meanwhile, or lost in pieces
    cudaGetLastError();
    cudaMemGetInfo(&free, &total);
    FailShortOfMemory(name_, what, bytes, static_cast<int64_t>(free));
  }
  Require(error, name_, " has no memory for ", what);
  return std::make_unique<DeviceMemory>(gpu_, data, bytes);
}

std::unique_ptr<Memory> CudaDevice::AllocateHost(size_t bytes, const std::string& what) {
  const std::string owner = Cat("the host, for ", name_, ",");
  CheckHostHas(bytes, owner, what);
  DriverCall call;
  gpu_->Use();
  if (host_memory_ != nullptr) {
    bytes = std::max<size_t>(bytes, 1);
    auto memory = std::make_unique<RegisteredMemory>(
        gpu_, host_memory_->Allocate(RegisteredMemory::WithPages(bytes), what), bytes);
    Require(memory->Register(), owner, " has memory for ", what, ", which the GPU cannot use");
    return memory;
  }
  void* data = nullptr;
  cudaError_t error =
      cudaHostAlloc(&data, std::max<size_t>(bytes, 1), cudaHostAllocPortable | cudaHostAllocMapped);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    FailShortOfHostMemory(owner, what, bytes);
  }
  Require(error, owner, " has no memory for ", what);
  return std::make_unique<PinnedMemory>(gpu_, data, bytes);
}

void CudaDevice::CopyIn(void* device, const void* host, size_t bytes) { Copy(device, host, bytes); }

void CudaDevice::CopyOut(void* host, const void* device, size_t bytes) { Copy(host, device, bytes); }

// A variable may lie on the host.
void CudaDevice::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  if (Status lost = gpu_->health().status(); !lost.ok()) throw Error(lost.message());
  std::lock_guard<std::mutex> lock(mutex_);
  gpu_->Use();
  {
    DriverCall call;
    Require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, copies_), name_, " does not copy ", bytes,
            " bytes");
  }
  Require(cudaStreamSynchronize(copies_), name_, " has not copied ", bytes, " bytes");
}

std::unique_ptr<DeviceStream> CudaDevice::MakeStream(const std::string& name) {
  return std::make_unique<CudaStream>(this, name);
}

StreamMemory CudaDevice::TakeStreamMemory(bool workspace) {
  StreamMemory memory;
  {
    std::lock_guard<std::mutex> lock(spare_mutex_);
    auto with = std::find_if(spare_.begin(), spare_.end(), [&](const StreamMemory& spare) {
      return (spare.workspace != nullptr) == workspace;
    });
    if (with == spare_.end() && !spare_.empty()) with = spare_.begin();
    if (with != spare_.end()) {
      memory = std::move(*with);
      spare_.erase(with);
    }
  }
  if (memory.state == nullptr) {
    memory.state = Allocate(sizeof(ActState) + sizeof(Fault), "a stream's state");
    memory.faults = AllocateHost(StreamMemory::kFaults * sizeof(Fault), "a stream's faults");
  }
  if (workspace && memory.workspace == nullptr) memory.workspace = AllocateWorkspace();
  return memory;
}

std::unique_ptr<Memory> CudaDevice::AllocateWorkspace() {
  return Allocate(kWorkspaceBytes, "the work space of a stream");
}

void CudaDevice::GiveBack(StreamMemory memory) {
  std::lock_guard<std::mutex> lock(spare_mutex_);
  spare_.push_back(std::move(memory));
}

bool CudaDevice::Reaches(const Device& other) const {
  if (other.kind() != kKind) return false;
  return gpu_->Reaches(static_cast<const CudaDevice&>(other).gpu());
}

}  // namespace oneflow_like::cuda
