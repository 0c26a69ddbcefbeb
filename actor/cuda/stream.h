// A stream of a rank's device: enqueues, and never waits.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "actor/cuda/completion.h"
#include "actor/cuda/device.h"
#include "actor/cuda/graph_policy.h"
#include "core/device/device.h"
#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

// A failure that a NotifyWhenDone will report: enqueueing by a call without a Status failed, or a group
// member (nccl.h) was aborted. Shared by the stream and the threads that may write it.
class FirstFailure {
 public:
  void Set(Status status);  // keeps an earlier one
  Status Take();            // and clears it

 private:
  std::mutex mutex_;
  Status status_;
};

class CudaEvent : public DeviceEvent {
 public:
  explicit CudaEvent(Gpu* gpu);
  ~CudaEvent() override;
  cudaEvent_t handle() const { return event_; }

 private:
  Gpu* gpu_;
  cudaEvent_t event_ = nullptr;
};

// A segment, cut into parts at kernels that must not be recorded. Belongs to one stream.
class CudaSegment : public DeviceSegment {
 public:
  explicit CudaSegment(const Gpu* gpu) : gpu_(gpu) {}
  ~CudaSegment() override;

 private:
  friend class CudaStream;
  struct Part {
    size_t begin = 0, end = 0;  // kernels
    bool recordable = false;
    bool recorded = false;  // at least once
    std::string name;
    GraphPolicy policy;
    std::vector<cudaGraphExec_t> graphs;  // by the policy's slots
    int64_t nodes = 0;                    // of each of them
    int64_t shortest = 0;                 // nanoseconds of a launch; 0: none yet
  };
  const Gpu* const gpu_;
  std::vector<int> numbers;  // of its kernels on the stream; empty until it first runs
  std::vector<Part> parts;
};

// Kernels that were run here must outlive their enqueued work, because they explain faults.
class CudaStream : public DeviceStream, private NotificationLine {
 public:
  CudaStream(CudaDevice* device, const std::string& name);  // throws Error
  // Waits for the enqueued work, and until every NotifyWhenDone has been called back.
  ~CudaStream() override;

  bool synchronous() const override { return false; }
  Status Run(Kernel& kernel, const KernelContext& context) override;
  void NotifyWhenDone(std::function<void(Status)> done) override;
  std::unique_ptr<DeviceSegment> MakeSegment() override;
  Status RunSegment(DeviceSegment* segment, std::span<const KernelRun> kernels) override;
  std::unique_ptr<DeviceEvent> MakeEvent() override;
  void Record(DeviceEvent* event) override;
  void WaitFor(const DeviceEvent& event) override;
  void CopyIn(void* device, const void* host, size_t bytes) override;
  void CopyOut(void* host, const void* device, size_t bytes) override;
  Status Combine(DType dtype, Reduce reduce, const Box& box, std::span<const Piece> from,
                 std::span<const Piece> to) override;

  cudaStream_t handle() const { return stream_; }
  // Makes the device current in this thread, and fills in what kernels are launched with.
  Status ForLaunches(LaunchContext* launch);
  CudaDevice& device() const { return *device_; }
  const std::shared_ptr<FirstFailure>& failure() const { return failure_; }

 private:
  // A kernel's description, for messages.
  struct Known {
    CudaKernel* kernel;
    const KernelSpec* spec;  // only compared: another kernel may later have this address
    std::string node;        // "fc1 at gpt.cc:31"
  };

  // From 1, on this stream; 0: not a kernel of this library.
  int NumberOf(Kernel& kernel, const KernelSpec& spec);
  Status Prepare(CudaSegment* segment, std::span<const KernelRun> kernels);
  Status GetReady();
  Status GetReady(const KernelContext& context);
  std::string NameOf(std::span<const int> numbers) const;  // "layer_norm .. matmul (12 kernels)"
  // Launches one kernel, or several together.
  Status LaunchTogether(std::span<const int> numbers, std::span<const KernelRun> runs);
  Status LaunchPart(const CudaSegment& segment, const CudaSegment::Part& part,
                    std::span<const KernelRun> kernels);
  bool RecordPart(const CudaSegment& segment, CudaSegment::Part* part, int slot,
                  std::span<const KernelRun> kernels);
  Status RunPart(const CudaSegment& segment, CudaSegment::Part* part, std::span<const KernelRun> kernels);
  // OK, or the failure; if the device is lost, that failure.
  Status Check(cudaError_t error, const char* what);
  Status CheckDevice(const char* what);            // fails if it is lost; not while the stream records
  void Keep(cudaError_t error, const char* what);  // keeps a failure for the next notification
  void MakeNotifications(Memory* faults);
  Notification* NewNotification();

  Status StatusOf(const Notification& notification) override;
  std::string Where(const Notification& notification) override;
  void Recycle(Notification* notification) override;

  CudaDevice* const device_;
  Gpu* const gpu_;
  const std::string name_;
  cudaStream_t stream_ = nullptr;
  StreamMemory memory_;            // no work space until a kernel may need it
  LaunchContext launch_;           // all but the number
  int64_t step_ = -1, time_ = -1;  // the contents of ActState
  bool ran_ = false;               // whether kernels ran since the last NotifyWhenDone
  int last_ = 0;                   // number of the last kernel enqueued
  std::unordered_map<const Kernel*, int> numbers_;
  std::shared_ptr<FirstFailure> failure_ = std::make_shared<FirstFailure>();

  std::mutex mutex_;  // known_ and free_: the completion thread explains faults and returns notifications
  std::deque<Known> known_;  // by number - 1
  std::vector<Notification*> free_;
  std::vector<std::unique_ptr<Notification>> notifications_;
  std::vector<std::unique_ptr<Memory>> more_faults_;  // if memory_'s are too few
};

}  // namespace oneflow_like::cuda
