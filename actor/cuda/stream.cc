// What a stream enqueues. Segments and their recordings are in segment.cc.
#include "actor/cuda/stream.h"

#include <utility>

#include "actor/cuda/act_state.h"
#include "actor/cuda/counts.h"
#include "actor/cuda/error.h"
#include "actor/cuda/range.h"
#include "ops/cuda/combine.h"
#include "ops/cuda/driver_turn.h"

namespace oneflow_like::cuda {
namespace {

// The runtime clamps it to the highest the device has.
constexpr int kHighPriority = -100;

}  // namespace

void FirstFailure::Set(Status status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (status_.ok()) status_ = std::move(status);
}

Status FirstFailure::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(status_, Status());
}

CudaEvent::CudaEvent(Gpu* gpu) : gpu_(gpu) {
  DriverCall call;
  gpu_->Use();
  Require(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), gpu_->name(), " gives no event");
}

CudaEvent::~CudaEvent() {
  DriverCall call;
  gpu_->Use();
  if (cudaEventDestroy(event_) != cudaSuccess) cudaGetLastError();
}

CudaStream::CudaStream(CudaDevice* device, const std::string& name)
    : device_(device),
      gpu_(&device->gpu()),
      name_(name),
      memory_(device->TakeStreamMemory(name == "compute")) {
  DriverCall call;
  gpu_->Use();
  Require(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                       name.starts_with("link") ? kHighPriority : 0),
          device->name(), " gives no stream");
  auto* act = static_cast<ActState*>(memory_.state->data());
  launch_.stream = stream_;
  launch_.act = act;
  launch_.fault = reinterpret_cast<Fault*>(act + 1);
  launch_.workspace = memory_.workspace == nullptr ? nullptr : memory_.workspace->data();
  launch_.workspace_bytes = memory_.workspace == nullptr ? 0 : memory_.workspace->bytes();
  launch_.multiprocessors = gpu_->multiprocessors();
  launch_.architecture = gpu_->architecture();
  Keep(cudaMemsetAsync(act, 0, sizeof(ActState) + sizeof(Fault), stream_), "clearing its state");
  MakeNotifications(memory_.faults.get());
  ++gpu_->streams();
  gpu_->completion().Add(this);
}

CudaStream::~CudaStream() {
  gpu_->Use();
  // Notifications are events on the stream: they have come when it has, and come at once when it fails.
  Keep(cudaStreamSynchronize(stream_), "closing");
  gpu_->completion().Remove(this);
  DriverCall call;
  --gpu_->streams();
  for (auto& notification : notifications_) {
    if (notification->event != nullptr) cudaEventDestroy(notification->event);
  }
  cudaStreamDestroy(stream_);
  cudaGetLastError();
  device_->GiveBack(std::move(memory_));
}

// --- Kernels

int CudaStream::NumberOf(Kernel& kernel, const KernelSpec& spec) {
  auto found = numbers_.find(&kernel);
  if (found != numbers_.end() && known_[found->second - 1].spec == &spec) return found->second;
  auto* cuda_kernel = dynamic_cast<CudaKernel*>(&kernel);
  if (cuda_kernel == nullptr) return 0;
  const std::string& node = spec.node.empty() ? spec.name : spec.node;
  std::lock_guard<std::mutex> lock(mutex_);
  known_.push_back({cuda_kernel, &spec, spec.line.Of(node)});
  return numbers_[&kernel] = static_cast<int>(known_.size());
}

Status CudaStream::GetReady() {
  if (gpu_->health().lost()) return gpu_->health().status();
  gpu_->Use();
  if (memory_.workspace == nullptr) {
    try {
      memory_.workspace = device_->AllocateWorkspace();
    } catch (const Error& error) {
      return Status(error.what());
    }
    launch_.workspace = memory_.workspace->data();
    launch_.workspace_bytes = memory_.workspace->bytes();
  }
  return Status();
}

Status CudaStream::ForLaunches(LaunchContext* launch) {
  Status status = GetReady();
  *launch = launch_;
  return status;
}

