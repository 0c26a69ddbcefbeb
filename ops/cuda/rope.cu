// rope: a thread for each pair of elements of a position, whose angle it computes in double once and turns
// all heads by. Neighbouring threads read neighbouring elements.
#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"
#include "ops/cuda/walk.h"
#include "ops/rope.h"

namespace oneflow_like::cuda {
namespace {

struct RopeShape {
  RopeTurns turns;
  int64_t rows, length, heads, width;  // rows: of batch and position
  bool of_batch;                       // positions are [b s]
};

// Loads of so many heads are on their way at a time: the results may lie where the operand does, so that the
// compiler moves none of them over a store.
constexpr int kHeadsAtOnce = 4;

template <typename T>
OFL_KERNEL void RopeKernel(RopeShape shape, IndexView positions, const T* x, T* y) {
  int64_t pairs = shape.turns.dims / 2, lanes = shape.width - pairs;  // a lane for each element that passes
  int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < shape.rows * lanes; i += threads) {
    int64_t row = i / lanes, lane = i % lanes, at = row * shape.heads * shape.width;
    if (lane >= pairs) {
      at += shape.turns.dims + lane - pairs;
      for (int64_t h = 0; h < shape.heads; ++h, at += shape.width) y[at] = x[at];
      continue;
    }
    int64_t position = positions.At(shape.of_batch ? row : row % shape.length);
    double angle = static_cast<double>(position) * shape.turns.Frequency(lane);
    float c = static_cast<float>(::cos(angle)), s = static_cast<float>(::sin(angle));
    int64_t first = at + shape.turns.First(lane), second = at + shape.turns.Second(lane);
    for (int64_t h = 0; h < shape.heads; h += kHeadsAtOnce) {
      float a[kHeadsAtOnce], b[kHeadsAtOnce];
      OFL_UNROLL
      for (int j = 0; j < kHeadsAtOnce; ++j) {
        const bool here = h + j < shape.heads;
        a[j] = here ? Load(x[first + j * shape.width]) : 0.0f;
        b[j] = here ? Load(x[second + j * shape.width]) : 0.0f;
      }
      OFL_UNROLL
      for (int j = 0; j < kHeadsAtOnce; ++j) {
        if (h + j >= shape.heads) break;
        y[first + j * shape.width] = Store<T>(a[j] * c - b[j] * s);
        y[second + j * shape.width] = Store<T>(b[j] * c + a[j] * s);
      }
      first += kHeadsAtOnce * shape.width;
      second += kHeadsAtOnce * shape.width;
    }
  }
}

Status Rope(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &positions = context.in[1];
  RopeShape shape = {TurnsOf(context.spec.attrs, x.extent[3]),
                     x.extent[0] * x.extent[1],
                     x.extent[1],
                     x.extent[2],
                     x.extent[3],
                     positions.extent.rank() == 2};
  if (x.elements() == 0) return Status();
  int64_t lanes = shape.rows * (shape.width - shape.turns.dims / 2);
  Grid grid{BlocksFor(lanes, 256, launch.multiprocessors), 1, 256, 0};
  WithFloating(x.dtype, [&](auto t) {
    using T = decltype(t);
    cuda::Launch(RopeKernel<T>, grid, launch.stream, shape, IndicesOf(positions), x.as<T>(),
                 context.out[0].as<T>());
  });
  return Status();
}

}  // namespace

void AddRopeKernels(KernelRegistry* registry) { registry->Add("rope", "cuda", MakeLaunchKernel(Rope)); }

}  // namespace oneflow_like::cuda
