// Shared by attention and its gradient: the numbers of one call, and the tile on which they work. A tile is
// 64 keys by 64 queries with the queries along the vector lanes: softmax along the keys then works lane by
// lane, and of all operands only the block of queries (and of output gradients) has to be transposed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/device/kernel.h"
#include "core/random.h"
#include "ops/attention_masks.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/kernels.h"
#include "ops/scalar.h"

namespace oneflow_like::cpu {

constexpr int64_t kLanes = 64;      // queries of a tile
constexpr int64_t kTileKeys = 64;   // keys of a tile
constexpr int64_t kMaxWidth = 256;  // of a head

// What scratch depends on, of a use whose query operand has the number `q`.
struct AttentionExtents {
  int64_t keys, width, value_width;
  int64_t tile_keys;       // at most, of a tile
  bool drops, wide;        // with dropout; operands of 16-bit types, which are widened tile by tile
  template <typename Use>  // KernelSpec or KernelContext
  AttentionExtents(const Use& use, const Attrs& attrs, int q)
      : keys(use.in[q + 1].extent[1]),
        width(use.in[q].extent[3]),
        value_width(use.in[q + 2].extent[3]),
        tile_keys(std::min(keys, kTileKeys)),
        drops(attrs.Float("dropout", 0) > 0),
        wide(use.in[q].dtype != DType::kFloat32) {}
};

// In how many parts attention is cut, of so many threads: blocks of queries of a head, or heads of keys.
inline int64_t PartsByQueries(const KernelSpec& spec, int q) {
  const Dims& x = spec.in[q].extent;
  return std::clamp<int64_t>(x[0] * x[2] * ((x[1] + kLanes - 1) / kLanes), 1, spec.threads);
}
inline int64_t PartsByHeads(const KernelSpec& spec, int q) {
  return std::clamp<int64_t>(spec.in[q].extent[0] * spec.in[q + 1].extent[2], 1, spec.threads);
}

struct AttentionCall {
  const TensorArg &q, &k;
  int64_t batch, queries, keys, heads, key_heads, group, width, value_width;
  int64_t q_row, k_row, v_row, o_row;  // elements from one position to the next
  float scale;
  AttentionMasks masks;
  MaskRows mask_rows;
  const float* bias = nullptr;
  BiasStrides bias_strides;
  double drop;
  DropRule rule;
  uint64_t random_key, step;

  // `first`: the number of the operand q, which k and v follow; `first_mask`: of the first optional one.
  AttentionCall(const KernelContext& context, int first, int first_mask)
      : q(context.in[first]), k(context.in[first + 1]) {
    const Attrs& attrs = context.spec.attrs;
    const TensorArg& v = context.in[first + 2];
    batch = q.extent[0];
    queries = q.extent[1];
    heads = q.extent[2];
    width = q.extent[3];
    keys = k.extent[1];
    key_heads = k.extent[2];
    group = key_heads == 0 ? 0 : heads / key_heads;
    value_width = v.extent[3];
    q_row = heads * width;
    k_row = key_heads * width;
    v_row = key_heads * value_width;
    o_row = heads * value_width;
    double factor = attrs.Float("scale", 0);
    scale = static_cast<float>(factor == 0 ? 1 / std::sqrt(static_cast<double>(q.global[3])) : factor);
    masks = MasksOf(attrs, first_mask);
    mask_rows = MaskRowsOf(masks, context.in, q, k);
    if (masks.bias >= 0) {
      bias = context.in[masks.bias].as<float>();
      bias_strides = StridesOf(context.in[masks.bias]);
    }
    drop = attrs.Float("dropout", 0);
    rule = DropRuleOf(drop);
    random_key = RandomKey(context.seed, static_cast<uint64_t>(attrs.Int("key", 0)));
    step = static_cast<uint64_t>(context.step);
  }

