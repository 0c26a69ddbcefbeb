// Scores of attention in the sums of a warp (attention_tensor.h): which tiles have any, what masks hide of
// them, biases, and what dropout keeps of their probabilities. kQueryRows: rows are queries and columns keys;
// else the other way round. Scores are in units of log2, so that PowerOfTwo gives their probabilities.
#pragma once

#include "ops/attention_library.h"
#include "ops/cuda/attention_tensor.h"

namespace oneflow_like::cuda {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// 2^x within two units; 0 where it would be below the normal floats, which adds nothing to a sum with 1 in
// it.
OFL_DEVICE float PowerOfTwo(float x) {
#if defined(__CUDACC__)
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
  return x;
#else
  return exp2f(x);
#endif
}

// What is known of a tile's columns, in shared memory.
template <int C>
struct ColumnData {
  int64_t place[C], document[C];  // where operands say what a query sees
  float lse[C], delta[C];         // of columns that are queries
};
// Positions and documents of a block's rows, where operands give any.
struct RowPlaces {
  int64_t place[kTensorRows], document[kTensorRows];
};

template <bool kQueries>
OFL_DEVICE const PlaceView& Positions(const AttentionShape& shape) {
  return kQueries ? shape.query_positions : shape.key_positions;
}
template <bool kQueries>
OFL_DEVICE const PlaceView& Documents(const AttentionShape& shape) {
  return kQueries ? shape.query_documents : shape.key_documents;
}

// Positions and documents of `count` queries or keys from `first` on, by as many threads.
template <bool kQueries>
OFL_DEVICE void StagePlaces(const AttentionShape& shape, int64_t b, int64_t first, int count, int64_t* place,
                            int64_t* document) {
  const int64_t length = kQueries ? shape.queries : shape.keys;
  const int i = static_cast<int>(threadIdx.x);
  if (shape.by_places || i >= count || first + i >= length) return;
  place[i] = Positions<kQueries>(shape).At(b, first + i);
  document[i] = Documents<kQueries>(shape).At(b, first + i);
}

// --- Which tiles have scores

OFL_DEVICE PlaceRange JoinRanges(const PlaceRange& x, const PlaceRange& y) {
  return {x.low < y.low ? x.low : y.low, x.high > y.high ? x.high : y.high,
          x.low_document < y.low_document ? x.low_document : y.low_document,
          x.high_document > y.high_document ? x.high_document : y.high_document};
}

// What the masks' operands leave, of every 32 queries and keys; written before by LaunchTileKnowledge.
struct TileKnowledge {
  const PlaceRange* ranges = nullptr;     // of queries, then of keys, each [b tiles]
  const unsigned char* biased = nullptr;  // [b h tiles_s tiles_t] of the bias, 1 along axes of its broadcast;
                                          // nullptr: no operand, or a bias too large to be read once more
};

OFL_HOST_DEVICE int64_t RangesOf(int64_t length) { return (length + kRangedRows - 1) / kRangedRows; }
// Elements between neighbours of `biased`.
OFL_HOST_DEVICE BiasStrides BiasedStrides(const AttentionShape& shape) {
  const int64_t* const stride = shape.bias_strides.at;
  const int64_t keys = stride[3] != 0 ? RangesOf(shape.keys) : 1,
                queries = stride[2] != 0 ? RangesOf(shape.queries) : 1;
  BiasStrides strides;
  strides.at[3] = stride[3] != 0 ? 1 : 0;
  strides.at[2] = stride[2] != 0 ? keys : 0;
  strides.at[1] = stride[1] != 0 ? queries * keys : 0;
  strides.at[0] = stride[0] != 0 ? queries * keys * (stride[1] != 0 ? shape.heads : 1) : 0;
  return strides;
}

// Tiles of C columns for a tile of rows, in order, without those that masks empty: by places, and by the
// ranges of positions and documents, and biases of minus infinity.
template <bool kQueryRows, int C>
struct TileWalk {
  const AttentionShape& shape;
  const PlaceRange *rows, *columns;  // of this sequence; nullptr: places decide
  const unsigned char* biased;       // of this sequence and these rows; nullptr: a bias hides none
  int64_t begin, end, last_range, last_column_range;