// Prepares what kernels rely on: makes the device current in this thread, allocates the work space, and
// writes the act's step and time to ActState.
Status CudaStream::GetReady(const KernelContext& context) {
  if (Status status = GetReady(); !status.ok()) return status;
  if (context.step == step_ && context.time == time_) return Status();
  step_ = context.step;
  time_ = context.time;
  LaunchWriteAct(stream_, static_cast<ActState*>(memory_.state->data()), step_, time_);
  return Check(cudaGetLastError(), "telling the device the step");
}

// known_ is written by this thread alone.
std::string CudaStream::NameOf(std::span<const int> numbers) const {
  const std::string& first = known_[numbers.front() - 1].node;
  if (numbers.size() == 1) return first;
  return Cat(first, " .. ", known_[numbers.back() - 1].node, " (", numbers.size(), " kernels)");
}

Status CudaStream::LaunchTogether(std::span<const int> numbers, std::span<const KernelRun> runs) {
  Range range(NameOf(numbers).c_str());
  LaunchContext launch = launch_;
  launch.number = numbers.front();
  ran_ = true;
  last_ = numbers.back();
  CudaKernel* kernel = known_[launch.number - 1].kernel;
  Status status;
  // A library that a kernel calls may throw; the runtime's thread must not unwind.
  try {
    status = kernel->LaunchTogether(runs, launch);
  } catch (const std::exception& failure) {
    status = Status(failure.what());
  }
  cudaError_t error = cudaGetLastError();
  if (status.ok() && error != cudaSuccess) status = Status(Say(error));
  return status;
}

Status CudaStream::Run(Kernel& kernel, const KernelContext& context) {
  int number = NumberOf(kernel, context.spec);
  if (number == 0) return Status(Cat("kernel ", context.spec.name, " is not one for CUDA"));
  DriverCall call;
  if (Status status = GetReady(context); !status.ok()) return status;
  ++Counts().lone_launches;
  KernelRun run{&kernel, context};
  Status status = LaunchTogether({&number, 1}, {&run, 1});
  if (status.ok()) return status;
  Status lost = CheckDevice(known_[number - 1].node.c_str());
  return lost.ok() ? status : lost;
}

Status CudaStream::Combine(DType dtype, Reduce reduce, const Box& box, std::span<const Piece> from,
                           std::span<const Piece> to) {
  if (gpu_->health().lost()) return gpu_->health().status();
  DriverCall call;
  gpu_->Use();
  LaunchCombine(stream_, dtype, reduce, box, from, to, gpu_->multiprocessors());
  return Check(cudaGetLastError(), "combining pieces");
}

// --- Events and copies

std::unique_ptr<DeviceEvent> CudaStream::MakeEvent() { return std::make_unique<CudaEvent>(gpu_); }

void CudaStream::Record(DeviceEvent* event) {
  if (gpu_->health().lost()) return;
  DriverCall call;
  gpu_->Use();
  Keep(cudaEventRecord(static_cast<CudaEvent*>(event)->handle(), stream_), "recording an event");
}

void CudaStream::WaitFor(const DeviceEvent& event) {
  if (gpu_->health().lost()) return;
  DriverCall call;
  gpu_->Use();
  Keep(cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).handle(), 0),
       "waiting for an event");
}

void CudaStream::CopyIn(void* device, const void* host, size_t bytes) {
  if (bytes == 0 || gpu_->health().lost()) return;
  DriverCall call;
  gpu_->Use();
  Keep(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "copying to the device");
}

void CudaStream::CopyOut(void* host, const void* device, size_t bytes) {
  if (bytes == 0 || gpu_->health().lost()) return;
  DriverCall call;
  gpu_->Use();
  Keep(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDefault, stream_), "copying from the device");
}

// --- Failures

Status CudaStream::Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status();
  cudaGetLastError();
  Status lost = CheckDevice(what);
  return lost.ok() ? Status(Cat(what, ": ", Say(error))) : lost;
}

