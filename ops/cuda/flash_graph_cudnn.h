// Attention as cuDNN's operation graphs, and the plans that serve a shape: for the device of a handle, or for
// one that is only described, so that a test without a card builds what a card will run.
#pragma once

#include <string>
#include <vector>

#include "ops/cuda/flash.h"
#include "ops/cuda/graph_cudnn.h"

namespace oneflow_like::cuda {

// Numbers of the tensors that are memory of the caller, or numbers in host memory.
enum FlashId : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kDelta,
  kScale,
  kLowest,
  kOne,
  kKeys,
  kQueries,
  kWindow,
  kMask
};

// Part of a shape: some of its sequences, or some heads of one sequence. Strides are those of the whole.
struct FlashPart {
  FlashShape shape;  // batch and heads of the part, with the heads of keys that they read
  int64_t all_heads = 0, all_key_heads = 0;
  int64_t lse_alignment = 16;  // of the first log-sum-exp of every such part, in bytes

  Extents Query() const { return {shape.batch, shape.heads, shape.queries, shape.width}; }
  Extents Key() const { return {shape.batch, shape.key_heads, shape.keys, shape.width}; }
  // Gradients of keys before those of the heads that share them are added up.
  Extents KeyOfEach() const { return {shape.batch, shape.heads, shape.keys, shape.width}; }
  Extents Score() const { return {shape.batch, shape.heads, shape.queries, shape.keys}; }
  Extents Mask() const { return {shape.masks == 1 ? 1 : shape.batch, 1, shape.queries, shape.keys}; }
  Extents Row() const { return {shape.batch, shape.heads, shape.queries, 1}; }
  Extents QueryStrides() const { return Strides(all_heads, shape.queries); }
  Extents KeyStrides() const { return Strides(all_key_heads, shape.all_keys); }
  // Row sums of dO * O, at the beginning of the work space.
  int64_t DeltaBytes() const {
    if (!shape.backward) return 0;
    return (shape.batch * shape.heads * shape.queries * int64_t{sizeof(float)} + 255) / 256 * 256;
  }

 private:
  // [b s h d] seen as [b h s d].
  Extents Strides(int64_t heads, int64_t length) const {
    int64_t row = heads * shape.width;
    return {length * row, shape.width, row, 1};
  }
};

struct FlashPlan {
  FlashPart part;
  CudnnPtr plan;
};

// One launch: `plan` (of FlashPlans) on the part that begins at sequence `batch` and head `head`.
struct FlashLaunch {
  int plan = 0;
  int64_t batch = 0, head = 0;
};

// The plans that serve a shape within a work space: parts of one size, and where they do not go up a smaller
// remainder.
struct FlashPlans {
  std::vector<FlashPlan> plans;  // one or two; none where cuDNN does not take the shape
  std::vector<FlashLaunch> launches;
  std::string refused;  // why there are none
};
FlashPlans MakeFlashPlans(const FlashShape& shape, size_t room, const CudnnTarget& target);

}  // namespace oneflow_like::cuda
