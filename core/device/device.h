// The interface to hardware: a device has memory and streams; a stream runs kernels in order and reports when
// they are done. The host implements it here; a backend library (CUDA) implements it elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/boxes/copy_box.h"
#include "core/device/kernel.h"

namespace oneflow_like {

// A block of a device's memory, freed by the destructor. 64-byte aligned at least.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* data() = 0;
  virtual size_t bytes() const = 0;
};

// A point in the work of a stream, for other streams to wait for.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

// A stream's cache for a chain of kernels that is repeated in every act (CUDA: recorded graphs).
class DeviceSegment {
 public:
  virtual ~DeviceSegment() = default;
};

// One kernel of a segment with the operands of this act.
struct KernelRun {
  Kernel* kernel;
  KernelContext context;
};

// Runs its work in order. On a synchronous stream (the host's) the work is done when a call returns; on an
// asynchronous one a call only enqueues, never waits for the device, and NotifyWhenDone reports errors of the
// device. Not thread-safe.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual bool synchronous() const = 0;
  // Runs one kernel and returns its failure.
  virtual Status Run(Kernel& kernel, const KernelContext& context) = 0;
  // Calls `done` once everything enqueued so far has finished: at once on the host, else from a thread of the
  // device. The status is the device's first failure since the last call.
  virtual void NotifyWhenDone(std::function<void(Status)> done) = 0;

  virtual std::unique_ptr<DeviceSegment> MakeSegment() = 0;
  // Runs the kernels in order; they must be the same in every call with this segment. If operands have the
  // same addresses as in an earlier call, the stream may replay a recording instead of running the kernels.
  virtual Status RunSegment(DeviceSegment* segment, std::span<const KernelRun> kernels) = 0;
  virtual std::unique_ptr<DeviceEvent> MakeEvent() = 0;
  // Sets the event to everything enqueued here so far.
  virtual void Record(DeviceEvent* event) = 0;
  // Work enqueued from now on starts after the work that `event` stands for at the time of this call (none if
  // never recorded). The event may be of any stream of any device of this kind in this process.
  virtual void WaitFor(const DeviceEvent& event) = 0;
  // Copies between device memory and memory of Device::AllocateHost, which must stay unchanged until done.
  virtual void CopyIn(void* device, const void* host, size_t bytes) = 0;
  virtual void CopyOut(void* host, const void* device, size_t bytes) = 0;
  // to[box] = from[0][box] op from[1][box] ...: as CombineBox (core/boxes/copy_box.h), the same bits; with
  // Reduce::kNone and one source a copy. Pieces are in memory that this device Reaches.
  virtual Status Combine(DType dtype, Reduce reduce, const Box& box, std::span<const Piece> from,
                         std::span<const Piece> to) = 0;
};

// Waits until everything enqueued on the stream has finished; returns the first failure. Not for threads of a
// device.
Status WaitFor(DeviceStream* stream);

class Device {
 public:
  virtual ~Device() = default;
  virtual const std::string& kind() const = 0;  // "cpu", "cuda"
  virtual int index() const = 0;
  // Throws Error naming the device, the bytes asked for and the bytes free when memory is short.
  virtual std::unique_ptr<Memory> Allocate(size_t bytes, const std::string& what) = 0;
  // Host memory that the device copies to and from at full speed. Throws Error as Allocate does.
  virtual std::unique_ptr<Memory> AllocateHost(size_t bytes, const std::string& what) = 0;
  // Waits until the copy is done.
  virtual void CopyIn(void* device, const void* host, size_t bytes) = 0;
  virtual void CopyOut(void* host, const void* device, size_t bytes) = 0;
  virtual std::unique_ptr<DeviceStream> MakeStream(const std::string& name) = 0;
  // A name of the hardware that is unique over all hosts (a GPU's UUID); virtual devices of one GPU share it.
  // Empty: the host.
  virtual std::string hardware() const { return ""; }
  // Whether kernels of this device can read and write the other's memory.
  virtual bool Reaches(const Device& other) const = 0;
};

// A source of memory for host devices, other than private memory of the process (net/: memory that other
// processes of the host see).
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Zeroed. Throws Error naming `what`, the bytes asked for and the bytes free when memory is short.
  virtual std::unique_ptr<Memory> Allocate(size_t bytes, const std::string& what) = 0;
};

// A virtual device with host memory: private, or from `source`, which must outlive the device.
std::unique_ptr<Device> MakeHostDevice(int index, MemorySource* source = nullptr);

// Bytes and number of blocks that all host devices hold and have ever allocated, for tests.
struct HostMemoryStats {
  int64_t bytes = 0, blocks = 0, allocations = 0;
};
HostMemoryStats GetHostMemoryStats();

}  // namespace oneflow_like
