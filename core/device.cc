// The host as a device: memory from the operating system, streams that run kernels in the caller's thread.
#include "core/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "core/error.h"

namespace oneflow_like {
namespace {

constexpr size_t kAlignment = 64;
// From this size on a block is mapped by itself: zero pages, given back to the system when freed.
constexpr size_t kMapFrom = size_t{1} << 20;

std::atomic<int64_t> held_bytes{0}, held_blocks{0}, allocations{0};

// The system grants more memory than it has and ends the process when pages run out, so we compare ourselves.
struct HostLimits {
  int64_t available = std::numeric_limits<int64_t>::max();  // now
  int64_t total = std::numeric_limits<int64_t>::max();      // of the machine, or of this container
};

HostLimits ReadHostLimits() {
  HostLimits limits;
  long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page_bytes > 0) limits.total = limits.available = int64_t{pages} * page_bytes;
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  for (int64_t kilobytes = 0; meminfo >> name >> kilobytes; meminfo.ignore(256, '\n')) {
    if (name == "MemAvailable:") limits.available = kilobytes * 1024;
  }
  int64_t container = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> container && container > 0) {
    limits.total = std::min(limits.total, container);
  }
  limits.available = std::min(limits.available, limits.total);
  return limits;
}

class HostMemory : public Memory {
 public:
  HostMemory(void* data, size_t bytes, size_t reserved) : data_(data), bytes_(bytes), reserved_(reserved) {
    held_bytes += static_cast<int64_t>(bytes_);
    ++held_blocks;
    ++allocations;
  }
  ~HostMemory() override {
    held_bytes -= static_cast<int64_t>(bytes_);
    --held_blocks;
    if (reserved_ >= kMapFrom) {
      munmap(data_, reserved_);
    } else {
      std::free(data_);
    }
  }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  void* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  void* data_;
  size_t bytes_, reserved_;
};

class HostStream : public DeviceStream {
 public:
  Status Run(Kernel& kernel, const KernelContext& context) override {
    // A library a kernel calls may throw; an act must not take the runtime's thread down with it.
    try {
      return kernel.Run(context);
    } catch (const std::exception& failure) {
      return Status(
          Cat(context.spec.node.empty() ? context.spec.name : context.spec.node, ": ", failure.what()));
    }
  }
  void NotifyWhenDone(std::function<void(Status)> done) override { done(Status()); }
  bool synchronous() const override { return true; }
};

class HostDevice : public Device {
 public:
  explicit HostDevice(int index) : index_(index) {}
  const std::string& kind() const override { return kind_; }
  int index() const override { return index_; }

  std::unique_ptr<Memory> Allocate(size_t bytes, const std::string& what) override {
    if (bytes >= kMapFrom) {
      HostLimits limits = ReadHostLimits();
      int64_t unreserved = std::max<int64_t>(0, limits.total - held_bytes.load());
      int64_t available = std::min(limits.available, unreserved);
      if (bytes > static_cast<size_t>(available)) FailShort(bytes, what, available);
    }
    size_t reserved = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    void* data = nullptr;
    if (reserved >= kMapFrom) {
      data = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (data == MAP_FAILED) data = nullptr;
      // Advice alone: large pages spare address translation, and the system may refuse them.
      if (data != nullptr) madvise(data, reserved, MADV_HUGEPAGE);
    } else {
      data = std::aligned_alloc(kAlignment, reserved);
      if (data != nullptr) std::memset(data, 0, reserved);
    }
    if (data == nullptr) FailShort(bytes, what, ReadHostLimits().available);
    return std::make_unique<HostMemory>(data, bytes, reserved);
  }

  void CopyIn(void* device, const void* host, size_t bytes) override {
    if (bytes > 0) std::memcpy(device, host, bytes);
  }
  void CopyOut(void* host, const void* device, size_t bytes) override {
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  std::unique_ptr<DeviceStream> MakeStream(const std::string& name) override {
    return std::make_unique<HostStream>();
  }

 private:
  [[noreturn]] void FailShort(size_t bytes, const std::string& what, int64_t available) const {
    Fail("device cpu:", index_, " has no memory for ", what, ": ", bytes, " bytes are needed, ", available,
         " bytes are free");
  }

  std::string kind_ = "cpu";
  int index_;
};

}  // namespace

std::unique_ptr<Device> MakeHostDevice(int index) { return std::make_unique<HostDevice>(index); }

HostMemoryStats GetHostMemoryStats() {
  return {.bytes = held_bytes.load(), .blocks = held_blocks.load(), .allocations = allocations.load()};
}

}  // namespace oneflow_like
