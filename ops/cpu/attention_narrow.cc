// Queries lie along the lanes of tiles (attention_tile.h). Keys and values are read as they lie where a
// product runs along a head; what it runs across is laid out anew: values forward, once for several blocks of
// queries, and keys backward, once for a head of keys. Measured on a core with AVX-512 BF16 and no AMX,
// beside widening the same operands to fp32: see tests/PERFORMANCE.md.
#include "ops/cpu/attention_narrow.h"

#include <algorithm>
#include <cmath>

#include "core/device/scratch.h"
#include "core/error.h"
#include "ops/cpu/attention_products.h"
#include "ops/cpu/attention_tile.h"
#include "ops/cpu/narrow_tile.h"

namespace oneflow_like::cpu {
namespace {

constexpr int64_t kRowPairs = kTileKeys / 2;
// Forward up to so many blocks of queries share the values of a span of keys, laid out once.
constexpr int64_t kBlocks = 4, kSpanTiles = 4;

// Of one thread.
struct NarrowForward {
  uint32_t *q, *v, *p;  // pairs; q of each block, v of each tile of the span
  BFloat16* room;       // for padded keys
  float *o, *tile, *drop;
  int64_t bytes;
  explicit NarrowForward(const AttentionExtents& e, void* memory = nullptr) {
    Scratch scratch(memory);
    const int64_t pitch = PitchOf(e.width), value_pitch = PitchOf(e.value_width);
    q = scratch.Take<uint32_t>(kBlocks * pitch / 2 * kLanes);
    v = scratch.Take<uint32_t>(kSpanTiles * kRowPairs * value_pitch);
    p = scratch.Take<uint32_t>(kRowPairs * kLanes);
    room = scratch.Take<BFloat16>(kTileKeys * pitch);
    o = scratch.Take<float>(kBlocks * value_pitch * kLanes);
    tile = scratch.Take<float>(kTileKeys * kLanes);
    drop = scratch.Take<float>(e.drops ? kTileKeys * kLanes : 0);
    bytes = scratch.bytes();
  }
};

// Of one thread.
struct NarrowBackward {
  uint32_t *q_lanes, *dy_lanes, *q_rows, *dy_rows, *ds_pairs;  // pairs
  float *p, *dp, *drop, *dq, *lse, *dot, *one;
  BFloat16 *p_rows, *ds_rows;
  BFloat16* room;  // for padded keys or values
  uint32_t* k;     // tiles of a head of keys, laid out
  float *dk, *dv;
  int64_t bytes;
  explicit NarrowBackward(const AttentionExtents& e, void* memory = nullptr) {
    Scratch scratch(memory);
    const int64_t pitch = PitchOf(e.width), value_pitch = PitchOf(e.value_width), tile = kTileKeys * kLanes,
                  keys = RoundedUp(e.keys, kTileKeys);
    q_lanes = scratch.Take<uint32_t>(pitch / 2 * kLanes);
    dy_lanes = scratch.Take<uint32_t>(value_pitch / 2 * kLanes);
    q_rows = scratch.Take<uint32_t>(kRowPairs * pitch);
    dy_rows = scratch.Take<uint32_t>(kRowPairs * value_pitch);
    ds_pairs = scratch.Take<uint32_t>(kRowPairs * kLanes);
    p = scratch.Take<float>(tile);
    dp = scratch.Take<float>(tile);
    drop = scratch.Take<float>(e.drops ? tile : 0);
    dq = scratch.Take<float>(pitch * kLanes);
    for (float** lanes : {&lse, &dot, &one}) *lanes = scratch.Take<float>(kLanes);
    p_rows = scratch.Take<BFloat16>(tile);
    ds_rows = scratch.Take<BFloat16>(tile);
    room = scratch.Take<BFloat16>(kTileKeys * std::max(pitch, value_pitch));
    k = scratch.Take<uint32_t>(keys / 2 * pitch);
    dk = scratch.Take<float>(keys * pitch);
    dv = scratch.Take<float>(keys * value_pitch);
    bytes = scratch.bytes();
  }
};

bool AreNarrow(const KernelSpec& spec, int q) {
  const TensorArg &x = spec.in[q], &v = spec.in[q + 2];
  return x.dtype == DType::kBFloat16 && x.extent[3] % 2 == 0 && v.extent[3] % 2 == 0;
}

}  // namespace

int64_t NarrowAttentionBytes(const KernelSpec& spec) {
  return AreNarrow(spec, 0) ? NarrowForward(AttentionExtents(spec, spec.attrs, 0)).bytes : 0;
}
int64_t NarrowAttentionGradBytes(const KernelSpec& spec) {
  return AreNarrow(spec, 1) ? NarrowBackward(AttentionExtents(spec, spec.attrs, 1)).bytes : 0;
}

#if defined(OFL_NARROW_TILES)

namespace {

using scalar::kInfinity;
using Lanes = float[kLanes];

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// Rows of pairs of a block of queries, zeros after the last one.
void PairBlock(HeadRows from, int64_t count, int64_t width, uint32_t* to) {
  const int64_t pitch = PitchOf(width), pairs = (count + 1) / 2;
  PairRows(from.at, from.row, count, width, pitch, to);
  std::fill_n(to + pairs * pitch, (kRowPairs - pairs) * pitch, 0u);
}

// Brings rows that are soon to be read into the second-level cache: those of one head lie apart, and waiting
// for a block of them takes longer than the products of a tile. GCC leaves out calls of functions that do
// nothing but __builtin_prefetch.
void AskFor(HeadRows rows, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = 0; d < width; d += 32) asm volatile("prefetcht1 %0" ::"m"(rows.at[i * rows.row + d]));
}

void StoreRows(const float* from, int64_t pitch, int64_t rows, int64_t width, BFloat16* to, int64_t row) {
  for (int64_t i = 0; i < rows; ++i) Narrow(from + i * pitch, width, to + i * row);
}

// Adds bias and masks to a tile of scores to base 2. Returns by what they are still to be multiplied:
// `factor`, where the product left it out and nothing forbids to apply it later.
template <typename Products>
float MaskScores(const AttentionCall& call, const BlockMask& mask, int64_t keys, float factor, float* tile) {
  if (Products::kScales) {
    factor = 1;
  } else if (call.bias != nullptr || factor <= 0) {  // what is masked is to stay minus infinity
    for (int64_t i = 0; i < keys * kLanes; ++i) tile[i] *= factor;
    factor = 1;
  }
  mask.AddBias(kLog2E, tile);
  mask.Mask(-kInfinity, tile);
  return factor;
}

// --- Forward

// Sums of 2^(score - reference). The reference is the greatest score so far, or with
// Products::kKeepsReference one that is less by at most 8: sums are then seldom brought to another one.
struct NarrowRunning {
  alignas(64) Lanes reference, total, rescale;
  bool moved;  // whether the last tile changed a reference: earlier sums are to be multiplied by `rescale`
};

__m512 OrZero(__m512 reference) {  // of a query that has seen no key yet
  const __mmask16 blind = _mm512_cmp_ps_mask(reference, _mm512_set1_ps(-kInfinity), _CMP_EQ_OQ);
  return _mm512_mask_mov_ps(reference, blind, _mm512_setzero_ps());
}

template <typename Products>
void MoveReferences(int64_t keys, float factor, const float* tile, NarrowRunning* run) {
  constexpr int kVectors = kLanes / 16;
  __m512 top[kVectors];
  for (__m512& t : top) t = _mm512_set1_ps(-kInfinity);
  for (int64_t j = 0; j < keys; ++j)
    Unrolled<kVectors>([&](auto i) __attribute__((always_inline)) {
      top[i] = _mm512_max_ps(_mm512_load_ps(tile + j * kLanes + 16 * i), top[i]);
    });
  const __m512 slack = _mm512_set1_ps(Products::kKeepsReference ? 8.0f : 0.0f), by = _mm512_set1_ps(factor);
  __mmask16 moved = 0;
  Unrolled<kVectors>([&](auto i) __attribute__((always_inline)) {
    const __m512 before = _mm512_load_ps(run->reference + 16 * i), greatest = _mm512_mul_ps(top[i], by);
    const __mmask16 above = _mm512_cmp_ps_mask(greatest, _mm512_add_ps(before, slack), _CMP_GT_OQ);
    const __m512 now = _mm512_mask_mov_ps(before, above, greatest);
    _mm512_store_ps(run->reference + 16 * i, now);
    _mm512_store_ps(run->rescale + 16 * i, Products::Power(_mm512_sub_ps(before, OrZero(now))));
    moved |= above;
  });
  run->moved = moved != 0;
}

// pairs[key / 2][lane][2] = 2^(factor * score - reference), with zeros up to the next multiple of 32 keys;
// brings references and sums up to date.
template <typename Products, bool kDrops>
void NarrowSoftmaxTile(int64_t keys, int64_t first, float factor, const float* tile, const float* drop,
                       NarrowRunning* run, uint32_t* pairs) {
  MoveReferences<Products>(keys, factor, tile, run);
  const __m512 by = _mm512_set1_ps(factor);
  for (int64_t i = 0; i < kLanes; i += 16) {
    const int64_t seen = KeysBefore(keys, first, i + 16);
    const __m512 reference = OrZero(_mm512_load_ps(run->reference + i));
    __m512 sum = _mm512_setzero_ps();
    const auto probability = [&](int64_t j) __attribute__((always_inline)) {
      const __m512 score = _mm512_load_ps(tile + j * kLanes + i),
                   e = Products::Power(_mm512_fmsub_ps(score, by, reference));
      sum = _mm512_add_ps(sum, e);
      return !kDrops ? e : _mm512_mul_ps(e, _mm512_load_ps(drop + j * kLanes + i));
    };
    uint32_t* to = pairs + i;
    int64_t j = 0;
    for (; j + 2 <= seen; j += 2, to += kLanes) {
      const __m512 x = probability(j), y = probability(j + 1);
      _mm512_store_si512(to, NarrowPairs(x, y));
    }
    for (; j < RoundedUp(keys, 32); j += 2, to += kLanes)
      _mm512_store_si512(to,
                         NarrowPairs(j < seen ? probability(j) : _mm512_setzero_ps(), _mm512_setzero_ps()));
    const __m512 total = _mm512_load_ps(run->total + i), rescale = _mm512_load_ps(run->rescale + i);
    _mm512_store_ps(run->total + i, _mm512_fmadd_ps(total, rescale, sum));
  }
}

// A block of queries that keys go by.
struct NarrowBlock {
  int64_t b, h, s, count, visible;
  uint32_t* q;
  float* o;
  NarrowRunning run;
};

void BeginBlock(const KernelContext& context, const AttentionCall& call, NarrowBlock* block) {
  const auto& [b, h, s, count, visible, q, o, run] = *block;
  PairLanes<kLanes>(context.in[0].as<BFloat16>() + call.InQ(b, s, h), call.q_row, count, call.width, q);
  std::fill_n(o, PitchOf(call.value_width) * kLanes, 0.0f);
  std::fill_n(block->run.reference, kLanes, -kInfinity);
  std::fill_n(block->run.total, kLanes, 0.0f);
}

void EndBlock(const KernelContext& context, const AttentionCall& call, NarrowBlock* block) {
  const auto& [b, h, s, count, visible, q, o, run] = *block;
  Lanes inverse;
  float* lse = context.out[1].as<float>() + call.InLse(b, s, h);
  for (int64_t i = 0; i < count; ++i) {
    bool blind = run.total[i] == 0;
    lse[i] = blind ? -kInfinity : run.reference[i] * kLn2 + std::log(run.total[i]);
    inverse[i] = blind ? 0.0f : 1.0f / run.total[i];
  }
  std::fill(inverse + count, inverse + kLanes, 0.0f);
  NarrowLanes<kLanes>(o, inverse, count, call.value_width, context.out[0].as<BFloat16>() + call.InO(b, s, h),
                      call.o_row);
}

// Of `keys` keys from t on that the block has, the values laid out in `v`.
template <typename Products>
void ForwardTile(const KernelContext& context, const AttentionCall& call, int64_t t, int64_t keys,
                 const BlockMask& mask, const uint32_t* v, const NarrowForward& scratch, Products* products,
                 NarrowBlock* block) {
  const int64_t first = mask.FirstMasked();
  const HeadRows k{context.in[1].as<BFloat16>() + call.InK(block->b, t, block->h / call.group), call.k_row};
  float factor = call.scale * kLog2E;
  products->Scores(keys, first, call.width, k, scratch.room, block->q, factor, scratch.tile);
  factor = MaskScores<Products>(call, mask, keys, factor, scratch.tile);
  if (call.drop > 0) {
    call.DropFactors(block->b, block->h, block->s, block->count, t, keys, scratch.drop);
    NarrowSoftmaxTile<Products, true>(keys, first, factor, scratch.tile, scratch.drop, &block->run,
                                      scratch.p);
  } else {
    NarrowSoftmaxTile<Products, false>(keys, first, factor, scratch.tile, nullptr, &block->run, scratch.p);
  }
  if (t > 0 && block->run.moved) RescaleLanes(block->run.rescale, call.value_width, block->o);
  products->Lanes(call.value_width, keys, first, v, scratch.p, block->o);
}

// Blocks of heads that share one of keys.
template <typename Products>
void ForwardBlocks(const KernelContext& context, const AttentionCall& call, NarrowBlock* blocks, int64_t n,
                   const NarrowForward& scratch, Products* products) {
  const BFloat16* values = context.in[2].as<BFloat16>();
  const int64_t tile_pairs = kRowPairs * PitchOf(call.value_width);
  int64_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    BeginBlock(context, call, &blocks[i]);
    most = std::max(most, blocks[i].visible);
  }
  for (int64_t begin = 0; begin < most; begin += kSpanTiles * kTileKeys) {
    bool laid[kSpanTiles] = {};  // none that nobody sees
    for (NarrowBlock* block = blocks; block < blocks + n; ++block) {
      BlockMask mask(call, block->b, block->h, block->s, block->count);
      for (int64_t i = 0, t = begin; i < kSpanTiles && t < block->visible; ++i, t += kTileKeys) {
        const int64_t keys = std::min(kTileKeys, block->visible - t);
        if (!mask.Sees(t, keys)) continue;
        uint32_t* v = scratch.v + i * tile_pairs;
        if (!laid[i])
          Products::Across({values + call.InV(block->b, t, block->h / call.group), call.v_row},
                           std::min(kTileKeys, most - t), call.value_width, v);
        laid[i] = true;
        ForwardTile(context, call, t, keys, mask, v, scratch, products, block);
      }
    }
  }
  for (int64_t i = 0; i < n; ++i) EndBlock(context, call, &blocks[i]);
}

