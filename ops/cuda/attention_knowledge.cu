// What attention's tiles on tensor cores know before they begin (TileKnowledge): ranges of positions and
// documents of every 32 queries and keys, whether a bias leaves anything of 32 by 32 scores, and which scores
// dropout keeps. The draws of a tile are made once here for all kernels that go through it, with many warps
// at once: of a tile of attention they would be half of the instructions, each waiting for the one before.
#include <algorithm>
#include <atomic>
#include <limits>

#include "ops/cuda/attention_scores.h"

namespace oneflow_like::cuda {
namespace {

// A warp for each range, of queries and then of keys.
OFL_KERNEL void PlaceRangesKernel(AttentionShape shape, PlaceRange* ranges) {
  const int64_t of_queries = RangesOf(shape.queries), of_keys = RangesOf(shape.keys);
  const int64_t i = int64_t{blockIdx.x} * kTensorWarps + WarpOfThread();
  if (i >= shape.batch * (of_queries + of_keys)) return;  // the same for all lanes
  const bool queries = i < shape.batch * of_queries;
  const int64_t j = queries ? i : i - shape.batch * of_queries, each = queries ? of_queries : of_keys;
  const int64_t b = j / each, length = queries ? shape.queries : shape.keys;
  int64_t at = j % each * kRangedRows + threadIdx.x % 32;
  at = at < length ? at : length - 1;
  const int64_t place = (queries ? shape.query_positions : shape.key_positions).At(b, at),
                document = (queries ? shape.query_documents : shape.key_documents).At(b, at);
  PlaceRange range = {place, place, document, document};
  for (int lanes = 16; lanes > 0; lanes >>= 1) {
    const auto other = [&](int64_t x) { return __shfl_xor_sync(0xFFFFFFFFu, x, lanes); };
    const PlaceRange theirs = {other(range.low), other(range.high), other(range.low_document),
                               other(range.high_document)};
    range = JoinRanges(range, theirs);
  }
  if (threadIdx.x % 32 == 0) ranges[i] = range;
}

// A warp for each byte: whether any of 32 by 32 elements of the bias is not minus infinity.
OFL_KERNEL void BiasedTilesKernel(AttentionShape shape, int64_t tiles, unsigned char* biased) {
  const int64_t i = int64_t{blockIdx.x} * kTensorWarps + WarpOfThread();
  if (i >= tiles) return;  // the same for all lanes
  const int64_t* const stride = shape.bias_strides.at;
  const int64_t columns = stride[3] != 0 ? RangesOf(shape.keys) : 1,
                rows = stride[2] != 0 ? RangesOf(shape.queries) : 1, heads = stride[1] != 0 ? shape.heads : 1;
  const int64_t first_s = i / columns % rows * kRangedRows, t = i % columns * kRangedRows + threadIdx.x % 32;
  const float* const from = shape.bias + shape.bias_strides.Offset(i / columns / rows / heads,
                                                                   i / columns / rows % heads, first_s, t);
  const int64_t left = stride[2] != 0 ? shape.queries - first_s : 1;
  bool any = false;
  for (int s = 0; s < kRangedRows && s < left && t < shape.keys; ++s)
    any = any || from[s * stride[2]] != -INFINITY;
  any = __any_sync(0xFFFFFFFFu, any);
  if (threadIdx.x % 32 == 0) biased[i] = any ? 1 : 0;
}

// The keys of Philox's rounds (core/random.h), as an argument of the launch: instructions read them where
// they are, and a draw takes a fifth less of them than if each block added them up.
struct RoundKeys {
  uint32_t at[10][2];
};
RoundKeys RoundKeysOf(uint64_t key) {
  RoundKeys keys;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (auto& of_round : keys.at) {
    of_round[0] = k0;
    of_round[1] = k1;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return keys;
}

// `least` of a DropRule in both halves of a word, for two draws at once: without its highest bit, and all
// highest bits if it has none.
struct LeastOfTwo {
  uint32_t low, high;
};
LeastOfTwo LeastOfTwoOf(uint32_t least) {
  return {(least & 0x7FFF) * 0x10001, least < 0x8000 ? 0x80008000 : 0};
}
// The highest bit of each half: whether it is at least `least`. Each bit of the result is one that two of
// three have: a difference without borrow between the halves, the draws' own highest bits, and least.high.
OFL_DEVICE uint32_t KeepTwo(uint32_t draws, const LeastOfTwo& least) {
  const uint32_t below = (draws | 0x80008000) - least.low;
  return (draws & below) | ((draws | below) & least.high);
}
// Bytes of all bits or none: the highest bits of the halves of two words, in the order of KeptBit.
OFL_DEVICE uint32_t BytesOfFour(uint32_t low, uint32_t high) {
#if defined(__CUDACC__)
  asm("prmt.b32 %0, %0, %1, 0xFBD9;" : "+r"(low) : "r"(high));
  return low;
#else
  return (low >> 15 & 1) * 0xFF | (high >> 15 & 1) * 0xFF00 | (low >> 31) * 0xFF0000 |
         (high >> 31) * 0xFF000000;
#endif
}
// Which of a block's eight draws are kept: a byte for each, 0xFF if it is, else 0.
struct KeptEight {
  uint32_t low, high;
};
// As Philox(key, block, step).
OFL_DEVICE KeptEight KeepEight(const RoundKeys& keys, uint64_t block, uint64_t step,
                               const LeastOfTwo& least) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = static_cast<uint32_t>(step), c3 = static_cast<uint32_t>(step >> 32);
  OFL_UNROLL
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ keys.at[round][0];
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ keys.at[round][1];
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
  }
  return {BytesOfFour(KeepTwo(c0, least), KeepTwo(c1, least)),
          BytesOfFour(KeepTwo(c2, least), KeepTwo(c3, least))};
}

// The word of 32 draws from `index` on (KeptBit).
OFL_DEVICE uint32_t KeptWord(const RoundKeys& keys, uint64_t index, uint64_t step, const LeastOfTwo& least) {
  constexpr uint32_t kOfBytes = 0x01010101;
  uint32_t bits = 0;
  if (index % 8 == 0) {
    OFL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const KeptEight eight = KeepEight(keys, index / 8 + i, step, least);
      bits |= (eight.low & kOfBytes << 2 * i) | (eight.high & kOfBytes << (2 * i + 1));
    }
    return bits;
  }
  // Rows that begin within a block: five blocks, of which bits in the order of keys are taken.
  const auto four = [](uint32_t bytes) { return uint64_t{(bytes & 0x08020401) * kOfBytes >> 24}; };
  uint64_t in_order = 0;
  OFL_ROLLED
  for (int i = 0; i < 5; ++i) {
    const KeptEight eight = KeepEight(keys, index / 8 + i, step, least);
    in_order |= (four(eight.low) | four(eight.high) << 4) << 8 * i;
  }
  in_order >>= index % 8;
  OFL_ROLLED
  for (int i = 0; i < 8; ++i) {
    const auto nibble = static_cast<uint32_t>(in_order >> 4 * i & 15);
    bits |= (nibble * 0x00208041 & kOfBytes) << i;  // a bit to each byte
  }
  return bits;
}

