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
#include "core/device.h"
#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

// A failure that a NotifyWhenDone will report: enqueueing something that returns no Status went wrong, or a
// group member (nccl.h) was aborted. Held by the stream and by who may write it, on any thread.
class FirstFailure {
 public:
  void Set(Status status);  // nothing where one is already there
  Status Take();            // and forget

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
  };
  const Gpu* const gpu_;
  std::vector<int> numbers;  // of its kernels on the stream; empty until it first runs
  std::vector<Part> parts;
};

// Kernels that have been run here outlive what was enqueued of them, as faults are explained by them.
class CudaStream : public DeviceStream, private NotificationLine {
 public:
  CudaStream(CudaDevice* device, const std::string& name);  // throws Error
  // Waits for what was enqueued, and until every NotifyWhenDone has been called back.
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
  CudaDevice& device() const { return *device_; }
  const std::shared_ptr<FirstFailure>& failure() const { return failure_; }

 private:
  // What the stream remembers of a kernel, for messages.
  struct Known {
    CudaKernel* kernel;
    const KernelSpec* spec;  // only compared: another kernel may lie where one has been
    std::string node;        // "fc1 at gpt.cc:31"
  };

  // From 1, on this stream; 0: it is no kernel of ours.
  int NumberOf(Kernel& kernel, const KernelSpec& spec);
  Status Prepare(CudaSegment* segment, std::span<const KernelRun> kernels);
  Status GetReady(const KernelContext& context);
  std::string NameOf(std::span<const int> numbers) const;  // "layer_norm .. matmul (12 kernels)"
  // One kernel, or several that go together.
  Status LaunchTogether(std::span<const int> numbers, std::span<const KernelRun> runs);
  Status LaunchPart(const CudaSegment& segment, const CudaSegment::Part& part,
                    std::span<const KernelRun> kernels);
  bool RecordPart(const CudaSegment& segment, CudaSegment::Part* part, int slot,
                  std::span<const KernelRun> kernels);
  Status RunPart(const CudaSegment& segment, CudaSegment::Part* part, std::span<const KernelRun> kernels);
  // OK, or why not: when the device is lost, that.
  Status Check(cudaError_t error, const char* what);
  Status CheckDevice(const char* what);            // whether it is lost. Not while the stream records
  void Keep(cudaError_t error, const char* what);  // for the next notification
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
  LaunchContext launch_;           // but for the number
  int64_t step_ = -1, time_ = -1;  // what ActState holds
  bool ran_ = false;               // kernels since the last NotifyWhenDone
  int last_ = 0;                   // number of the last kernel enqueued
  std::unordered_map<const Kernel*, int> numbers_;
  std::shared_ptr<FirstFailure> failure_ = std::make_shared<FirstFailure>();

  std::mutex mutex_;  // known_ and free_: the completion thread explains faults and gives notifications back
  std::deque<Known> known_;  // by number - 1
  std::vector<Notification*> free_;
  std::vector<std::unique_ptr<Notification>> notifications_;
  std::vector<std::unique_ptr<Memory>> more_faults_;  // where memory_'s are too few
};

}  // namespace oneflow_like::cuda