// Blocks [begin, end) of all.
template <typename Products>
void ForwardPart(const KernelContext& context, const AttentionCall& call, int64_t begin, int64_t end,
                 const NarrowForward& scratch) {
  Products products;
  const int64_t of_head = (call.queries + kLanes - 1) / kLanes;
  NarrowBlock blocks[kBlocks];
  while (begin < end) {
    const int64_t keys_of_first = begin / of_head / call.group;
    int64_t n = 0;
    for (; n < kBlocks && begin < end && begin / of_head / call.group == keys_of_first; ++n, ++begin) {
      NarrowBlock& block = blocks[n];
      block.b = begin / of_head / call.heads;
      block.h = begin / of_head % call.heads;
      block.s = begin % of_head * kLanes;
      block.count = std::min(kLanes, call.queries - block.s);
      block.visible = call.Visible(block.s, block.count);
      block.q = scratch.q + n * PitchOf(call.width) / 2 * kLanes;
      block.o = scratch.o + n * PitchOf(call.value_width) * kLanes;
    }
    ForwardBlocks(context, call, blocks, n, scratch, &products);
  }
}

template <typename Products>
Status ForwardBy(const KernelContext& context) {
  AttentionCall call(context, 0, 3);
  int64_t blocks = (call.queries + kLanes - 1) / kLanes;
  const AttentionExtents extents(context, context.spec.attrs, 0);
  const int64_t bytes = NarrowForward(extents).bytes;
  ParallelForParts(call.batch * call.heads * blocks, 1, context.spec.threads,
                   [&](int64_t begin, int64_t end, int part) {
                     const NarrowForward scratch(extents, static_cast<char*>(context.scratch) + part * bytes);
                     ForwardPart<Products>(context, call, begin, end, scratch);
                   });
  return Status();
}

