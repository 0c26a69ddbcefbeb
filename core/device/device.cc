// The host as a device: memory from the operating system, streams that run kernels in the caller's thread.
#include "core/device/device.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <limits>
#include <string>

#include "core/error.h"
#include "core/system/host_memory.h"

namespace oneflow_like {
namespace {

constexpr size_t kAlignment = 64;
// From this size on a block is mapped by itself: zero pages, given back to the system when freed.
constexpr size_t kMapFrom = kComparedFrom;
// From this size on it begins at a multiple of it, so that large pages can be mapped from its beginning.
constexpr size_t kLargePage = size_t{2} << 20;

std::atomic<int64_t> held_bytes{0}, held_blocks{0}, allocations{0};

// Zero pages, or nullptr.
void* Map(size_t bytes) {
  const size_t spare = bytes >= kLargePage ? kLargePage : 0;
  void* room = mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  char* data = static_cast<char*>(room);
  if (spare > 0) {
    const size_t before = -reinterpret_cast<uintptr_t>(room) % kLargePage;
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t used = (bytes + page - 1) / page * page, all = (bytes + spare + page - 1) / page * page;
    if (before > 0) munmap(room, before);
    data += before;
    if (all > before + used) munmap(data + used, all - before - used);
    // Advice alone: large pages spare address translation, and the system may refuse them.
    madvise(data, bytes, MADV_HUGEPAGE);
  }
  return data;
}

// Counts a block of a host device for as long as it lives.
class Counted {
 public:
  explicit Counted(size_t bytes) : bytes_(static_cast<int64_t>(bytes)) {
    held_bytes += bytes_;
    ++held_blocks;
    ++allocations;
  }
  ~Counted() {
    held_bytes -= bytes_;
    --held_blocks;
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  int64_t bytes_;
};

class HostMemory : public Memory {
 public:
  HostMemory(void* data, size_t bytes, size_t reserved)
      : data_(data), bytes_(bytes), reserved_(reserved), counted_(bytes) {}
  ~HostMemory() override {
    if (reserved_ >= kMapFrom) {
      munmap(data_, reserved_);
    } else {
      std::free(data_);
    }
  }

  void* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  void* data_;
  size_t bytes_, reserved_;
  Counted counted_;
};

// A block that somebody else's source gave.
class SourcedMemory : public Memory {
 public:
  explicit SourcedMemory(std::unique_ptr<Memory> memory)
      : memory_(std::move(memory)), counted_(memory_->bytes()) {}
  void* data() override { return memory_->data(); }
  size_t bytes() const override { return memory_->bytes(); }

 private:
  std::unique_ptr<Memory> memory_;
  Counted counted_;
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

  std::unique_ptr<DeviceSegment> MakeSegment() override { return std::make_unique<DeviceSegment>(); }
  Status RunSegment(DeviceSegment*, std::span<const KernelRun> kernels) override {
    for (const KernelRun& run : kernels) {
      if (Status status = Run(*run.kernel, run.context); !status.ok()) return status;
    }
    return Status();
  }
  // What is enqueued has been done: there is nothing to wait for.
  std::unique_ptr<DeviceEvent> MakeEvent() override { return std::make_unique<DeviceEvent>(); }
  void Record(DeviceEvent*) override {}
  void WaitFor(const DeviceEvent&) override {}
  void CopyIn(void* device, const void* host, size_t bytes) override { Copy(device, host, bytes); }
  void CopyOut(void* host, const void* device, size_t bytes) override { Copy(host, device, bytes); }
  Status Combine(DType dtype, Reduce reduce, const Box& box, std::span<const Piece> from,
                 std::span<const Piece> to) override {
    if (reduce == Reduce::kNone && from.size() == 1) {
      for (const Piece& piece : to) CopyBox(dtype, box, from[0], piece);
    } else {
      CombineBox(dtype, reduce, box, from.data(), static_cast<int>(from.size()), to.data(),
                 static_cast<int>(to.size()));
    }
    return Status();
  }

