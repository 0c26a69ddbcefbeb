// Scores of attention in the sums of a warp (attention_tensor.h): which tiles have any, what masks hide of
// them, biases, and what dropout keeps of their probabilities. kQueryRows: rows are queries and columns keys;
// else the other way round. What is known before, of tiles and draws, small kernels of attention_knowledge.cu
// write.
#pragma once

#include <functional>

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

// What masks' operands and dropout leave, of every 32 queries and keys; written before by LaunchParts.
struct TileKnowledge {
  const PlaceRange* ranges = nullptr;     // of queries, then of keys, each [b tiles]
  const unsigned char* biased = nullptr;  // [b h tiles_s tiles_t] of the bias, 1 along axes of its broadcast;
                                          // nullptr: no operand, or a bias too large to be read once more
  const uint32_t* kept = nullptr;         // [b h tiles_t s] of the launch's pairs: bit KeptBit(t) is set if
                                          // dropout keeps the score; tiles without scores may have anything
  int64_t kept_words = 0;                 // of it, of a head
  unsigned kept_pitch = 0;                // and of 32 keys
};

OFL_HOST_DEVICE int64_t RangesOf(int64_t length) { return (length + kRangedRows - 1) / kRangedRows; }
// What masks leave by ranges of positions and documents.
OFL_DEVICE bool MayMeet(const AttentionShape& shape, const PlaceRange& query, const PlaceRange& key) {
  return (!shape.causal || key.low <= query.high) &&
         (shape.window == 0 || key.high > query.low - shape.window) &&
         query.low_document <= key.high_document && key.low_document <= query.high_document;
}
// Whether every query sees every key.
OFL_DEVICE bool AllMeet(const AttentionShape& shape, const PlaceRange& query, const PlaceRange& key) {
  return (!shape.causal || key.high <= query.low) &&
         (shape.window == 0 || key.low > query.high - shape.window) &&
         query.low_document == query.high_document && key.low_document == key.high_document &&
         query.low_document == key.low_document;
}
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
// ranges of positions and documents, and biases of minus infinity. Lanes look at 32 tiles at once.
template <bool kQueryRows, int C>
struct TileWalk {
  const AttentionShape& shape;
  const PlaceRange *rows, *columns;  // of this sequence; nullptr: places decide
  const unsigned char* biased;       // of this sequence and these rows; nullptr: a bias hides none
  int begin, end, last_range, last_column_range;
  int looked, head;             // the first of the 32 tiles of the masks, and the head
  unsigned met = 0, whole = 0;  // bit i: whether tile looked + i has scores, and whether masks leave all