  OFL_DEVICE TileWalk(const AttentionShape& of, const TileKnowledge& known, int64_t b, int64_t first)
      : shape(of),
        rows(nullptr),
        columns(nullptr),
        biased(known.biased),
        last_range(0),
        last_column_range(0) {
    const int64_t length = kQueryRows ? shape.keys : shape.queries,
                  of_rows = kQueryRows ? shape.queries : shape.keys;
    const int64_t last = (first + kTensorRows < of_rows ? first + kTensorRows : of_rows) - 1;
    // By places query s sees keys t with s + shift - window < t <= s + shift.
    int64_t low = 0, high = length;  // columns
    if (shape.placed && kQueryRows) {
      if (shape.causal) high = last + shape.shift + 1;
      if (shape.window > 0) low = first + shape.shift - shape.window + 1;
    } else if (shape.placed) {
      if (shape.causal) low = first - shape.shift;
      if (shape.window > 0) high = last + shape.window - shape.shift;
    }
    low = low < 0 ? 0 : low;
    high = high > length ? length : high;
    begin = low / C;
    end = high <= low ? begin : (high + C - 1) / C;
    const int64_t of_queries = RangesOf(shape.queries), of_keys = RangesOf(shape.keys);
    last_range = last / kRangedRows - first / kRangedRows;
    last_column_range = (kQueryRows ? of_keys : of_queries) - 1;
    if (biased != nullptr) {
      const BiasStrides strides = BiasedStrides(shape);
      biased += b * strides.at[0] + first / kRangedRows * strides.at[kQueryRows ? 2 : 3];
    }
    if (shape.by_places) return;
    const PlaceRange* const queries = known.ranges + b * of_queries;
    const PlaceRange* const keys = known.ranges + shape.batch * of_queries + b * of_keys;
    rows = (kQueryRows ? queries : keys) + first / kRangedRows;
    columns = kQueryRows ? keys : queries;
  }

  OFL_DEVICE static PlaceRange Joined(const PlaceRange* ranges, int64_t first, int64_t last) {
    PlaceRange all = ranges[first];
    for (int64_t i = first + 1; i <= last; ++i) all = JoinRanges(all, ranges[i]);
    return all;
  }

  // Ranges of columns of a tile.
  OFL_DEVICE int64_t FirstOf(int64_t tile) const { return tile * (C / kRangedRows); }
  OFL_DEVICE int64_t LastOf(int64_t tile) const {
    const int64_t last = FirstOf(tile) + C / kRangedRows - 1;
    return last < last_column_range ? last : last_column_range;
  }

  OFL_DEVICE bool Meets(int64_t tile) const {
    if (columns == nullptr) return true;
    const PlaceRange of_rows = Joined(rows, 0, last_range),
                     of_columns = Joined(columns, FirstOf(tile), LastOf(tile));
    const PlaceRange &query = kQueryRows ? of_rows : of_columns, &key = kQueryRows ? of_columns : of_rows;
    return (!shape.causal || key.low <= query.high) &&
           (shape.window == 0 || key.high > query.low - shape.window) &&
           query.low_document <= key.high_document && key.low_document <= query.high_document;
  }

  OFL_DEVICE bool Biased(int64_t tile, int64_t h) const {
    if (biased == nullptr) return true;
    const BiasStrides strides = BiasedStrides(shape);
    const int64_t down = strides.at[kQueryRows ? 2 : 3], along = strides.at[kQueryRows ? 3 : 2];
    bool any = false;
    for (int64_t row = 0; row <= last_range; ++row)
      for (int64_t column = FirstOf(tile); column <= LastOf(tile); ++column)
        any = any || biased[h * strides.at[1] + row * down + column * along] != 0;
    return any;
  }

