// The one interface to hardware: a device has memory and streams; a stream runs kernels in order and says
// when it has come so far. The host implements it here; a backend library (CUDA) implements it elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/kernel.h"

namespace oneflow_like {

// A block of a device's memory, given back when destroyed. 64-byte aligned at least.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* data() = 0;
  virtual size_t bytes() const = 0;
};

class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  // Enqueues one kernel; on the host it runs here and now, and its failure is returned.
  virtual Status Run(Kernel& kernel, const KernelContext& context) = 0;
  // Calls `done` once everything enqueued so far has finished: at once on the host, else from any thread.
  virtual void NotifyWhenDone(std::function<void(Status)> done) = 0;
  // True when a consumer on the same stream may be launched as soon as its producer was (device streams), and
  // kernels are done when Run returns (host).
  virtual bool synchronous() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const std::string& kind() const = 0;  // "cpu", "cuda"
  virtual int index() const = 0;
  // Throws Error naming the device, the bytes asked for and the bytes free when memory is short.
  virtual std::unique_ptr<Memory> Allocate(size_t bytes, const std::string& what) = 0;
  virtual void CopyIn(void* device, const void* host, size_t bytes) = 0;
  virtual void CopyOut(void* host, const void* device, size_t bytes) = 0;
  virtual std::unique_ptr<DeviceStream> MakeStream(const std::string& name) = 0;
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