// --- Backward

// dots[i] = x's row i times y's, 0 past the last one. A row has 16 sums, the last columns in the first of
// them.
void DotRows(HeadRows x, HeadRows y, int64_t count, int64_t width, float* dots) {
  const int64_t whole = width / 16 * 16;
  const auto wide = [](const BFloat16* from) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  };
  __m512i rows[16];
  for (int64_t i = 0; i < kLanes; i += 16) {
    for (int64_t r = 0; r < 16; ++r) {
      __m512 sums = _mm512_setzero_ps();
      if (i + r < count) {
        const BFloat16 *a = x.at + (i + r) * x.row, *b = y.at + (i + r) * y.row;
        for (int64_t d = 0; d < whole; d += 16) sums = _mm512_fmadd_ps(wide(a + d), wide(b + d), sums);
        float first = _mm512_cvtss_f32(sums);
        for (int64_t d = whole; d < width; ++d) first = std::fma(ToFloat(a[d]), ToFloat(b[d]), first);
        sums = _mm512_mask_mov_ps(sums, 1, _mm512_set1_ps(first));
      }
      rows[r] = _mm512_castps_si512(sums);
    }
    Transpose(rows);
    __m512 dot = _mm512_setzero_ps();
    for (const __m512i& lane : rows) dot = _mm512_add_ps(dot, _mm512_castsi512_ps(lane));
    _mm512_store_ps(dots + i, dot);
  }
}

