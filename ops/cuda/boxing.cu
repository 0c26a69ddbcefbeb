// The kernels of local boxing on a device (ops/boxing_kernels.cc): what they decide by the micro-batch they
// decide on the device, so that a recorded launch serves all of them.
#include "ops/cuda/combine.h"
#include "ops/cuda/kernel.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/move.h"

namespace oneflow_like::cuda {
namespace {

Piece PieceOf(const TensorArg& arg) { return {arg.data, {arg.begin, arg.extent}}; }

Status Accumulate(const KernelContext& c, const LaunchContext& launch) {
  Piece from[2] = {PieceOf(c.out[0]), PieceOf(c.in[0])};
  LaunchAccumulate(c.in[0].dtype, ParseReduce(c.spec.attrs.Str("fold")), from[0].box, from, from[0], launch);
  return Status();
}

// S to B over time: the micro-batch's part in its place.
Status TimeGather(const KernelContext& c, const LaunchContext& launch) {
  const Piece from = PieceOf(c.in[0]), to = PieceOf(c.out[0]);
  if (!from.box.empty()) LaunchCopyBox(c.in[0].dtype, from.box, from, to, When::kAlways, launch);
  return Status();
}

// out = in where this rank has it and keeps it (`when`), the identity of the fold elsewhere.
Status Reslice(const KernelContext& c, const LaunchContext& launch, When when) {
  Piece from = PieceOf(c.in[0]), to = PieceOf(c.out[0]);
  DType dtype = c.in[0].dtype;
  Box common = from.box.Intersect(to.box);
  bool keep = c.spec.attrs.Int("keep") != 0 && !common.empty();
  ElementBits identity = IdentityOf(dtype, ParseReduce(c.spec.attrs.Str("fold")));
  bool covered = keep && common == to.box;
  if (!covered) LaunchFillBox(dtype, to.box, identity, to, When::kAlways, launch);
  if (covered && when == When::kFirst) LaunchFillBox(dtype, to.box, identity, to, When::kLater, launch);
  if (keep) LaunchCopyBox(dtype, common, from, to, when, launch);
  return Status();
}

Status LocalSlice(const KernelContext& c, const LaunchContext& launch) {
  return Reslice(c, launch, When::kAlways);
}
// B to P over time: the first micro-batch keeps the value.
Status Keep(const KernelContext& c, const LaunchContext& launch) { return Reslice(c, launch, When::kFirst); }

}  // namespace

void AddBoxingCudaKernels(KernelRegistry* registry) {
  auto add = [registry](const char* name, LaunchFn fn) { registry->Add(name, "cuda", MakeLaunchKernel(fn)); };
  add("accumulate", Accumulate);
  add("local_slice", LocalSlice);
  add("time_slice", LocalSlice);
  add("time_gather", TimeGather);
  add("keep", Keep);
}

}  // namespace oneflow_like::cuda