  // The first tile of head h of queries from this one on, not below `end` if there is none. All lanes look,
  // at a tile each.
  OFL_DEVICE int64_t From(int64_t tile, int64_t h) const {
    if (columns == nullptr && biased == nullptr) return tile;
    for (; tile < end; tile += 32) {
      const int64_t mine = tile + threadIdx.x % 32;
      const unsigned met = __ballot_sync(0xFFFFFFFFu, mine < end && Meets(mine) && Biased(mine, h));
      if (met != 0) return tile + __ffs(static_cast<int>(met)) - 1;
    }
    return end;
  }
};

// Writes what masks' operands leave to `room`, of TensorAttentionBytes without those of a gradient
// (attention_tensor.cu).
TileKnowledge LaunchTileKnowledge(const AttentionShape& shape, void* room, const LaunchContext& launch);

// --- Scores

// Adds the bias to the warp's scores.
template <bool kQueryRows, int C>
OFL_DEVICE void AddBias(const AttentionShape& shape, int64_t b, int64_t h, int64_t row, int64_t column,
                        Sums<C>* scores) {
  const int64_t* const stride = shape.bias_strides.at;
  const int64_t down = 8 * stride[kQueryRows ? 2 : 3], along = stride[kQueryRows ? 3 : 2];
  const int64_t left_rows = (kQueryRows ? shape.queries : shape.keys) - row,
                left_columns = (kQueryRows ? shape.keys : shape.queries) - column;
  const int rows = static_cast<int>(left_rows < 16 ? left_rows : 16) - RowOfSum(0),
            columns = static_cast<int>(left_columns < C ? left_columns : C) - ColumnOfSum(0);
  const float* at = shape.bias + b * stride[0] + h * stride[1] + (row + RowOfSum(0)) * (down / 8) +
                    (column + ColumnOfSum(0)) * along;
  OFL_UNROLL
  for (int n = 0; n < C / 8; ++n) {  // one address that moves: offsets of all elements would be kept
    OFL_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i / 2 * 8 < rows && 8 * n + i % 2 < columns)
        scores->Of(n).at[i] += at[i / 2 * down + i % 2 * along] * kLog2E;
    }
    at += 8 * along;
  }
}

// Of each element of a warp's sums one bit: bit 4 n + i is of element i of SumFragment n.
struct LaneBits {
  uint32_t bits;
  OFL_DEVICE bool At(int n, int i) const { return (bits >> (4 * n + i) & 1) != 0; }
};

// -infinity where a key is hidden, or is none.
template <bool kQueryRows, int C>
OFL_DEVICE void HideScores(const AttentionShape& shape, int64_t row, int64_t column, const RowPlaces& places,
                           const ColumnData<C>& data, Sums<C>* scores) {
  static_assert(C <= 64, "bits of a word");
  const int64_t left_rows = (kQueryRows ? shape.queries : shape.keys) - row,
                left_columns = (kQueryRows ? shape.keys : shape.queries) - column;
  // How far a query is behind a key. By places it sees those at distances from `least` to below `most`.
  const int64_t behind = kQueryRows ? row + shape.shift - column : column + shape.shift - row;
  constexpr int kAny = 1 << 30;
  const int least = shape.causal ? 0 : -kAny,
            most = shape.window == 0 || shape.window > kAny ? kAny : static_cast<int>(shape.window);
  const int64_t nearest = behind - (kQueryRows ? C - 1 : 15), farthest = behind + (kQueryRows ? 15 : C - 1);
  if (left_rows >= 16 && left_columns >= C && shape.by_places && nearest >= least && farthest < most) return;
  const int rows = static_cast<int>(left_rows < 16 ? left_rows : 16),
            columns = static_cast<int>(left_columns < C ? left_columns : C),
            distance = static_cast<int>(behind);
  LaneBits seen = {0};
  OFL_ROLLED  // few registers; most tiles come here under documents and positions only
  for (int n = 0; n < C / 8; ++n) {
    OFL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = RowOfSum(i), c = 8 * n + ColumnOfSum(i), of_block = WarpOfThread() * 16 + r;
      bool sees = r < rows && c < columns;
      if (shape.by_places) {
        const int far = distance + (kQueryRows ? r - c : c - r);
        sees = sees && far >= least && far < most;
      } else if (sees) {
        const int64_t row_place = places.place[of_block], row_document = places.document[of_block];
        sees = kQueryRows ? shape.Sees(row_place, data.place[c], row_document, data.document[c])
                          : shape.Sees(data.place[c], row_place, data.document[c], row_document);
      }
      seen.bits |= static_cast<uint32_t>(sees) << (4 * n + i);
    }
  }
  OFL_UNROLL
  for (int n = 0; n < C / 8; ++n) {
    OFL_UNROLL
    for (int i = 0; i < 4; ++i)
      if (!seen.At(n, i)) scores->Of(n).at[i] = -INFINITY;
  }
}

