// A device's kernels as kernels on host operands: what is written to test kernels of the host (the operator
// oracle) then tests those of a device. Every run copies the operands there, runs, and copies them back.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/boxes/copy_box.h"
#include "core/device/backend.h"
#include "ops/op.h"

namespace oneflow_like::gpu {

class DeviceKernels {
 public:
  // On device number `device` of the backend, which stays. With `apart` every operand is an allocation of its
  // own, so that compute-sanitizer sees an access beside it; else operands lie in one block with guard bytes
  // between them.
  DeviceKernels(Backend* backend, int device, bool apart)
      : apart_(apart), device_(backend->MakeDevice(0, device)), stream_(device_->MakeStream("compute")) {
    backend->AddKernels(&registry_);
  }
  const KernelRegistry& registry() const { return registry_; }
  Device* device() { return device_.get(); }
  DeviceStream* stream() { return stream_.get(); }

  // The device's kernel for `spec`, which outlives `this` in no way. Throws Error when there is none.
  std::unique_ptr<Kernel> Make(const KernelSpec& spec);

 private:
  class HostKernel;
  // An operand's memory: once for an input and the output that replaces it.
  struct Room {
    void* host;
    size_t bytes, offset;  // in the block
    bool written;
    void* device = nullptr;
    std::unique_ptr<Memory> own;
  };
  static constexpr size_t kGuard = 64;
  static constexpr int kGuardByte = 0x3C;

  int RoomOf(const TensorArg& arg, bool output);
  void MakeBlocks(size_t bytes);
  void PlaceRooms();
  void CopyIn();
  Status CopyOut();
  Status Run(Kernel* kernel, size_t scratch_bytes, const KernelContext& host);

  bool apart_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
  KernelRegistry registry_;
  std::unique_ptr<Memory> on_device_, on_host_, before_;
  std::vector<Room> rooms_;  // of the run under way
  size_t used_ = 0;
};

class DeviceKernels::HostKernel : public Kernel {
 public:
  HostKernel(DeviceKernels* owner, const KernelSpec& spec, std::unique_ptr<Kernel> kernel)
      : owner_(owner), kernel_(std::move(kernel)) {
    const OpDef* def = BuiltinCatalog().Find(spec.name);
    if (def != nullptr && (def->cuda_scratch || def->scratch))
      scratch_bytes_ = (def->cuda_scratch ? def->cuda_scratch : def->scratch)(spec);
  }
  Status Run(const KernelContext& context) override {
    return owner_->Run(kernel_.get(), scratch_bytes_, context);
  }

 private:
  DeviceKernels* owner_;
  std::unique_ptr<Kernel> kernel_;
  size_t scratch_bytes_ = 0;
};

inline std::unique_ptr<Kernel> DeviceKernels::Make(const KernelSpec& spec) {
  return std::make_unique<HostKernel>(this, spec, registry_.Make(spec, "cuda"));
}

inline int DeviceKernels::RoomOf(const TensorArg& arg, bool output) {
  const size_t bytes = arg.elements() * SizeOf(arg.dtype);
  for (size_t r = 0; r < rooms_.size(); ++r) {
    if (bytes == 0 || rooms_[r].host != arg.data || rooms_[r].bytes != bytes) continue;
    rooms_[r].written |= output;
    return static_cast<int>(r);
  }
  // 64 bytes aligned and no better: what the plan promises.
  rooms_.push_back({arg.data, bytes, used_ + 64, output, nullptr, nullptr});
  used_ += 64 + (bytes + kGuard + 127) / 128 * 128;
  return static_cast<int>(rooms_.size()) - 1;
}

inline void DeviceKernels::MakeBlocks(size_t bytes) {
  if (on_host_ && on_host_->bytes() >= bytes) return;
  bytes = std::max(bytes + bytes / 2, size_t{1} << 20);
  on_host_ = device_->AllocateHost(bytes, "operands of a test");
  before_ = device_->AllocateHost(bytes, "operands of a test");
  on_device_.reset();
  if (!apart_) on_device_ = device_->Allocate(bytes, "operands of a test");
}

inline void DeviceKernels::PlaceRooms() {
  for (Room& room : rooms_) {
    if (apart_) room.own = device_->Allocate(std::max<size_t>(room.bytes, 1), "an operand of a test");
    room.device = apart_ ? room.own->data() : static_cast<char*>(on_device_->data()) + room.offset;
  }
}

inline void DeviceKernels::CopyIn() {
  char* image = static_cast<char*>(before_->data());
  std::memset(image, kGuardByte, used_);
  for (const Room& room : rooms_) {  // no bytes are at no address
    if (room.bytes > 0) std::memcpy(image + room.offset, room.host, room.bytes);
  }
  if (!apart_) return stream_->CopyIn(on_device_->data(), image, used_);
  for (const Room& room : rooms_) {
    if (room.bytes > 0) stream_->CopyIn(room.device, image + room.offset, room.bytes);
  }
}

inline Status DeviceKernels::CopyOut() {
  char *image = static_cast<char*>(on_host_->data()), *before = static_cast<char*>(before_->data());
  if (apart_) std::memcpy(image, before, used_);
  if (!apart_) stream_->CopyOut(image, on_device_->data(), used_);
  for (const Room& room : rooms_) {
    if (apart_ && room.bytes > 0) stream_->CopyOut(image + room.offset, room.device, room.bytes);
  }
  Status status = WaitFor(stream_.get());
  if (!status.ok()) return status;
  size_t at = 0;
  for (const Room& room : rooms_) {
    if (std::memcmp(image + at, before + at, room.offset - at) != 0) {
      return Status(Cat("a kernel wrote between its operands, before byte ", room.offset));
    }
    at = room.offset + room.bytes;
    if (room.bytes == 0) continue;
    if (room.written) {
      std::memcpy(room.host, image + room.offset, room.bytes);
    } else if (std::memcmp(image + room.offset, before + room.offset, room.bytes) != 0) {
      return Status("a kernel changed an input");
    }
  }
  if (std::memcmp(image + at, before + at, used_ - at) != 0)
    return Status("a kernel wrote behind its operands");
  return Status();
}

inline Status DeviceKernels::Run(Kernel* kernel, size_t scratch_bytes, const KernelContext& host) {
  rooms_.clear();
  used_ = 0;
  std::vector<char> scratch(scratch_bytes, '\x5a');
  std::vector<TensorArg> in(host.in.begin(), host.in.end()), out(host.out.begin(), host.out.end());
  std::vector<int> of_in, of_out;
  for (const TensorArg& arg : in) of_in.push_back(RoomOf(arg, false));
  for (const TensorArg& arg : out) of_out.push_back(RoomOf(arg, true));
  TensorArg scratch_arg{scratch.data(), DType::kUInt8, {}, {}, Dims{static_cast<int64_t>(scratch_bytes)}};
  const int of_scratch = RoomOf(scratch_arg, true);
  MakeBlocks(used_);
  PlaceRooms();
  for (size_t i = 0; i < in.size(); ++i) in[i].data = rooms_[of_in[i]].device;
  for (size_t i = 0; i < out.size(); ++i) out[i].data = rooms_[of_out[i]].device;
  CopyIn();
  KernelContext context{host.spec, in,        out,        rooms_[of_scratch].device,
                        host.step, host.time, host.times, host.seed};
  Status status = stream_->Run(*kernel, context);
  Status end = CopyOut();
  return status.ok() ? end : status;
}

}  // namespace oneflow_like::gpu