  OFL_DEVICE TileWalk(const AttentionShape& of, const TileKnowledge& known, int64_t b, int64_t first)
      : shape(of),
        rows(nullptr),
        columns(nullptr),
        biased(known.biased),
        last_range(0),
        last_column_range(0),
        looked(-32),
        head(-1) {
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
    begin = static_cast<int>(low / C);
    end = high <= low ? begin : static_cast<int>((high + C - 1) / C);
    const int64_t of_queries = RangesOf(shape.queries), of_keys = RangesOf(shape.keys);
    last_range = static_cast<int>(last / kRangedRows - first / kRangedRows);
    last_column_range = static_cast<int>(kQueryRows ? of_keys : of_queries) - 1;
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

  OFL_DEVICE static PlaceRange Joined(const PlaceRange* ranges, int first, int last) {
    PlaceRange all = ranges[first];
    for (int i = first + 1; i <= last; ++i) all = JoinRanges(all, ranges[i]);
    return all;
  }

  // Ranges of columns of a tile.
  OFL_DEVICE int FirstOf(int tile) const { return tile * (C / kRangedRows); }
  OFL_DEVICE int LastOf(int tile) const {
    const int last = FirstOf(tile) + C / kRangedRows - 1;
    return last < last_column_range ? last : last_column_range;
  }

  OFL_DEVICE void Meet(int tile, bool* any, bool* all) const {
    *any = true;
    *all = false;
    if (columns == nullptr) return;
    const PlaceRange of_rows = Joined(rows, 0, last_range),
                     of_columns = Joined(columns, FirstOf(tile), LastOf(tile));
    const PlaceRange &query = kQueryRows ? of_rows : of_columns, &key = kQueryRows ? of_columns : of_rows;
    *any = MayMeet(shape, query, key);
    *all = AllMeet(shape, query, key);
  }

  OFL_DEVICE bool Biased(int tile, int h) const {
    if (biased == nullptr) return true;
    const BiasStrides strides = BiasedStrides(shape);
    const int64_t down = strides.at[kQueryRows ? 2 : 3], along = strides.at[kQueryRows ? 3 : 2];
    bool any = false;
    for (int row = 0; row <= last_range; ++row)
      for (int column = FirstOf(tile); column <= LastOf(tile); ++column)
        any = any || biased[h * strides.at[1] + row * down + column * along] != 0;
    return any;
  }

  // The first tile of head h of queries from this one on, not below `end` if there is none.
  OFL_DEVICE int From(int tile, int h) {
    if (columns == nullptr && biased == nullptr) return tile;
    for (; tile < end; tile = looked + 32) {
      if (tile < looked || tile >= looked + 32 || h != head) {
        const int mine = tile + static_cast<int>(threadIdx.x % 32);
        bool any = false, all = false;
        if (mine < end) Meet(mine, &any, &all);
        if (any) any = Biased(mine, h);
        looked = tile;
        head = h;
        met = __ballot_sync(0xFFFFFFFFu, any);
        whole = __ballot_sync(0xFFFFFFFFu, all);
      }
      const unsigned left = met >> (tile - looked);
      if (left != 0) return tile + __ffs(static_cast<int>(left)) - 1;
    }
    return end;
  }
  // Whether positions and documents leave all of a tile that From gave last.
  OFL_DEVICE bool Whole(int tile) const { return (whole >> ((tile - looked) & 31) & 1) != 0; }
};

// Writes what is known to the work space, from `room` on, for the parts of the batch and heads whose draws
// fit, one after the other, and calls launch_part(part, known) for each.
void LaunchParts(const AttentionShape& shape, void* room, const LaunchContext& launch,
                 const std::function<void(const AttentionShape&, const TileKnowledge&)>& launch_part);

// --- Scores: dots times ScoreUnit, or with a bias (dot scale + bias) times it, in units of log2

template <bool kQueries>
OFL_DEVICE int RowsOf(const AttentionShape& shape) {
  return static_cast<int>(kQueries ? shape.queries : shape.keys);
}
OFL_DEVICE bool ScoresAreDots(const AttentionShape& shape) {
  return shape.bias == nullptr && shape.scale > 0;  // so that the greatest dot gives the greatest score
}
OFL_DEVICE float ScoreUnit(const AttentionShape& shape) {
  return ScoresAreDots(shape) ? shape.scale * kLog2E : kLog2E;
}

// The bias of the warp's scores, 0 where there is none. To be asked for before the dots, which take as long.
template <bool kQueryRows, int C>
OFL_DEVICE void LoadBias(const AttentionShape& shape, int64_t b, int64_t h, int row, int column,
                         Sums<C>* bias) {
  const int64_t* const stride = shape.bias_strides.at;
  const int64_t down = stride[kQueryRows ? 2 : 3], along = stride[kQueryRows ? 3 : 2];
  const int left_rows = RowsOf<kQueryRows>(shape) - row, left_columns = RowsOf<!kQueryRows>(shape) - column;
  const float* at = shape.bias + b * stride[0] + h * stride[1] + (row + RowOfSum(0)) * down +
                    (column + ColumnOfSum(0)) * along;
  const float* below = at + 8 * down;
  if (left_rows >= 16 && left_columns >= C) {
    if (kQueryRows && shape.bias_pairs) {
      OFL_UNROLL
      for (int n = 0; n < C / 8; ++n) {
        const float2 high = *reinterpret_cast<const float2*>(at + 8 * n),
                     low = *reinterpret_cast<const float2*>(below + 8 * n);
        float* const to = bias->Of(n).at;
        to[0] = high.x, to[1] = high.y, to[2] = low.x, to[3] = low.y;
      }
      return;
    }
    OFL_UNROLL
    for (int n = 0; n < C / 8; ++n) {  // addresses that move: offsets of all elements would be kept
      bias->Of(n) = {{at[0], at[along], below[0], below[along]}};
      at += 8 * along;
      below += 8 * along;
    }
    return;
  }
  const int rows = left_rows - RowOfSum(0), columns = left_columns - ColumnOfSum(0);
  OFL_UNROLL
  for (int n = 0; n < C / 8; ++n) {
    OFL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* const from = i < 2 ? at : below;
      bias->Of(n).at[i] = i / 2 * 8 < rows && 8 * n + i % 2 < columns ? from[i % 2 * along] : 0.0f;
    }
    at += 8 * along;
    below += 8 * along;
  }
}

