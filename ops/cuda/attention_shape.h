// One launch of attention or its gradient as device code sees it: extents, which keys a query sees, and what
// dropout keeps. Shared by the kernels on plain cores (attention.cu) and on tensor cores
// (attention_tensor.cu, attention_tensor_grad.cu).
#pragma once

#include "core/random.h"
#include "ops/attention_masks.h"
#include "ops/cuda/operand.h"

namespace oneflow_like::cuda {

// Positions or documents: an operand of integers [b i] or [i], or first + step * i.
struct PlaceView {
  IndexView operand;
  bool of_batch;
  int64_t length, first, step;

  OFL_DEVICE int64_t At(int64_t b, int64_t i) const {
    if (operand.data == nullptr) return first + step * i;
    return operand.At(of_batch ? b * length + i : i);
  }
};

struct AttentionShape {
  int64_t batch, heads, key_heads, group, queries, keys;
  int width, value_width;
  bool causal, packed;
  bool by_places;  // no operand says what a query sees: of local numbers, s sees keys up to s + shift if
                   // causal
  bool simple;     // and there is no window
  bool placed;     // no positions are given: what causal and a window hide, they hide by places
  int64_t shift, window;
  int least_distance, most_distance;  // by places, a query sees the keys that are at least the one and fewer
                                      // than the other behind it
  float scale, drop, keep;            // keep: DropRule::scale
  uint32_t drop_least;                // DropRule::least
  uint64_t random_key;
  int64_t batch_begin, head_begin, query_begin, key_begin;  // of the pieces, for draws
  int64_t global_heads, global_queries, global_keys;
  PlaceView query_positions, key_positions, query_documents, key_documents;
  const float* bias;
  BiasStrides bias_strides;
  bool bias_pairs;            // whether two of its elements for keys 2 t and 2 t + 1 may be read at once
  int64_t first_pair, pairs;  // of batch and head of queries, in this launch: whole groups in a gradient

  // Whether a query sees a key, by their positions and documents.
  OFL_DEVICE bool Sees(int64_t query, int64_t key, int64_t query_document, int64_t key_document) const {
    return (!causal || key <= query) && (window == 0 || key > query - window) &&
           query_document == key_document;
  }
};

// Rows of one head, `pitch` elements apart.
template <typename T>
struct HeadRows {
  const T* data;
  int64_t pitch;
  int count;  // in this tile
  int width;
  bool packed;  // whether neighbours may be read at once
};

// One head of a tensor [b, length, heads, width].
struct HeadView {
  int64_t begin, pitch, length;  // offset of position 0, and from one position to the next
  int width;
  bool packed;

  // Offset of element 0 of position i.
  OFL_DEVICE int64_t RowAt(int64_t i) const { return begin + i * pitch; }
  // At most `most` rows from `first` on.
  template <typename T>
  OFL_DEVICE HeadRows<T> Rows(const T* data, int64_t first, int most) const {
    int64_t left = length - first;
    return {data + RowAt(first), pitch, static_cast<int>(left < most ? left : most), width, packed};
  }
};
// Of head h of queries, and of the keys it shares.
OFL_DEVICE HeadView QueryView(const AttentionShape& shape, int64_t b, int64_t h, int width) {
  const int64_t pitch = shape.heads * width;
  return {b * shape.queries * pitch + h * width, pitch, shape.queries, width, shape.packed};
}
OFL_DEVICE HeadView KeyView(const AttentionShape& shape, int64_t b, int64_t h, int width) {
  const int64_t pitch = shape.key_heads * width;
  return {b * shape.keys * pitch + h / shape.group * width, pitch, shape.keys, width, shape.packed};
}

OFL_DEVICE bool Seen(const AttentionShape& shape, int64_t b, int64_t s, int64_t t) {
  if (s >= shape.queries || t >= shape.keys) return false;
  if (shape.simple) return !shape.causal || t <= s + shape.shift;
  return shape.Sees(shape.query_positions.At(b, s), shape.key_positions.At(b, t),
                    shape.query_documents.At(b, s), shape.key_documents.At(b, t));
}

// The number of a probability in the whole matrix of scores, by which draws go.
OFL_DEVICE int64_t DrawOf(const AttentionShape& shape, int64_t b, int64_t h, int64_t s, int64_t t) {
  int64_t index = (b + shape.batch_begin) * shape.global_heads + h + shape.head_begin;
  return (index * shape.global_queries + s + shape.query_begin) * shape.global_keys + t + shape.key_begin;
}

// --- Launches. `shape` is of the whole piece, with extents above 0 in the gradient.
// Operands in fp32, on the plain cores (attention.cu).
void LaunchPlainAttention(const AttentionShape& shape, const KernelContext& context,
                          const LaunchContext& launch);
Status LaunchPlainAttentionGrad(AttentionShape shape, const KernelContext& context,
                                const LaunchContext& launch);
// Operands in 16 bits, on tensor cores. The work space has TensorAttentionBytes (ops/attention_library.h).
Status LaunchTensorAttention(const AttentionShape& shape, const KernelContext& context,
                             const LaunchContext& launch);
Status LaunchTensorAttentionGrad(const AttentionShape& shape, const KernelContext& context,
                                 const LaunchContext& launch);
// Limits the bytes of dropout's bits that a launch on tensor cores keeps at once, for tests; one group of
// heads has as many as it needs.
void SetMostDropoutBytes(int64_t bytes);

}  // namespace oneflow_like::cuda