// A warp for 32 queries, a lane for each, and kRunOfWarp words of 32 keys, but for those without scores.
constexpr int kRunOfWarp = 8;
OFL_KERNEL void __launch_bounds__(kTensorThreads)
    DropoutKernel(AttentionShape shape, TileKnowledge known, RoundKeys keys_of_rounds, LeastOfTwo least,
                  uint32_t* kept, const ActState* act) {
  const auto groups = static_cast<unsigned>(RangesOf(shape.queries)),
             words = static_cast<unsigned>(RangesOf(shape.keys)),
             runs = (words + kRunOfWarp - 1) / kRunOfWarp;
  const unsigned i = blockIdx.x * kTensorWarps + WarpOfThread(), of_part = i / runs / groups;
  if (of_part >= shape.pairs) return;  // the same for all lanes
  const int64_t pair = shape.first_pair + of_part, b = pair / shape.heads, h = pair % shape.heads;
  const int64_t group = i / runs % groups, s = group * 32 + threadIdx.x % 32;
  const int64_t first = group * 32 + shape.shift, last = first + 31;  // keys at the queries' own places
  int64_t word = i % runs * kRunOfWarp, end = word + kRunOfWarp < words ? word + kRunOfWarp : words;
  if (shape.placed && shape.causal && last < end * 32) end = last < 0 ? 0 : last / 32 + 1;
  if (shape.placed && shape.window > 0 && first - shape.window >= word * 32)
    word = (first - shape.window + 1) / 32;
  const PlaceRange* const queries = known.ranges + b * groups + group;
  const PlaceRange* const keys = known.ranges + shape.batch * groups + b * words;
  const BiasStrides strides = BiasedStrides(shape);
  const uint64_t step = act->step, draws = static_cast<uint64_t>(DrawOf(shape, b, h, s, 0));
  const int64_t pitch = known.kept_pitch;
  uint32_t* const to = kept + of_part * known.kept_words + s;
  for (; word < end; ++word) {
    if (known.ranges != nullptr && !MayMeet(shape, *queries, keys[word])) continue;
    if (known.biased != nullptr && known.biased[strides.Offset(b, h, group, word)] == 0) continue;
    to[word * pitch] = KeptWord(keys_of_rounds, draws + static_cast<uint64_t>(word) * 32, step, least);
  }
}

