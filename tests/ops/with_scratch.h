// Kernels that bring the scratch which they state, as a plan gives it to them: as many bytes and no more,
// with what others left there.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "core/device/kernel.h"
#include "core/device/parallel_for.h"

namespace oneflow_like {

class WithScratch : public Kernel {
 public:
  WithScratch(const KernelRegistry& registry, const KernelSpec& spec, const std::string& device_kind)
      : spec_(spec),
        bytes_(registry.Scratch(spec, device_kind)),
        memory_(static_cast<char*>(std::aligned_alloc(64, allocated())), std::free),
        kernel_(registry.Make(spec, device_kind)) {
    std::fill_n(memory_.get() + bytes_, kBehind, kFilling);
  }

  Status Run(const KernelContext& context) override {
    std::fill_n(memory_.get(), bytes_, '\xff');  // NaN
    Status status = kernel_->Run({spec_, context.in, context.out, memory_.get(), context.step, context.time,
                                  context.times, context.seed});
    const char* behind = memory_.get() + bytes_;
    if (std::any_of(behind, behind + kBehind, [](char c) { return c != kFilling; }))
      return Status(spec_.name + " wrote behind its scratch");
    return status;
  }
  int64_t bytes() const { return bytes_; }
  int64_t allocated() const {
    return (bytes_ + kBehind + 63) / 64 * 64;
  }  // for the scratch and what is behind

 private:
  static constexpr int64_t kBehind = (16 << 10) + 1;
  static constexpr char kFilling = '\x5a';

  const KernelSpec spec_;
  const int64_t bytes_;
  const std::unique_ptr<char, void (*)(void*)> memory_;
  const std::unique_ptr<Kernel> kernel_;
};

// For the team of the calling thread.
inline std::unique_ptr<WithScratch> MakeWithScratch(const KernelRegistry& registry, KernelSpec spec,
                                                    const std::string& device_kind = "cpu") {
  spec.threads = ParallelThreads();
  return std::make_unique<WithScratch>(registry, spec, device_kind);
}

}  // namespace oneflow_like