void LoadNarrowBlock(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t h, int64_t s,
                     int64_t count, const NarrowBackward& scratch) {
  const BFloat16* dy = context.in[0].as<BFloat16>() + call.InO(b, s, h);
  const BFloat16* q = context.in[1].as<BFloat16>() + call.InQ(b, s, h);
  const BFloat16* o = context.in[4].as<BFloat16>() + call.InO(b, s, h);
  const float* lse = context.in[5].as<float>() + call.InLse(b, s, h);
  PairLanes<kLanes>(q, call.q_row, count, call.width, scratch.q_lanes);
  PairLanes<kLanes>(dy, call.o_row, count, call.value_width, scratch.dy_lanes);
  PairBlock({q, call.q_row}, count, call.width, scratch.q_rows);
  PairBlock({dy, call.o_row}, count, call.value_width, scratch.dy_rows);
  for (int64_t i = 0; i < kLanes; ++i) {
    // Lanes past the end, and queries that saw no key: p = 0.
    scratch.lse[i] = i < count && lse[i] != -kInfinity ? lse[i] * kLog2E : kInfinity;
    scratch.one[i] = 1;
  }
  DotRows({dy, call.o_row}, {o, call.o_row}, count, call.value_width, scratch.dot);
}

// p = 2^(factor * score - lse) and ds = p (keep dp - dot) scale; where masked 0. p times keep and ds become
// rows of lanes in bf16, ds also pairs of keys; zeros follow up to the next multiple of 32 keys.
template <typename Products, bool kDrops>
void NarrowSlopeTile(const AttentionCall& call, int64_t keys, int64_t first, float factor,
                     const NarrowBackward& s) {
  const __m512 scale = _mm512_set1_ps(call.scale), by = _mm512_set1_ps(factor);
  for (int64_t i = 0; i < kLanes; i += 32) {
    const int64_t seen = KeysBefore(keys, first, i + 32);
    const __m512 lse[2] = {_mm512_load_ps(s.lse + i), _mm512_load_ps(s.lse + i + 16)},
                 dot[2] = {_mm512_load_ps(s.dot + i), _mm512_load_ps(s.dot + i + 16)};
    // Stores p of key j; returns its slopes.
    const auto row = [&](int64_t j) __attribute__((always_inline)) {
      __m512 p[2], ds[2];
      Unrolled<2>([&](auto half) __attribute__((always_inline)) {
        const int64_t at = j * kLanes + i + 16 * half;
        const __m512 x = Products::Power(_mm512_fmsub_ps(_mm512_load_ps(s.p + at), by, lse[half])),
                     keep = kDrops ? _mm512_load_ps(s.drop + at) : _mm512_set1_ps(1),
                     slope = _mm512_fmsub_ps(keep, _mm512_load_ps(s.dp + at), dot[half]);
        ds[half] = _mm512_mul_ps(_mm512_mul_ps(x, slope), scale);
        p[half] = kDrops ? _mm512_mul_ps(x, keep) : x;
      });
      const __m512i slopes = NarrowTwo(ds[0], ds[1]);
      _mm512_store_si512(s.p_rows + j * kLanes + i, NarrowTwo(p[0], p[1]));
      _mm512_store_si512(s.ds_rows + j * kLanes + i, slopes);
      return slopes;
    };
    const auto zero = [&](int64_t j) {
      _mm512_store_si512(s.p_rows + j * kLanes + i, _mm512_setzero_si512());
      _mm512_store_si512(s.ds_rows + j * kLanes + i, _mm512_setzero_si512());
      return _mm512_setzero_si512();
    };
    uint32_t* to = s.ds_pairs + i;
    int64_t j = 0;
    const auto pairs = [&](__m512i x, __m512i y) __attribute__((always_inline)) {
      _mm512_store_si512(to, InterleaveLow(x, y));
      _mm512_store_si512(to + 16, InterleaveHigh(x, y));
      j += 2;
      to += kLanes;
    };
    while (j + 2 <= seen) {
      const __m512i x = row(j), y = row(j + 1);
      pairs(x, y);
    }
    while (j < RoundedUp(keys, 32)) {
      const __m512i x = j < seen ? row(j) : zero(j), y = zero(j + 1);
      pairs(x, y);
    }
  }
}

