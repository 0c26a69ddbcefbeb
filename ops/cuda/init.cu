// Tensors from nothing on a device: full, and the random initialisers, which draw what the reference draws
// (ops/constant.cc): in double, since they run once.
#include <cmath>

#include "core/random.h"
#include "ops/cuda/kernel.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/move.h"
#include "ops/cuda/operand.h"
#include "ops/cuda/walk.h"
#include "ops/inverse_normal.h"

namespace oneflow_like::cuda {
namespace {

enum class Law : int32_t { kUniform, kNormal };

// An element whose draw is u has the value offset + scale * f(first + length * u), f the identity or the
// inverse of the normal distribution function.
struct DrawParams {
  Law law;
  double offset, scale, first, length;
  uint64_t key;
  int64_t count, begin;  // begin: global index of the piece's first element
  Extents extents;
  Strides global;
  FloatView y;
};

OFL_KERNEL void DrawElements(DrawParams p) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step) {
    int64_t index = p.begin + OffsetAt(PlaceOf(p.extents, i), p.extents, p.global);
    double u = (RandomBits(p.key, 0, static_cast<uint64_t>(index)) + 0.5) / 4294967296.0;
    u = p.first + p.length * u;
    p.y.Put(i, static_cast<float>(p.offset + p.scale * (p.law == Law::kNormal ? InverseNormalAt(u) : u)));
  }
}

void LaunchDraw(DrawParams p, const KernelContext& context, const LaunchContext& launch) {
  const TensorArg& y = context.out[0];
  p.count = y.elements();
  if (p.count == 0) return;
  p.key = RandomKey(context.seed, static_cast<uint64_t>(context.spec.attrs.Int("key")));
  for (int axis = 0; axis < y.global.rank(); ++axis) p.begin = p.begin * y.global[axis] + y.begin[axis];
  p.extents = ExtentsOf(y.extent);
  p.global = StridesOf(y.global);
  MergeAxes(&p.extents, &p.global, 1);
  p.y = FloatsOf(y);
  Launch(DrawElements, Grid{BlocksFor(p.count, 256, launch.multiprocessors), 1, 256, 0}, launch.stream, p);
}

Status Uniform(const KernelContext& context, const LaunchContext& launch) {
  double low = context.spec.attrs.Float("low"), high = context.spec.attrs.Float("high");
  LaunchDraw({Law::kUniform, low, high - low, 0, 1, 0, 0, 0, {}, {}, {}}, context, launch);
  return Status();
}

Status NormalBetween(const KernelContext& context, const LaunchContext& launch, double below) {
  double mean = context.spec.attrs.Float("mean"), stddev = context.spec.attrs.Float("stddev");
  LaunchDraw({Law::kNormal, mean, stddev, below, 1 - 2 * below, 0, 0, 0, {}, {}, {}}, context, launch);
  return Status();
}
Status Normal(const KernelContext& context, const LaunchContext& launch) {
  return NormalBetween(context, launch, 0);
}
Status TruncatedNormal(const KernelContext& context, const LaunchContext& launch) {
  return NormalBetween(context, launch, 0.5 * std::erfc(std::sqrt(2.0)));  // what lies below -2
}

// The literal lies in the attributes, in host memory that lives as long as the plan.
// The piece of the values that is wanted here. A row is the innermost axis that is cut and all behind it;
// rows of axes that are whole follow one another and are one copy, and other axes are gone through.
Status Literal(const KernelContext& context, const LaunchContext& launch) {
  const Blob& values = context.spec.attrs.Bytes("values");
  if (values.data() == nullptr)
    return Status("the values of this literal are not in the text it was read from");
  const TensorArg& y = context.out[0];
  if (y.elements() == 0) return Status();
  const auto whole = [&](int axis) { return y.extent[axis] == y.global[axis]; };
  int axis = y.extent.rank();
  size_t width = SizeOf(y.dtype), pitch = width;
  for (bool cut = false; axis > 0 && !cut;) {
    cut = !whole(--axis);
    width = pitch * y.extent[axis];
    pitch *= y.global[axis];
  }
  size_t rows = 1;
  int outer = axis;
  while (outer > 0 && (outer == axis || whole(outer))) rows *= y.extent[--outer];
  int64_t copies = 1;
  for (int a = 0; a < outer; ++a) copies *= y.extent[a];
  for (int64_t copy = 0; copy < copies; ++copy) {
    // The first element of the copy, in the whole tensor.
    int64_t first = 0, stride = 1, rest = copy;
    for (int a = y.extent.rank() - 1; a >= 0; --a) {
      const int64_t index = a < outer ? rest % y.extent[a] : 0;
      if (a < outer) rest /= y.extent[a];
      first += (y.begin[a] + index) * stride;
      stride *= y.global[a];
    }
    cudaMemcpy2DAsync(static_cast<char*>(y.data) + copy * rows * width, width,
                      static_cast<const char*>(values.data()) + first * SizeOf(y.dtype), pitch, width, rows,
                      cudaMemcpyHostToDevice, launch.stream);
  }
  return Status();
}

Status Full(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg& y = context.out[0];
  Piece piece{y.data, {y.begin, y.extent}};
  LaunchFillBox(y.dtype, piece.box, BitsOf(y.dtype, context.spec.attrs.Float("value")), piece, When::kAlways,
                launch);
  return Status();
}

}  // namespace

void AddInitKernels(KernelRegistry* registry) {
  auto add = [registry](const char* name, LaunchFn fn) { registry->Add(name, "cuda", MakeLaunchKernel(fn)); };
  add("full", Full);
  add("constant", Literal);
  add("uniform", Uniform);
  add("normal", Normal);
  add("truncated_normal", TruncatedNormal);
}

}  // namespace oneflow_like::cuda
