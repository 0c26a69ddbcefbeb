// scan: the kernels of its body one after another on the stream, as many launches as there are steps times
// kernels; and linear_recurrence, a thread for each line.
//
// Floor of the recurrence, bytes: a, b and y once. With few lines use its chunks.
#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"
#include "ops/cuda/typed.h"
#include "ops/loop.h"

namespace oneflow_like::cuda {
namespace {

template <typename Word>
OFL_KERNEL void CopyWords(Word* to, int64_t to_stride, const Word* from, int64_t from_stride, int64_t rows,
                          int64_t words) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * words; i += step)
    to[i / words * to_stride + i % words] = from[i / words * from_stride + i % words];
}

OFL_KERNEL void AddPart(double* sum, const void* part, DType dtype, int64_t count, bool first) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    sum[i] = (first ? 0.0 : sum[i]) + LoadReal(part, dtype, i);
}

OFL_KERNEL void RoundSums(void* to, const double* sum, DType dtype, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    StoreReal(to, dtype, i, sum[i]);
}

// On the stream of one launch.
class StreamLoop : public LoopDevice {
 public:
  explicit StreamLoop(const LaunchContext& launch) : launch_(launch) {}

  Status Run(Kernel* kernel, const KernelContext& context) override {
    return static_cast<CudaKernel*>(kernel)->Launch(context, launch_);
  }
  Status Copy(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t rows,
              int64_t bytes) override {
    const uint64_t all = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) |
                         static_cast<uint64_t>(to_stride | from_stride | bytes);
    if (all % 8 == 0) return CopyAs<uint64_t>(to, to_stride, from, from_stride, rows, bytes);
    if (all % 4 == 0) return CopyAs<uint32_t>(to, to_stride, from, from_stride, rows, bytes);
    if (all % 2 == 0) return CopyAs<uint16_t>(to, to_stride, from, from_stride, rows, bytes);
    return CopyAs<uint8_t>(to, to_stride, from, from_stride, rows, bytes);
  }
  Status Add(double* sum, const TensorArg& part, bool first) override {
    Launch(AddPart, GridFor(part.elements()), launch_.stream, sum, part.data, part.dtype, part.elements(),
           first);
    return Status();
  }
  Status Round(const TensorArg& to, const double* sum) override {
    Launch(RoundSums, GridFor(to.elements()), launch_.stream, to.data, sum, to.dtype, to.elements());
    return Status();
  }

 private:
  Grid GridFor(int64_t count) const { return {.x = BlocksFor(count, 256, launch_.multiprocessors)}; }
  template <typename Word>
  Status CopyAs(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t rows,
                int64_t bytes) {
    const auto size = static_cast<int64_t>(sizeof(Word));
    Launch(CopyWords<Word>, GridFor(rows * bytes / size), launch_.stream, static_cast<Word*>(to),
           to_stride / size, static_cast<const Word*>(from), from_stride / size, rows, bytes / size);
    return Status();
  }

  const LaunchContext& launch_;
};

class LoopKernel : public CudaKernel {
 public:
  LoopKernel(const KernelSpec& spec, const InnerKernels& kernels) : loop_(spec, kernels) {}
  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    StreamLoop device(launch);
    return loop_.Run(context, &device);
  }
  bool Recordable() const override {
    for (Kernel* kernel : loop_.kernels())
      if (!static_cast<CudaKernel*>(kernel)->Recordable()) return false;
    return true;
  }
  std::string Explain(const Fault& fault) const override {
    return Cat("a value in a step of the loop is ", fault.value, ", out of range");
  }

 private:
  Loop loop_;
};

OFL_KERNEL void RecurLines(const void* a, const void* b, const void* first, void* y, DType dtype,
                           int64_t lines, int64_t along, int64_t inner, bool reverse) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t line = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; line < lines; line += step) {
    float h = LoadReal(first, dtype, line);
    for (int64_t i = 0; i < along; ++i) {
      const int64_t place = reverse ? along - 1 - i : i;
      const int64_t at = (line / inner * along + place) * inner + line % inner;
      h = LoadReal(a, dtype, at) * h + LoadReal(b, dtype, at);
      StoreReal(y, dtype, at, h);
    }
  }
}

Status LinearRecurrence(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg& a = context.in[0];
  const int axis = static_cast<int>(context.spec.attrs.Int("axis"));
  if (a.elements() == 0) return Status();
  int64_t inner = 1;
  for (int i = axis + 1; i < a.extent.rank(); ++i) inner *= a.extent[i];
  const int64_t lines = a.elements() / a.extent[axis];
  Launch(RecurLines, Grid{.x = BlocksFor(lines, 128, launch.multiprocessors), .threads = 128}, launch.stream,
         a.data, context.in[1].data, context.in[2].data, context.out[0].data, a.dtype, lines, a.extent[axis],
         inner, context.spec.attrs.Int("reverse", 0) != 0);
  return Status();
}

}  // namespace

void AddLoopKernels(KernelRegistry* registry) {
  registry->AddComposed(
      "scan", "cuda",
      [](const KernelSpec& spec, const InnerKernels& kernels) -> std::unique_ptr<Kernel> {
        return std::make_unique<LoopKernel>(spec, kernels);
      },
      Loop::Scratch);
  registry->Add("linear_recurrence", "cuda", MakeLaunchKernel(LinearRecurrence));
}

}  // namespace oneflow_like::cuda