  // Heads: h of queries, g = h / group of keys.
  int64_t InQ(int64_t b, int64_t s, int64_t h) const { return (b * queries + s) * q_row + h * width; }
  int64_t InO(int64_t b, int64_t s, int64_t h) const { return (b * queries + s) * o_row + h * value_width; }
  int64_t InK(int64_t b, int64_t t, int64_t g) const { return (b * keys + t) * k_row + g * width; }
  int64_t InV(int64_t b, int64_t t, int64_t g) const { return (b * keys + t) * v_row + g * value_width; }
  int64_t InLse(int64_t b, int64_t s, int64_t h) const { return (b * heads + h) * queries + s; }

  // Local query s may see only keys before this local index, which may be negative or past the end. BlockMask
  // also handles masks by positions.
  int64_t Limit(int64_t s) const {
    if (!masks.causal || !masks.Simple()) return keys;
    return s + q.begin[1] + k.global[1] - q.global[1] - k.begin[1] + 1;
  }
  // The number of keys that any of the queries [s, s + count) sees.
  int64_t Visible(int64_t s, int64_t count) const {
    return std::clamp<int64_t>(Limit(s + count - 1), 0, keys);
  }

  // factors[key][query] = 0 or rule.scale.
  void DropFactors(int64_t b, int64_t h, int64_t s, int64_t count, int64_t t, int64_t key_count,
                   float* factors) const {
    uint16_t bits[kTileKeys];
    const auto keep = static_cast<float>(rule.scale);
    const auto least = static_cast<uint16_t>(rule.least);
    int64_t head = (b + q.begin[0]) * q.global[2] + h + q.begin[2];
    for (int64_t i = 0; i < count; ++i) {
      int64_t first = (head * q.global[1] + s + i + q.begin[1]) * k.global[1] + t + k.begin[1];
      FillDropBits(random_key, step, static_cast<uint64_t>(first), key_count, bits);
      for (int64_t j = 0; j < key_count; ++j) {
        factors[j * kLanes + i] = bits[j] >= least ? keep : 0.0f;
      }
    }
  }
};

// Masks of a block of queries against the tiles of keys that go by: skips tiles that no query sees,
// adds the bias, and overwrites what is masked.
class BlockMask {
 public:
  // Queries [s, s + count) of head h of batch b.
  BlockMask(const AttentionCall& call, int64_t b, int64_t h, int64_t s, int64_t count)
      : call_(call), b_(b), h_(h), s_(s), count_(count) {
    if (call.masks.Simple()) return;
    Fill(call.mask_rows.query_positions, s, count, &query_positions_);
    Fill(call.mask_rows.query_documents, s, count, &query_documents_);
  }

  // Whether any query may see any of these keys, which the next calls are about.
  bool Sees(int64_t t, int64_t key_count) {
    t_ = t;
    key_count_ = key_count;
    const AttentionMasks& masks = call_.masks;
    if (masks.Simple()) return true;
    Fill(call_.mask_rows.key_positions, t, key_count, &key_positions_);
    Fill(call_.mask_rows.key_documents, t, key_count, &key_documents_);
    if (masks.causal && key_positions_.least > query_positions_.greatest) return false;
    if (masks.window > 0 && key_positions_.greatest <= query_positions_.least - masks.window) return false;
    return key_documents_.least <= query_documents_.greatest &&
           query_documents_.least <= key_documents_.greatest;
  }

  // Query i of the block may see only those of these keys that are before this one + i.
  int64_t FirstMasked() const {
    if (!call_.masks.Simple() || !call_.masks.causal) return kTileKeys;
    return std::clamp<int64_t>(call_.Limit(s_) - t_, -kLanes, kTileKeys);
  }

  // tile[key][query] += factor * bias.
  void AddBias(float factor, float* tile) const {
    if (call_.bias == nullptr) return;
    int64_t step = call_.bias_strides.at[3];
    for (int64_t i = 0; i < count_; ++i) {
      const float* bias = call_.bias + call_.bias_strides.Offset(b_, h_, s_ + i, t_);
      for (int64_t j = 0; j < key_count_; ++j) tile[j * kLanes + i] += factor * bias[j * step];
    }
  }

  // tile[key][query] = value where the key is masked.
  void Mask(float value, float* tile) const {
    if (call_.masks.Simple()) {
      MaskByPlace(value, tile);
    } else {
      MaskByPosition(value, tile);
    }
  }

