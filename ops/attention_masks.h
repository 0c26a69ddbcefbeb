// The optional operands of attention and its gradient: which of them are present, their layout, and the keys
// that a query sees. Shared by the table entry, the reference kernel and the kernels of all devices.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/device/kernel.h"
#include "core/host_device.h"

namespace oneflow_like {

// Operand numbers of the optional operands, -1 for absent ones. The attribute "masks" lists the present ones,
// separated by spaces; they follow the other operands in this order.
struct AttentionMasks {
  int bias = -1;                                 // f32, broadcast to [b (h g) s t], added to the scores
  int query_positions = -1, key_positions = -1;  // of integers, [b s] or [s], [b t] or [t]
  int query_documents = -1, key_documents = -1;  // the same; a query sees keys of its own document
  int count = 0;
  bool causal = false;
  int64_t window = 0;  // 0: none

  bool Positions() const { return query_positions >= 0 || key_positions >= 0; }
  bool Documents() const { return query_documents >= 0; }
  // Whether only the causal mask by places decides if a key is seen, or all keys are seen.
  bool Simple() const { return window == 0 && !Positions() && !Documents(); }
  bool Sees(int64_t query, int64_t key, int64_t query_document, int64_t key_document) const {
    return (!causal || key <= query) && (window == 0 || key > query - window) &&
           query_document == key_document;
  }
};

inline constexpr const char* kAttentionMasks[] = {"bias", "query_positions", "key_positions",
                                                  "query_documents", "key_documents"};

// `first`: the number of the first optional operand. Unknown names are ignored.
inline AttentionMasks MasksOf(const Attrs& attrs, int first) {
  AttentionMasks masks;
  masks.causal = attrs.Int("causal", 0) != 0;
  masks.window = attrs.Int("window", 0);
  if (!attrs.Has("masks")) return masks;
  const std::string& text = attrs.Str("masks");
  int* numbers[] = {&masks.bias, &masks.query_positions, &masks.key_positions, &masks.query_documents,
                    &masks.key_documents};
  for (int i = 0; i < 5; ++i) {
    if (text.find(kAttentionMasks[i]) != std::string::npos) *numbers[i] = first + masks.count++;
  }
  return masks;
}

// The position or document of query or key i of batch b, local numbers: an element of [b i] or [i]. If the
// operand is absent: `first` + i, or always 0 for documents.
struct MaskRow {
  const TensorArg* operand = nullptr;
  int64_t first = 0, step = 1;

  int64_t At(int64_t b, int64_t i) const {
    if (operand == nullptr) return first + step * i;
    int64_t at = operand->extent.rank() == 2 ? b * operand->extent[1] + i : i;
    return operand->dtype == DType::kInt64 ? operand->as<int64_t>()[at] : operand->as<int32_t>()[at];
  }
};
struct MaskRows {
  MaskRow query_positions, key_positions, query_documents, key_documents;
};
// Without positions queries and keys are aligned at their ends: query s of S is at s + T - S.
inline MaskRows MaskRowsOf(const AttentionMasks& masks, std::span<const TensorArg> in, const TensorArg& q,
                           const TensorArg& k) {
  auto row = [&](int number, int64_t first, int64_t step) {
    return MaskRow{number < 0 ? nullptr : &in[number], first, step};
  };
  return {row(masks.query_positions, q.begin[1] + k.global[1] - q.global[1], 1),
          row(masks.key_positions, k.begin[1], 1), row(masks.query_documents, 0, 0),
          row(masks.key_documents, 0, 0)};
}

// Elements between neighbours of a bias along b, (h g), s and t; 0 where it is broadcast.
struct BiasStrides {
  int64_t at[4] = {};

  OFL_HOST_DEVICE int64_t Offset(int64_t b, int64_t h, int64_t s, int64_t t) const {
    return b * at[0] + h * at[1] + s * at[2] + t * at[3];
  }
};
inline BiasStrides StridesOf(const TensorArg& bias) {
  BiasStrides strides;
  int64_t stride = 1;
  for (int axis = bias.extent.rank() - 1, to = 3; axis >= 0; --axis, --to) {
    strides.at[to] = bias.global[axis] == 1 ? 0 : stride;
    stride *= bias.extent[axis];
  }
  return strides;
}

}  // namespace oneflow_like
