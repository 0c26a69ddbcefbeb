// cumsum, flip, arange and micro_batch_index. A line of cumsum is a block's: tiles of 256 elements are
// scanned by shuffles, and the sum so far goes on to the next; where there are lines enough each is a
// thread's, which keeps neighbours together. Sums are made in fp64 or i64, in an order that depends on the
// shape alone.
//
// Floor, bytes: x once, y once.
#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"
#include "ops/cuda/typed.h"

namespace oneflow_like::cuda {
namespace {

struct Lines {
  const void* x;
  void* y;
  DType dtype;
  int64_t count, along, inner;
  bool reverse, exclusive;

  OFL_DEVICE int64_t Offset(int64_t line, int64_t at) const {
    return (line / inner * along + (reverse ? along - 1 - at : at)) * inner + line % inner;
  }
};

OFL_DEVICE void LoadAs(const void* from, DType dtype, int64_t at, double* value) {
  *value = LoadReal(from, dtype, at);
}
OFL_DEVICE void LoadAs(const void* from, DType dtype, int64_t at, int64_t* value) {
  *value = LoadInteger(from, dtype, at);
}

template <typename V>
OFL_KERNEL void SumLines(Lines lines) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t line = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; line < lines.count; line += step) {
    V sum = 0;
    for (int64_t i = 0; i < lines.along; ++i) {
      const int64_t offset = lines.Offset(line, i);
      V own;
      LoadAs(lines.x, lines.dtype, offset, &own);
      StoreNumber(lines.y, lines.dtype, offset, lines.exclusive ? sum : sum + own);
      sum += own;
    }
  }
}

template <typename V>
OFL_KERNEL void ScanLines(Lines lines) {
  OFL_SHARED V sums[32];  // of the block's warps
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    V carry = 0;
    for (int64_t tile = 0; tile < lines.along; tile += blockDim.x) {
      const int64_t i = tile + threadIdx.x;
      V own = 0;
      if (i < lines.along) LoadAs(lines.x, lines.dtype, lines.Offset(line, i), &own);
      V sum = own;
      for (int by = 1; by < 32; by <<= 1) {
        V before = __shfl_up_sync(0xFFFFFFFFu, sum, by);
        if (lane >= by) sum += before;
      }
      if (lane == 31) sums[warp] = sum;
      __syncthreads();
      V earlier = carry;
      for (int w = 0; w < warps; ++w) {
        if (w < warp) earlier += sums[w];
        carry += sums[w];
      }
      if (i < lines.along)
        StoreNumber(lines.y, lines.dtype, lines.Offset(line, i),
                    earlier + (lines.exclusive ? sum - own : sum));
      __syncthreads();
    }
  }
}

Lines LinesOf(const KernelContext& context) {
  const TensorArg& x = context.in[0];
  const Attrs& attrs = context.spec.attrs;
  const int axis = static_cast<int>(attrs.Int("axis"));
  Lines lines{x.data,
              context.out[0].data,
              x.dtype,
              0,
              x.extent[axis],
              1,
              attrs.Int("reverse", 0) != 0,
              attrs.Int("exclusive", 0) != 0};
  for (int i = axis + 1; i < x.extent.rank(); ++i) lines.inner *= x.extent[i];
  lines.count = x.elements() == 0 ? 0 : x.elements() / lines.along;
  return lines;
}

Status Cumsum(const KernelContext& context, const LaunchContext& launch) {
  const Lines lines = LinesOf(context);
  if (lines.count == 0) return Status();
  const bool by_thread = lines.along <= 32 || (lines.inner >= 32 && lines.count >= 2048);
  const bool real = lines.dtype == DType::kFloat32 || SizeOf(lines.dtype) == 2;
  if (by_thread) {
    Grid grid{.x = BlocksFor(lines.count, 128, launch.multiprocessors), .threads = 128};
    Launch(real ? SumLines<double> : SumLines<int64_t>, grid, launch.stream, lines);
  } else {
    Grid grid{.x = BlocksFor(lines.count, 1, launch.multiprocessors)};
    Launch(real ? ScanLines<double> : ScanLines<int64_t>, grid, launch.stream, lines);
  }
  return Status();
}

template <typename Word>
OFL_KERNEL void FlipWords(const Word* x, Word* y, int64_t count, int64_t along, int64_t inner) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int64_t row = i / inner, s = row % along;
    y[i] = x[(row - s + along - 1 - s) * inner + i % inner];
  }
}

Status Flip(const KernelContext& context, const LaunchContext& launch) {
  const Lines lines = LinesOf(context);
  auto run = [&](auto word) {
    using Word = decltype(word);
    const int64_t count = lines.count * lines.along;
    Launch(FlipWords<Word>, Grid{.x = BlocksFor(count, 256, launch.multiprocessors)}, launch.stream,
           static_cast<const Word*>(lines.x), static_cast<Word*>(lines.y), count, lines.along, lines.inner);
  };
  switch (SizeOf(lines.dtype)) {
    case 1:
      run(uint8_t{});
      break;
    case 2:
      run(uint16_t{});
      break;
    case 4:
      run(uint32_t{});
      break;
    default:
      run(uint64_t{});
  }
  return Status();
}

OFL_KERNEL void PutSteps(void* y, DType dtype, int64_t count, double begin, double step, int64_t first) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    StoreReal(y, dtype, i, begin + step * static_cast<double>(first + i));
}

Status Arange(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg& y = context.out[0];
  const Attrs& attrs = context.spec.attrs;
  Launch(PutSteps, Grid{.x = BlocksFor(y.elements(), 256, launch.multiprocessors)}, launch.stream, y.data,
         y.dtype, y.elements(), attrs.Float("begin"), attrs.Float("step"), y.begin[0]);
  return Status();
}

OFL_KERNEL void PutMicroBatch(const ActState* act, int64_t* y) {
  if (threadIdx.x == 0) *y = act->time;
}

Status MicroBatchIndex(const KernelContext& context, const LaunchContext& launch) {
  Launch(PutMicroBatch, Grid{.threads = 32}, launch.stream, launch.act, context.out[0].as<int64_t>());
  return Status();
}

}  // namespace

void AddScanKernels(KernelRegistry* registry) {
  registry->Add("cumsum", "cuda", MakeLaunchKernel(Cumsum));
  registry->Add("flip", "cuda", MakeLaunchKernel(Flip));
  registry->Add("arange", "cuda", MakeLaunchKernel(Arange));
  registry->Add("micro_batch_index", "cuda", MakeLaunchKernel(MicroBatchIndex));
}

}  // namespace oneflow_like::cuda