// Zeroes what Products::Scores leaves out on the diagonal.
void ZeroUnseen(int64_t keys, int64_t first, float* tile) {
  for (int64_t n = 0; n < kLanes && first < keys; n += 16)
    for (int64_t j = KeysBefore(keys, first, n + 16); j < keys; ++j)
      _mm512_store_ps(tile + j * kLanes + n, _mm512_setzero_ps());
}

template <typename Products>
void BackwardTile(const KernelContext& context, const AttentionCall& call, const int64_t (&place)[4],
                  int64_t t, int64_t keys, const BlockMask& mask, const NarrowBackward& scratch,
                  Products* products) {
  auto [b, h, s, count] = place;
  const int64_t g = h / call.group, width = call.width, value_width = call.value_width;
  const int64_t pitch = PitchOf(width), value_pitch = PitchOf(value_width), first = mask.FirstMasked();
  const HeadRows k{context.in[2].as<BFloat16>() + call.InK(b, t, g), call.k_row},
      v{context.in[3].as<BFloat16>() + call.InV(b, t, g), call.v_row};
  float factor = call.scale * kLog2E;
  products->Scores(keys, first, width, k, scratch.room, scratch.q_lanes, factor, scratch.p);
  products->Scores(keys, first, value_width, v, scratch.room, scratch.dy_lanes, 1, scratch.dp);
  ZeroUnseen(keys, first, scratch.dp);
  factor = MaskScores<Products>(call, mask, keys, factor, scratch.p);
  if (call.drop > 0) {
    std::fill_n(scratch.drop, kTileKeys * kLanes, 0.0f);
    call.DropFactors(b, h, s, count, t, keys, scratch.drop);
    NarrowSlopeTile<Products, true>(call, keys, first, factor, scratch);
  } else {
    NarrowSlopeTile<Products, false>(call, keys, first, factor, scratch);
  }
  products->Keys(keys, value_width, first, count, scratch.p_rows, scratch.dy_rows,
                 scratch.dv + t * value_pitch);
  products->Keys(keys, width, first, count, scratch.ds_rows, scratch.q_rows, scratch.dk + t * pitch);
  products->Lanes(width, keys, first, scratch.k + t / 2 * pitch, scratch.ds_pairs, scratch.dq);
}