// From dots to scores, of the warp's rows from `row` on.
template <bool kQueryRows, int C>
OFL_DEVICE void FinishScores(const AttentionShape& shape, int64_t b, int64_t h, int64_t row, int64_t column,
                             const RowPlaces& places, const ColumnData<C>& data, Sums<C>* scores) {
  const float scale = shape.scale * kLog2E;
  OFL_UNROLL
  for (int n = 0; n < C / 8; ++n) {
    OFL_UNROLL
    for (float& x : scores->Of(n).at) x *= scale;
  }
  if (shape.bias != nullptr) AddBias<kQueryRows>(shape, b, h, row, column, scores);
  HideScores<kQueryRows>(shape, row, column, places, data, scores);
}

// --- Dropout
// Whether draw `index` and the three after it are kept, as four bits. REQUIRES: index is a multiple of 4.
OFL_DEVICE uint32_t KeepFour(const AttentionShape& shape, int64_t step, int64_t index) {
  const Philox4 four =
      Philox(shape.random_key, static_cast<uint64_t>(index) >> 2, static_cast<uint64_t>(step));
  uint32_t bits = 0;
  OFL_UNROLL
  for (int j = 0; j < 4; ++j) bits |= static_cast<uint32_t>(ToUniform(four.v[j]) >= shape.drop) << j;
  return bits;
}

// Four neighbouring keys share a block of draws, and lie in two or four lanes: each lane makes as many blocks
// as it has elements divided by four, and bits are exchanged. Set bits are kept.
template <bool kQueryRows, int C>
OFL_DEVICE LaneBits KeptOf(const AttentionShape& shape, int64_t step, int64_t b, int64_t h, int64_t row,
                           int64_t column) {
  static_assert(C <= 64, "bits of a word");
  if (!(shape.drop > 0)) return {0xFFFFFFFFu};
  uint32_t bits = 0;
  if (shape.global_keys % 4 != 0 || shape.key_begin % 4 != 0) {  // blocks begin anywhere
    OFL_ROLLED
    for (int n = 0; n < C / 8; ++n) {
      OFL_ROLLED
      for (int i = 0; i < 4; ++i) {
        const int64_t r = row + RowOfSum(i), c = column + 8 * n + ColumnOfSum(i);
        const int64_t index = kQueryRows ? DrawOf(shape, b, h, r, c) : DrawOf(shape, b, h, c, r);
        const uint32_t draw =
            RandomBits(shape.random_key, static_cast<uint64_t>(step), static_cast<uint64_t>(index));
        bits |= static_cast<uint32_t>(ToUniform(draw) >= shape.drop) << (4 * n + i);
      }
    }
    return {bits};
  }
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (kQueryRows) {
    // Two neighbouring lanes have four keys of two rows: the even one draws for the upper row.
    const bool odd = lane % 2 != 0;
    const int64_t first = DrawOf(shape, b, h, row + RowOfSum(odd ? 2 : 0), column + ColumnOfSum(0) / 4 * 4);
    OFL_ROLLED
    for (int n = 0; n < C / 8; ++n) bits |= KeepFour(shape, step, first + 8 * n) << (4 * n);
    constexpr uint32_t kLow = 0x33333333u, kHigh = 0xCCCCCCCCu;
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, bits, 1);
    return {odd ? (other >> 2 & kLow) | (bits & kHigh) : (bits & kLow) | (other << 2 & kHigh)};
  }
  // Four lanes that are four apart have four keys, of two queries and two halves each: a lane draws for one.
  const int mine = lane / 4 % 4;
  const int64_t four = row + RowOfSum(mine) / 4 * 4;
  OFL_ROLLED
  for (int n = 0; n < C / 8; ++n)
    bits |= KeepFour(shape, step, DrawOf(shape, b, h, column + 8 * n + ColumnOfSum(mine), four)) << (4 * n);
  uint32_t kept = 0;
  OFL_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint32_t of = __shfl_sync(0xFFFFFFFFu, bits, lane / 16 * 16 + i * 4 + lane % 4);
    kept |= (of >> mine & 0x11111111u) << i;
  }
  return {kept};
}

}  // namespace oneflow_like::cuda
