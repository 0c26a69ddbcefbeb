// The kernels of local boxing: what a rank does alone when the layout of a value changes. They are the same
// on every host; their names are those of the compiler's nodes.
#include "core/boxes/copy_box.h"
#include "ops/manifest.h"
#include "ops/op.h"

namespace oneflow_like {

namespace {

Piece PieceOf(const TensorArg& arg) { return {arg.data, {arg.begin, arg.extent}}; }

// P to B over time: the first micro-batch writes, later ones are combined with it.
Status Accumulate(const KernelContext& c) {
  Piece from[2] = {PieceOf(c.out[0]), PieceOf(c.in[0])};
  Piece to = from[0];
  Reduce fold = ParseReduce(c.spec.attrs.Str("fold"));
  if (c.time == 0)
    CopyBox(c.in[0].dtype, to.box, from[1], to);
  else
    CombineBox(c.in[0].dtype, fold, to.box, from, 2, &to, 1);
  return Status();
}

// S to B over time: the micro-batch's part in its place; the other acts write the rest.
Status TimeGather(const KernelContext& c) {
  const Piece from = PieceOf(c.in[0]), to = PieceOf(c.out[0]);
  if (!from.box.empty()) CopyBox(c.in[0].dtype, from.box, from, to);
  return Status();
}

// out = in where this rank has it and keeps it, the identity of the fold elsewhere.
Status Reslice(const KernelContext& c, bool keep) {
  Piece from = PieceOf(c.in[0]), to = PieceOf(c.out[0]);
  Box common = from.box.Intersect(to.box);
  if (!keep || !(common == to.box))
    CombineBox(c.in[0].dtype, ParseReduce(c.spec.attrs.Str("fold")), to.box, nullptr, 0, &to, 1);
  if (keep && !common.empty()) CopyBox(c.in[0].dtype, common, from, to);
  return Status();
}

Status LocalSlice(const KernelContext& c) { return Reslice(c, c.spec.attrs.Int("keep") != 0); }
// B to P over time: the first micro-batch keeps the value.
Status Keep(const KernelContext& c) { return Reslice(c, c.spec.attrs.Int("keep") != 0 && c.time == 0); }

}  // namespace

void AddBoxingKernels(KernelRegistry* registry) {
  registry->Add("accumulate", "reference", Accumulate);
  registry->Add("local_slice", "reference", LocalSlice);
  registry->Add("time_slice", "reference", LocalSlice);
  registry->Add("time_gather", "reference", TimeGather);
  registry->Add("keep", "reference", Keep);
}

}  // namespace oneflow_like