// A failure of one call is forgotten when it has been asked for; that of a device is repeated whatever is
// asked.
Status CudaStream::CheckDevice(const char* what) {
  if (gpu_->health().lost()) return gpu_->health().status();
  cudaError_t error = cudaStreamQuery(stream_);
  if (error != cudaSuccess) cudaGetLastError();  // "not ready" stays as the thread's last error, too
  if (error == cudaSuccess || error == cudaErrorNotReady) return Status();
  gpu_->health().Lose(
      Cat(gpu_->name(), " stopped with ", Say(error), ", seen at ", what, " on stream ", name_));
  return gpu_->health().status();
}

void CudaStream::Keep(cudaError_t error, const char* what) {
  if (error != cudaSuccess) failure_->Set(Check(error, what));
}

// --- Notifications

void CudaStream::NotifyWhenDone(std::function<void(Status)> done) {
  DriverCall call;
  Notification* notification = NewNotification();
  notification->done = std::move(done);
  notification->last_kernel = last_;
  if (!gpu_->health().lost()) {
    gpu_->Use();
    if (ran_ && notification->device_fault != nullptr) {
      LaunchTakeFault(stream_, launch_.fault, notification->device_fault);
      ran_ = false;
    }
    Keep(cudaGetLastError(), "asking for faults");
    Keep(cudaEventRecord(notification->event, stream_), "asking for the end");
  }
  gpu_->completion().Push(this, notification);
}

void CudaStream::MakeNotifications(Memory* faults) {
  void* device = nullptr;
  Require(cudaHostGetDevicePointer(&device, faults->data(), 0), device_->name(),
          " does not see memory of the host");
  std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < StreamMemory::kFaults; ++i) {
    auto notification = std::make_unique<Notification>();
    notification->fault = static_cast<Fault*>(faults->data()) + i;
    notification->device_fault = static_cast<Fault*>(device) + i;
    free_.push_back(notification.get());
    notifications_.push_back(std::move(notification));
  }
}

Notification* CudaStream::NewNotification() {
  Notification* notification = nullptr;
  while (notification == nullptr) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        notification = free_.back();
        free_.pop_back();
        continue;
      }
    }
    try {
      more_faults_.push_back(
          device_->AllocateHost(StreamMemory::kFaults * sizeof(Fault), "a stream's faults"));
      MakeNotifications(more_faults_.back().get());
    } catch (const Error&) {  // memory is short, or the device lost: faults are told by another one
      std::lock_guard<std::mutex> lock(mutex_);
      notifications_.push_back(std::make_unique<Notification>());
      notification = notifications_.back().get();
    }
  }
  *notification->fault = Fault();
  if (notification->event == nullptr && !gpu_->health().lost()) {
    gpu_->Use();
    Keep(cudaEventCreateWithFlags(&notification->event, cudaEventDisableTiming), "making an event");
  }
  return notification;
}

// Called by the completion thread, as are the next two.
Status CudaStream::StatusOf(const Notification& notification) {
  if (gpu_->health().lost()) return gpu_->health().status();
  const Fault fault = *notification.fault;
  if (Status status = failure_->Take(); !status.ok()) return status;
  if (fault.kernel == 0) return Status();
  std::lock_guard<std::mutex> lock(mutex_);
  if (fault.kernel < 0 || fault.kernel > static_cast<int>(known_.size())) {
    return Status(Cat("stream ", name_, ": a fault of kernel ", fault.kernel, " of ", known_.size()));
  }
  const Known& known = known_[fault.kernel - 1];
  return Status(Cat(known.node, ": ", known.kernel->Explain(fault)));
}

std::string CudaStream::Where(const Notification& notification) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (notification.last_kernel == 0) return Cat("stream ", name_);
  return Cat("stream ", name_, " after ", known_[notification.last_kernel - 1].node);
}

void CudaStream::Recycle(Notification* notification) {
  std::lock_guard<std::mutex> lock(mutex_);
  // One that tells no faults is the last that is used again.
  free_.insert(notification->device_fault == nullptr ? free_.begin() : free_.end(), notification);
}

}  // namespace oneflow_like::cuda