Grid GridOfWarps(int64_t warps) {
  return {static_cast<unsigned>((warps + kTensorWarps - 1) / kTensorWarps), 1, kTensorThreads, 0};
}

std::atomic<int64_t> most_dropout_bytes{std::numeric_limits<int64_t>::max()};

}  // namespace

void SetMostDropoutBytes(int64_t bytes) { most_dropout_bytes = bytes; }

void LaunchParts(const AttentionShape& shape, void* room, const LaunchContext& launch,
                 const std::function<void(const AttentionShape&, const TileKnowledge&)>& launch_part) {
  TileKnowledge known;
  auto* at = static_cast<char*>(room);
  if (!shape.by_places) {
    const int64_t ranges = shape.batch * (RangesOf(shape.queries) + RangesOf(shape.keys));
    auto* const of_places = reinterpret_cast<PlaceRange*>(at);
    cuda::Launch(PlaceRangesKernel, GridOfWarps(ranges), launch.stream, shape, of_places);
    known.ranges = of_places;
    at += ranges * sizeof(PlaceRange);
  }
  // Reading a bias that no heads and no sequences share once more takes as long as what it could save.
  const int64_t* const stride = shape.bias_strides.at;
  const bool shared =
      (stride[0] == 0 && shape.batch > 1) || (stride[1] == 0 && shape.heads > 1) || stride[2] == 0;
  if (shape.bias != nullptr && shared) {
    auto* const biased = reinterpret_cast<unsigned char*>(at);
    const int64_t tiles = (stride[0] != 0 ? shape.batch : 1) * (stride[1] != 0 ? shape.heads : 1) *
                          (stride[2] != 0 ? RangesOf(shape.queries) : 1) *
                          (stride[3] != 0 ? RangesOf(shape.keys) : 1);
    cuda::Launch(BiasedTilesKernel, GridOfWarps(tiles), launch.stream, shape, tiles, biased);
    known.biased = biased;
    at += (tiles + 7) / 8 * 8;
  }
  if (!(shape.drop > 0)) return launch_part(shape, known);
  auto* const kept = reinterpret_cast<uint32_t*>(at);
  const auto used = static_cast<int64_t>(at - static_cast<char*>(launch.workspace));
  const int64_t room_left =
      std::min<int64_t>(static_cast<int64_t>(launch.workspace_bytes) - used, most_dropout_bytes);
  const int64_t of_group = shape.group * KeptWords(shape.queries, shape.keys) * int64_t{sizeof(uint32_t)};
  const int64_t most = std::max<int64_t>(of_group == 0 ? 1 : room_left / of_group, 1) * shape.group;
  known.kept = kept;
  known.kept_words = KeptWords(shape.queries, shape.keys);
  known.kept_pitch = static_cast<unsigned>(KeptPitch(shape.queries));
  AttentionShape part = shape;
  for (part.first_pair = 0; part.first_pair < shape.pairs; part.first_pair += part.pairs) {
    part.pairs = std::min(shape.pairs - part.first_pair, most);
    const int64_t runs = (RangesOf(shape.keys) + kRunOfWarp - 1) / kRunOfWarp;
    cuda::Launch(DropoutKernel, GridOfWarps(part.pairs * RangesOf(shape.queries) * runs), launch.stream, part,
                 known, RoundKeysOf(shape.random_key), LeastOfTwoOf(shape.drop_least), kept, launch.act);
    launch_part(part, known);
  }
}

}  // namespace oneflow_like::cuda
