// Kernels without state, and which kernels may go together.
#include "ops/cuda/kernel.h"

#include <algorithm>
#include <vector>

namespace oneflow_like::cuda {
namespace {

class FunctionKernel : public CudaKernel {
 public:
  explicit FunctionKernel(LaunchFn fn) : fn_(fn) {}
  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    return fn_(context, launch);
  }

 private:
  LaunchFn fn_;
};

}  // namespace

bool Independent(std::span<const KernelRun> runs) {
  struct Range {
    uintptr_t begin, end;
    bool written;
  };
  std::vector<Range> ranges;
  for (const KernelRun& run : runs) {
    const size_t own = ranges.size();
    auto add = [&](const TensorArg& arg, bool written) {
      const auto begin = reinterpret_cast<uintptr_t>(arg.data);
      const uintptr_t end = begin + static_cast<size_t>(arg.elements()) * SizeOf(arg.dtype);
      // Read and written in place by one kernel.
      auto same = [&](const Range& range) { return range.begin == begin && range.end == end; };
      if (begin == end || (!written && std::any_of(ranges.begin() + own, ranges.end(), same))) return;
      ranges.push_back({begin, end, written});
    };
    for (const TensorArg& arg : run.context.out) add(arg, true);
    for (const TensorArg& arg : run.context.in) add(arg, false);
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  uintptr_t end = 0, written_end = 0;  // furthest of the ranges so far
  for (const Range& range : ranges) {
    if (range.begin < written_end || (range.written && range.begin < end)) return false;
    end = std::max(end, range.end);
    if (range.written) written_end = std::max(written_end, range.end);
  }
  return true;
}

KernelFactory MakeLaunchKernel(LaunchFn fn) {
  return [fn](const KernelSpec&) -> std::unique_ptr<Kernel> { return std::make_unique<FunctionKernel>(fn); };
}

}  // namespace oneflow_like::cuda