// Of a block's queries [s, s + count).
void AskForQueries(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t h, int64_t s,
                   int64_t count) {
  count = std::min(count, call.queries - s);
  const int64_t in_q = call.InQ(b, s, h), in_o = call.InO(b, s, h);
  AskFor({context.in[1].as<BFloat16>() + in_q, call.q_row}, count, call.width);
  AskFor({context.in[0].as<BFloat16>() + in_o, call.o_row}, count, call.value_width);
  AskFor({context.in[4].as<BFloat16>() + in_o, call.o_row}, count, call.value_width);
}

template <typename Products>
void NarrowBackwardBlock(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t h,
                         int64_t s, const NarrowBackward& scratch, Products* products) {
  int64_t count = std::min(kLanes, call.queries - s);
  LoadNarrowBlock(context, call, b, h, s, count, scratch);
  std::fill_n(scratch.dq, PitchOf(call.width) * kLanes, 0.0f);
  BlockMask mask(call, b, h, s, count);
  int64_t visible = call.Visible(s, count);
  // Some of the next block's queries with each tile.
  const int64_t some = kLanes / std::max<int64_t>(1, RoundedUp(visible, kTileKeys) / kTileKeys) + 1;
  for (int64_t t = 0, next = s + kLanes; t < visible; t += kTileKeys, next += some) {
    AskForQueries(context, call, b, h, next, std::min(some, s + 2 * kLanes - next));
    int64_t keys = std::min(kTileKeys, visible - t);
    if (mask.Sees(t, keys)) BackwardTile(context, call, {b, h, s, count}, t, keys, mask, scratch, products);
  }
  NarrowLanes<kLanes>(scratch.dq, scratch.one, count, call.width,
                      context.out[0].as<BFloat16>() + call.InQ(b, s, h), call.q_row);
}