// Of each element of a warp's sums one bit: bit 4 n + i is of element i of SumFragment n.
struct LaneBits {
  uint32_t bits;
  OFL_DEVICE bool At(int n, int i) const { return (bits >> (4 * n + i) & 1) != 0; }
};

// -infinity where a key is hidden, or is none. `whole`: positions and documents hide none.
template <bool kQueryRows, int C>
OFL_DEVICE void HideScores(const AttentionShape& shape, int row, int column, const RowPlaces& places,
                           const ColumnData<C>& data, bool whole, Sums<C>* scores) {
  static_assert(C <= 64, "bits of a word");
  const int rows = RowsOf<kQueryRows>(shape) - row, columns = RowsOf<!kQueryRows>(shape) - column;
  // How far a query is behind a key. By places it sees those at distances from `least` to below `most`.
  const int shift = static_cast<int>(shape.shift),
            behind = kQueryRows ? row + shift - column : column + shift - row;
  const int least = shape.least_distance, most = shape.most_distance;
  const int nearest = behind - (kQueryRows ? C - 1 : 15), farthest = behind + (kQueryRows ? 15 : C - 1);
  const bool sees_all = shape.by_places ? nearest >= least && farthest < most : whole;
  if (rows >= 16 && columns >= C && sees_all) return;
  if (shape.by_places) {  // columns [low, high) of each row
    int low[2], high[2];
    OFL_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int r = RowOfSum(2 * half);
      const int from = kQueryRows ? behind + r - most + 1 : least - behind + r,
                to = kQueryRows ? behind + r - least + 1 : most - behind + r;
      low[half] = from - ColumnOfSum(0);
      high[half] = (r >= rows ? 0 : to < columns ? to : columns) - ColumnOfSum(0);
    }
    OFL_UNROLL
    for (int n = 0; n < C / 8; ++n) {
      OFL_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int c = 8 * n + i % 2;
        if (c < low[i / 2] || c >= high[i / 2]) scores->Of(n).at[i] = -INFINITY;
      }
    }
    return;
  }
  LaneBits seen = {0};
  const int own = WarpOfThread() * 16 + RowOfSum(0);
  const int64_t row_place[2] = {places.place[own], places.place[own + 8]},
                row_document[2] = {places.document[own], places.document[own + 8]};
  OFL_ROLLED  // few registers
  for (int n = 0; n < C / 8; ++n) {
    OFL_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int c = 8 * n + ColumnOfSum(e);
      const int64_t place = data.place[c], document = data.document[c];
      OFL_UNROLL
      for (int half = 0; half < 2; ++half) {
        const bool sees = RowOfSum(2 * half) < rows && c < columns &&
                          (kQueryRows ? shape.Sees(row_place[half], place, row_document[half], document)
                                      : shape.Sees(place, row_place[half], document, row_document[half]));
        seen.bits |= static_cast<uint32_t>(sees) << (4 * n + 2 * half + e);
      }
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
OFL_DEVICE void FinishScores(const AttentionShape& shape, int row, int column, const RowPlaces& places,
                             const ColumnData<C>& data, bool whole, const Sums<C>& bias, Sums<C>* scores) {
  if (shape.bias != nullptr) {
    OFL_UNROLL
    for (int n = 0; n < C / 8; ++n) {
      OFL_UNROLL
      for (int i = 0; i < 4; ++i) scores->Of(n).at[i] = scores->Of(n).at[i] * shape.scale + bias.Of(n).at[i];
    }
  } else if (!ScoresAreDots(shape)) {
    OFL_UNROLL
    for (int n = 0; n < C / 8; ++n) {
      OFL_UNROLL
      for (float& x : scores->Of(n).at) x *= shape.scale;
    }
  }
  HideScores<kQueryRows>(shape, row, column, places, data, whole, scores);
}

// --- Dropout
// Words of TileKnowledge::kept for a head, with pads, so that any tile of 64 by 64 may be read.
inline int64_t KeptPitch(int64_t queries) { return (queries + 63) / 64 * 64; }
inline int64_t KeptWords(int64_t queries, int64_t keys) { return (keys + 63) / 64 * 2 * KeptPitch(queries); }

// Where the bit of a key of 32 is in their word: four neighbours lie in the four bytes, two in the two
// halves, as the elements of a fragment's word do. The bit of 8 n + 2 p + i is KeptBit(8 n) + KeptBit(2 p) +
// 16 i, for p < 4 and i < 2, and that of a key eight further is 2 above.
OFL_HOST_DEVICE constexpr int KeptBit(int key) { return key % 2 * 16 + key / 2 % 2 * 8 + key / 4; }

// The bits of the warp's scores, read before the dots, too.
template <bool kQueryRows, int C>
struct KeptScores {
  uint32_t word[kQueryRows ? C / 32 : C / 8][2];  // [keys / 32][upper or lower row], or [n][column]

  // `pair`: of the launch's. The words are there when Arrive, after the dots, looks at them: an instruction
  // on them here would wait for memory.
  OFL_DEVICE void Load(const TileKnowledge& known, int64_t pair, int row, int column) {
    const unsigned pitch = known.kept_pitch, key = static_cast<unsigned>(kQueryRows ? column : row),
                   query = static_cast<unsigned>(kQueryRows ? row + RowOfSum(0) : column + ColumnOfSum(0));
    const uint32_t* at = known.kept + pair * known.kept_words + (uint64_t{key / 32} * pitch + query);
    if constexpr (kQueryRows) {
      OFL_UNROLL
      for (int i = 0; i < C / 32; ++i) {
        word[i][0] = at[0];
        word[i][1] = at[8];
        at += pitch;
      }
    } else {
      OFL_UNROLL
      for (int n = 0; n < C / 8; ++n) {
        const uint2 two = *reinterpret_cast<const uint2*>(at + 8 * n);
        word[n][0] = two.x;
        word[n][1] = two.y;
      }
    }
  }
  OFL_DEVICE void Arrive(int row) {
    const int shift = kQueryRows ? KeptBit(ColumnOfSum(0)) : KeptBit(row % 32) + KeptBit(RowOfSum(0));
    OFL_UNROLL
    for (auto& two : word) {
      two[0] >>= shift;
      two[1] >>= shift;
    }
  }
  OFL_DEVICE bool At(int n, int i) const {
    const uint32_t bits =
        kQueryRows ? word[n / 4][i / 2] >> KeptBit(n % 4 * 8 + i % 2) : word[n][i % 2] >> KeptBit(i / 2 * 8);
    return (bits & 1) != 0;
  }
  // Sets dropped elements to 0, in rounded sums two at once.
  template <typename T>
  OFL_DEVICE void Apply(LeftFragment (&rounded)[C / 16]) const {
    static_assert(kQueryRows);
    OFL_UNROLL
    for (int k = 0; k < C / 16; ++k) {
      OFL_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int n = 2 * k + i / 2;
        rounded[k].at[i] = KeepOfPair<T>(rounded[k].at[i], word[n / 4][i % 2], KeptBit(n % 4 * 8));
      }
    }
  }
  OFL_DEVICE void Apply(Sums<C>* sums) const {
    OFL_UNROLL
    for (int n = 0; n < C / 8; ++n) {
      OFL_UNROLL
      for (int i = 0; i < 4; ++i)
        if (!At(n, i)) sums->Of(n).at[i] = 0;
    }
  }
};

}  // namespace oneflow_like::cuda
