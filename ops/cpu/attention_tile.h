// What attention and its gradient share: the numbers of one call, and the tile they work on. A tile is 64
// keys by 64 queries with the queries along the vector lanes: what softmax does along the keys is then done
// lane by lane, and of all operands only the block of queries (and of output gradients) has to be transposed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/kernel.h"
#include "core/random.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/kernels.h"
#include "ops/scalar.h"

namespace oneflow_like::cpu {

constexpr int64_t kLanes = 64;      // queries of a tile
constexpr int64_t kTileKeys = 64;   // keys of a tile
constexpr int64_t kMaxWidth = 256;  // of a head

struct AttentionCall {
  const TensorArg &q, &k;
  int64_t batch, queries, keys, heads, width;
  int64_t row;  // elements from one position to the next
  float scale;
  bool causal;
  double drop;
  uint32_t threshold;
  float keep;  // 1 / (1 - drop)
  uint64_t random_key, step;

  AttentionCall(const KernelContext& context, const TensorArg& q_piece, const TensorArg& k_piece)
      : q(q_piece), k(k_piece) {
    const Attrs& attrs = context.spec.attrs;
    batch = q.extent[0];
    queries = q.extent[1];
    heads = q.extent[2];
    width = q.extent[3];
    keys = k.extent[1];
    row = heads * width;
    double factor = attrs.Float("scale", 0);
    scale = static_cast<float>(factor == 0 ? 1 / std::sqrt(static_cast<double>(q.global[3])) : factor);
    causal = attrs.Int("causal", 0) != 0;
    drop = attrs.Float("dropout", 0);
    threshold = KeepThreshold(drop);
    keep = static_cast<float>(1 / (1 - drop));
    random_key = RandomKey(context.seed, static_cast<uint64_t>(attrs.Int("key", 0)));
    step = static_cast<uint64_t>(context.step);
  }

  int64_t InQ(int64_t b, int64_t s, int64_t h) const { return (b * queries + s) * row + h * width; }
  int64_t InK(int64_t b, int64_t t, int64_t h) const { return (b * keys + t) * row + h * width; }
  int64_t InLse(int64_t b, int64_t s, int64_t h) const { return (b * heads + h) * queries + s; }

  // Keys that local query s may see are those before this local index; may be negative or past the end.
  int64_t Limit(int64_t s) const {
    if (!causal) return keys;
    return s + q.begin[1] + k.global[1] - q.global[1] - k.begin[1] + 1;
  }
  // Keys any of the queries [s, s + count) sees.
  int64_t Visible(int64_t s, int64_t count) const {
    return std::clamp<int64_t>(Limit(s + count - 1), 0, keys);
  }

  // tile[key][query] = value where the key is masked.
  void Mask(int64_t s, int64_t t, int64_t key_count, float value, float* tile) const {
    if (!causal || Limit(s) >= t + key_count) return;
    int32_t first = static_cast<int32_t>(std::clamp<int64_t>(Limit(s) - t, -kLanes, kTileKeys));
    for (int32_t j = 0; j < key_count; ++j) {
      float* lanes = tile + j * kLanes;
      for (int32_t i = 0; i < kLanes; ++i) lanes[i] = j < first + i ? lanes[i] : value;
    }
  }

  // factors[key][query] = 0 or 1 / (1 - drop).
  void DropFactors(int64_t b, int64_t h, int64_t s, int64_t count, int64_t t, int64_t key_count,
                   float* factors) const {
    uint32_t bits[kTileKeys];
    int64_t head = (b + q.begin[0]) * q.global[2] + h + q.begin[2];
    for (int64_t i = 0; i < count; ++i) {
      int64_t first = (head * q.global[1] + s + i + q.begin[1]) * k.global[1] + t + k.begin[1];
      FillRandomBits(random_key, step, static_cast<uint64_t>(first), key_count, bits);
      for (int64_t j = 0; j < key_count; ++j) {
        factors[j * kLanes + i] = (bits[j] >> 8) >= threshold ? keep : 0.0f;
      }
    }
  }
};

// Rows of one head as a product reads them: in place where they are fp32, else widened into the thread's
// buffer.
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

// Whether `alike` have one floating type, and lse is fp32.
inline bool FitsAttention(const std::vector<const TensorArg*>& alike, const TensorArg& lse) {
  for (const TensorArg* arg : alike)
    if (arg->dtype != alike[0]->dtype || !IsFloating(arg->dtype) || arg->extent[3] > kMaxWidth) return false;
  return lse.dtype == DType::kFloat32;
}

}  // namespace oneflow_like::cpu