// All heads of queries that share head `g` of keys.
template <typename Products>
void BackwardGroup(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t g,
                   const NarrowBackward& scratch, Products* products) {
  const int64_t keys = call.keys, pitch = PitchOf(call.width), value_pitch = PitchOf(call.value_width),
                padded = RoundedUp(keys, kTileKeys);
  const BFloat16* k = context.in[2].as<BFloat16>();
  AskForQueries(context, call, b, g * call.group, 0, kLanes);
  for (int64_t t = 0; t < keys; t += kTileKeys)
    Products::Across({k + call.InK(b, t, g), call.k_row}, std::min(kTileKeys, keys - t), call.width,
                     scratch.k + t / 2 * pitch);
  std::fill_n(scratch.dk, padded * pitch, 0.0f);
  std::fill_n(scratch.dv, padded * value_pitch, 0.0f);
  for (int64_t h = g * call.group; h < (g + 1) * call.group; ++h)
    for (int64_t s = 0; s < call.queries; s += kLanes)
      NarrowBackwardBlock(context, call, b, h, s, scratch, products);
  StoreRows(scratch.dk, pitch, keys, call.width, context.out[1].as<BFloat16>() + call.InK(b, 0, g),
            call.k_row);
  StoreRows(scratch.dv, value_pitch, keys, call.value_width,
            context.out[2].as<BFloat16>() + call.InV(b, 0, g), call.v_row);
}

template <typename Products>
Status BackwardBy(const KernelContext& context) {
  AttentionCall call(context, 1, 6);
  const AttentionExtents extents(context, context.spec.attrs, 1);
  const int64_t bytes = NarrowBackward(extents).bytes;
  ParallelForParts(
      call.batch * call.key_heads, 1, context.spec.threads, [&](int64_t begin, int64_t end, int part) {
        const NarrowBackward scratch(extents, static_cast<char*>(context.scratch) + part * bytes);
        Products products;
        for (int64_t pair = begin; pair < end; ++pair)
          BackwardGroup(context, call, pair / call.key_heads, pair % call.key_heads, scratch, &products);
      });
  return Status();
}

}  // namespace

bool NarrowFits(const KernelSpec& spec, int q) { return AreNarrow(spec, q); }

Status NarrowAttention(const KernelContext& context) {
  return HasTiles() ? TiledAttention(context) : ForwardBy<PairProducts>(context);
}
Status NarrowAttentionGrad(const KernelContext& context) {
  return HasTiles() ? TiledAttentionGrad(context) : BackwardBy<PairProducts>(context);
}

#else

bool NarrowFits(const KernelSpec&, int) { return false; }
Status NarrowAttention(const KernelContext&) { return Status("this build multiplies no bf16"); }
Status NarrowAttentionGrad(const KernelContext&) { return Status("this build multiplies no bf16"); }

#endif

// On AMX's tiles where they may be used, else on plain ones, which no level needs.
Status TiledAttention(const KernelContext& context) {
#if defined(OFL_AMX_TILES)
  if (HasTiles()) return ForwardBy<TileProducts<AmxTiles>>(context);
#endif
#if defined(OFL_NARROW_TILES) && !defined(OFL_CPU_ENTRY)
  return ForwardBy<TileProducts<PlainTiles>>(context);
#else
  return Status(Cat("this build has no tiles for ", context.spec.name));
#endif
}

Status TiledAttentionGrad(const KernelContext& context) {
#if defined(OFL_AMX_TILES)
  if (HasTiles()) return BackwardBy<TileProducts<AmxTiles>>(context);
#endif
#if defined(OFL_NARROW_TILES) && !defined(OFL_CPU_ENTRY)
  return BackwardBy<TileProducts<PlainTiles>>(context);
#else
  return Status(Cat("this build has no tiles for ", context.spec.name));
#endif
}

}  // namespace oneflow_like::cpu