 private:
  static void Copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
};

class HostDevice : public Device {
 public:
  HostDevice(int index, MemorySource* source) : index_(index), source_(source) {}
  const std::string& kind() const override { return kind_; }
  int index() const override { return index_; }

  std::unique_ptr<Memory> Allocate(size_t bytes, const std::string& what) override {
    std::string name = Cat("device cpu:", index_);
    CheckHostHas(bytes, name, what);
    if (source_ != nullptr) return std::make_unique<SourcedMemory>(source_->Allocate(bytes, what));
    size_t reserved = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    void* data = nullptr;
    if (reserved >= kMapFrom) {
      data = Map(reserved);
    } else {
      data = std::aligned_alloc(kAlignment, reserved);
      if (data != nullptr) std::memset(data, 0, reserved);
    }
    if (data == nullptr) FailShortOfHostMemory(name, what, bytes);
    return std::make_unique<HostMemory>(data, bytes, reserved);
  }

  std::unique_ptr<Memory> AllocateHost(size_t bytes, const std::string& what) override {
    return Allocate(bytes, what);
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
  bool Reaches(const Device& other) const override { return other.kind() == kind_; }

 private:
  std::string kind_ = "cpu";
  int index_;
  MemorySource* source_;
};

}  // namespace

int64_t LeftOf(const MemoryLimit& limit, int64_t held) {
  if (!limit.shared) return limit.left;
  return std::min(limit.left, std::max<int64_t>(0, limit.bytes - held));
}

namespace {

// The one that leaves least.
MemoryLimit TightestLimit() {
  MemoryLimit tightest{.left = std::numeric_limits<int64_t>::max()};
  for (MemoryLimit limit : ReadMemoryLimits()) {
    limit.left = LeftOf(limit, held_bytes.load());
    if (limit.left < tightest.left) tightest = limit;
  }
  return tightest;
}

std::string FreeText(const MemoryLimit& limit) {
  return Cat(limit.left, " bytes are free",
             limit.source.empty() ? "" : Cat(" of the ", limit.bytes, " that ", limit.source, " allows"));
}

[[noreturn]] void FailShort(const std::string& owner, const std::string& what, size_t bytes,
                            const MemoryLimit& limit) {
  throw ShortOfMemory(
      Cat(owner, " has no memory for ", what, ": ", bytes, " bytes are needed, ", FreeText(limit)));
}

}  // namespace

void FailShortOfMemory(const std::string& owner, const std::string& what, size_t bytes, int64_t free) {
  FailShort(owner, what, bytes, {.left = free});
}

void FailShortOfHostMemory(const std::string& owner, const std::string& what, size_t bytes) {
  FailShort(owner, what, bytes, TightestLimit());
}

void CheckHostHas(size_t bytes, const std::string& owner, const std::string& what) {
  if (bytes < kComparedFrom) return;
  const MemoryLimit limit = TightestLimit();
  if (bytes > static_cast<size_t>(limit.left)) FailShort(owner, what, bytes, limit);
}

void CheckAddressesFor(size_t bytes, const std::string& what) {
  const auto unlimited = [](int resource) {
    rlimit limit = {};
    return getrlimit(resource, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
  };
  if (unlimited(RLIMIT_AS) && unlimited(RLIMIT_DATA)) return;
  for (const MemoryLimit& limit : ReadMemoryLimits())
    if (!limit.shared && limit.left < static_cast<int64_t>(bytes))
      FailShort("this process", what, bytes, limit);
}

std::string OutOfMemoryText() { return Cat("this process has no memory left: ", FreeText(TightestLimit())); }

Status WaitFor(DeviceStream* stream) {
  auto done = std::make_shared<std::promise<Status>>();
  std::future<Status> status = done->get_future();
  stream->NotifyWhenDone([done](Status s) { done->set_value(std::move(s)); });
  return status.get();
}

std::unique_ptr<Device> MakeHostDevice(int index, MemorySource* source) {
  return std::make_unique<HostDevice>(index, source);
}

HostMemoryStats GetHostMemoryStats() {
  return {.bytes = held_bytes.load(), .blocks = held_blocks.load(), .allocations = allocations.load()};
}

}  // namespace oneflow_like