 private:
  struct Row {
    alignas(64) int64_t at[kLanes];
    int64_t least = 0, greatest = 0;
  };

  void Fill(const MaskRow& from, int64_t first, int64_t count, Row* row) const {
    row->least = row->greatest = count > 0 ? from.At(b_, first) : 0;
    for (int64_t i = 0; i < kLanes; ++i) {
      row->at[i] = i < count ? from.At(b_, first + i) : row->greatest;
      row->least = std::min(row->least, row->at[i]);
      row->greatest = std::max(row->greatest, row->at[i]);
    }
  }

  void MaskByPlace(float value, float* tile) const {
    if (!call_.masks.causal || call_.Limit(s_) >= t_ + key_count_) return;
    int32_t first = static_cast<int32_t>(FirstMasked());
    for (int32_t j = 0; j < key_count_; ++j) {
      float* lanes = tile + j * kLanes;
      for (int32_t i = 0; i < kLanes; ++i) lanes[i] = j < first + i ? lanes[i] : value;
    }
  }

  void MaskByPosition(float value, float* tile) const {
    const AttentionMasks& masks = call_.masks;
    int64_t none = std::numeric_limits<int64_t>::max();  // a query sees positions in (p - window, p + ahead]
    for (int64_t j = 0; j < key_count_; ++j) {
      float* lanes = tile + j * kLanes;
      int64_t key = key_positions_.at[j], document = key_documents_.at[j];
      int64_t last = masks.window > 0 ? key + masks.window : none, first = masks.causal ? key : -none;
      for (int64_t i = 0; i < kLanes; ++i) {
        int64_t query = query_positions_.at[i];
        bool seen = (query >= first) & (query < last) & (query_documents_.at[i] == document);
        lanes[i] = seen ? lanes[i] : value;
      }
    }
  }

  const AttentionCall& call_;
  const int64_t b_, h_, s_, count_;
  int64_t t_ = 0, key_count_ = 0;
  Row query_positions_, query_documents_, key_positions_, key_documents_;
};

// Rows of one head as a product reads them: in place where they are fp32, else widened into `buffer`.
struct Tile {
  const float* data;
  int64_t row;
};
template <typename T>
Tile TileOf(const T* from, int64_t row, int64_t count, int64_t width, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return {from, row};
  } else {
    for (int64_t i = 0; i < count; ++i) Widen(from + i * row, width, buffer + i * width);
    return {buffer, width};
  }
}

// to[d][lane] = factor * from[lane][d], lanes past `count` zero.
inline void LoadLanes(const float* from, int64_t row, int64_t count, int64_t width, float factor, float* to) {
  for (int64_t i = 0; i < kLanes; ++i) {
    for (int64_t d = 0; d < width; ++d) to[d * kLanes + i] = i < count ? from[i * row + d] * factor : 0.0f;
  }
}

// o[d][lane] *= factor[lane].
inline void RescaleLanes(const float* factor, int64_t width, float* o) {
  for (int64_t d = 0; d < width; ++d) {
    float* lanes = o + d * kLanes;
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] *= factor[i];
  }
}

// to[lane][d] = from[d][lane] * factor[lane].
template <typename T>
void StoreLanes(const float* from, const float* factor, int64_t count, int64_t width, T* to, int64_t row) {
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      for (int64_t d = 0; d < width; ++d) to[i * row + d] = from[d * kLanes + i] * factor[i];
    } else {
      float line[kMaxWidth];
      for (int64_t d = 0; d < width; ++d) line[d] = from[d * kLanes + i] * factor[i];
      Narrow(line, width, to + i * row);
    }
  }
}

// Whether `alike`, heads of tensors, have one floating type and a width that tiles take, and lse is fp32.
inline bool FitsAttention(const std::vector<const TensorArg*>& alike, const TensorArg& lse) {
  for (const TensorArg* arg : alike)
    if (arg->dtype != alike[0]->dtype || !IsFloating(arg->dtype) || arg->extent[3] > kMaxWidth) return false;
  return lse.dtype == DType::kFloat32;
}

}  // namespace oneflow_like::cpu
