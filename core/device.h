// The one interface to hardware: a device has memory and streams; a stream runs kernels in order and says
// when it has come so far. The host implements it here; a backend library (CUDA) implements it elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/copy_box.h"
#include "core/kernel.h"

namespace oneflow_like {

// A block of a device's memory, given back when destroyed. 64-byte aligned at least.
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

// What a stream keeps of a straight line of kernels that comes again every act (CUDA: recorded graphs).
class DeviceSegment {
 public:
  virtual ~DeviceSegment() = default;
};

// One kernel of a segment with the operands of this act.
struct KernelRun {
  Kernel* kernel;
  KernelContext context;
};

// Runs what it is given in order. On a synchronous stream (the host's) everything has been done when a call
// returns; on an asynchronous one a call only enqueues, never waits for the device, and errors of the device
// come with NotifyWhenDone. A stream is used by one thread at a time.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual bool synchronous() const = 0;
  // One kernel; its failure is returned.
  virtual Status Run(Kernel& kernel, const KernelContext& context) = 0;
  // Calls `done` once everything enqueued so far has finished: at once on the host, else from a thread of the
  // device's. The status is the device's first failure since the last call.
  virtual void NotifyWhenDone(std::function<void(Status)> done) = 0;

  virtual std::unique_ptr<DeviceSegment> MakeSegment() = 0;
  // The kernels in order, the same ones in every call with this segment. When operands lie where they lay in
  // an earlier call the stream may replay what it recorded then instead of running the kernels.
  virtual Status RunSegment(DeviceSegment* segment, std::span<const KernelRun> kernels) = 0;
  virtual std::unique_ptr<DeviceEvent> MakeEvent() = 0;
  // The event becomes: everything enqueued here so far.
  virtual void Record(DeviceEvent* event) = 0;
  // What is enqueued from now on starts after what `event` was when this is called (never recorded: nothing).
  // The event is of any stream of any device of this kind in this process.
  virtual void WaitFor(const DeviceEvent& event) = 0;
  // Between device memory and memory of Device::AllocateHost, which is left alone until done.
  virtual void CopyIn(void* device, const void* host, size_t bytes) = 0;
  virtual void CopyOut(void* host, const void* device, size_t bytes) = 0;
  // to[box] = from[0][box] op from[1][box] ...: as CombineBox (core/copy_box.h), the same bits; with
  // Reduce::kNone and one source a copy. Pieces are in memory this device Reaches.
  virtual Status Combine(DType dtype, Reduce reduce, const Box& box, std::span<const Piece> from,
                         std::span<const Piece> to) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const std::string& kind() const = 0;  // "cpu", "cuda"
  virtual int index() const = 0;
  // Throws Error naming the device, the bytes asked for and the bytes free when memory is short.
  virtual std::unique_ptr<Memory> Allocate(size_t bytes, const std::string& what) = 0;
  // Memory of the host that the device copies to and from at full speed. Throws Error as Allocate does.
  virtual std::unique_ptr<Memory> AllocateHost(size_t bytes, const std::string& what) = 0;
  // Waits until the copy is done.
  virtual void CopyIn(void* device, const void* host, size_t bytes) = 0;
  virtual void CopyOut(void* host, const void* device, size_t bytes) = 0;
  virtual std::unique_ptr<DeviceStream> MakeStream(const std::string& name) = 0;
  // The hardware, named so that no other of any host has the name (a GPU's UUID); virtual devices of one GPU
  // have the same. Empty: the host.
  virtual std::string hardware() const { return ""; }
  // Whether kernels of this device can read and write the other's memory.
  virtual bool Reaches(const Device& other) const = 0;
};

// Where a host device's memory comes from when it is not this process's alone (net/: memory that other
// processes of the host see).
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Zeroed. Throws Error naming `what`, the bytes asked for and the bytes free when memory is short.
  virtual std::unique_ptr<Memory> Allocate(size_t bytes, const std::string& what) = 0;
};

// A virtual device of host memory: this process's, or from `source`, which outlives the device.
std::unique_ptr<Device> MakeHostDevice(int index, MemorySource* source = nullptr);

// Bytes and number of blocks all host devices hold and have ever allocated, for tests that count.
struct HostMemoryStats {
  int64_t bytes = 0, blocks = 0, allocations = 0;
};
HostMemoryStats GetHostMemoryStats();

}  // namespace oneflow_like
