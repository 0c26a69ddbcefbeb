// Measured on a core with AVX-512 BF16 and no AMX, beside widening the same operands to fp32: see
// tests/PERFORMANCE.md. Tiles are those of attention_tile.h, queries along the lanes. Of the operands in
// memory keys and values are read as they lie where a product runs along a head; what it runs across, keys or
// queries, is put together as rows of pairs.
#include "ops/cpu/attention_narrow.h"

#include <algorithm>
#include <cmath>

#include "core/device/scratch.h"
#include "core/error.h"
#include "ops/cpu/attention_tile.h"
#include "ops/cpu/narrow_tile.h"

namespace oneflow_like::cpu {
namespace {

constexpr int64_t kRowPairs = kTileKeys / 2;

// Columns of rows of pairs: full vectors.
int64_t PitchOf(int64_t width) { return (width + 31) / 32 * 32; }

// Of one thread.
struct NarrowForward {
  uint32_t *q, *v, *p;  // pairs
  float *o, *tile, *drop;
  int64_t bytes;
  explicit NarrowForward(const AttentionExtents& e, void* memory = nullptr) {
    Scratch scratch(memory);
    q = scratch.Take<uint32_t>(e.width / 2 * kLanes);
    v = scratch.Take<uint32_t>(kRowPairs * PitchOf(e.value_width));
    p = scratch.Take<uint32_t>(kRowPairs * kLanes);
    o = scratch.Take<float>(e.value_width * kLanes);
    tile = scratch.Take<float>(kTileKeys * kLanes);
    drop = scratch.Take<float>(e.drops ? kTileKeys * kLanes : 0);
    bytes = scratch.bytes();
  }
};

// Of one thread.
struct NarrowBackward {
  uint32_t *q_lanes, *dy_lanes, *q_rows, *dy_rows, *ds_pairs;  // pairs
  float *p, *dp, *drop, *dq, *lse, *dot, *one;
  float* row[2];
  BFloat16 *p_rows, *ds_rows;
  uint32_t* k_rows;  // of a head of keys
  float *dk, *dv;
  int64_t bytes;
  explicit NarrowBackward(const AttentionExtents& e, void* memory = nullptr) {
    Scratch scratch(memory);
    const int64_t pitch = PitchOf(e.width), value_pitch = PitchOf(e.value_width), tile = kTileKeys * kLanes;
    q_lanes = scratch.Take<uint32_t>(e.width / 2 * kLanes);
    dy_lanes = scratch.Take<uint32_t>(e.value_width / 2 * kLanes);
    q_rows = scratch.Take<uint32_t>(kRowPairs * pitch);
    dy_rows = scratch.Take<uint32_t>(kRowPairs * value_pitch);
    ds_pairs = scratch.Take<uint32_t>(kRowPairs * kLanes);
    p = scratch.Take<float>(tile);
    dp = scratch.Take<float>(tile);
    drop = scratch.Take<float>(e.drops ? tile : 0);
    dq = scratch.Take<float>(e.width * kLanes);
    for (float** lanes : {&lse, &dot, &one}) *lanes = scratch.Take<float>(kLanes);
    for (float*& wide : row) wide = scratch.Take<float>(e.value_width);
    p_rows = scratch.Take<BFloat16>(tile);
    ds_rows = scratch.Take<BFloat16>(tile);
    k_rows = scratch.Take<uint32_t>((e.keys + 1) / 2 * pitch);
    dk = scratch.Take<float>(e.keys * pitch);
    dv = scratch.Take<float>(e.keys * value_pitch);
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

const Pair* AsPairs(const void* x) { return static_cast<const Pair*>(x); }

// to[row / 2][lane][2] = rows of a tile as pairs. After an odd last row comes one of zeros.
void NarrowTilePairs(float* tile, int64_t rows, uint32_t* to) {
  if (rows % 2 != 0) std::fill_n(tile + rows * kLanes, kLanes, 0.0f);
  for (int64_t j = 0; j < rows; j += 2) {
    const float *x = tile + j * kLanes, *y = x + kLanes;
    for (int64_t i = 0; i < kLanes; i += 16)
      _mm512_storeu_si512(to + j / 2 * kLanes + i,
                          NarrowPairs(_mm512_loadu_ps(x + i), _mm512_loadu_ps(y + i)));
  }
}

// to[row][lane], in bf16.
void NarrowTileRows(const float* tile, int64_t rows, BFloat16* to) {
  for (int64_t i = 0; i < rows * kLanes; i += 32)
    _mm512_storeu_si512(to + i, NarrowTwo(_mm512_loadu_ps(tile + i), _mm512_loadu_ps(tile + i + 16)));
}

// Products on a tile of which lane i holds only keys before first + i, as the causal mask has it on the
// diagonal: what it masks is left out by blocks of 16 lanes or 12 keys.

// c[key][lane] = factor a b, 0 in blocks left out.
void ScoreProduct(int64_t keys, int64_t first, int64_t pairs, const Pair* a, int64_t a_row, const uint32_t* b,
                  float* c, float factor) {
  if (first >= keys)
    return PairProduct(keys, kLanes, pairs, a, a_row, 1, b, kLanes, c, kLanes, factor, false);
  for (int64_t n = 0; n < kLanes; n += 16) {
    int64_t rows = std::clamp<int64_t>(first + n + 15, 0, keys);
    PairColumns<1>(rows, pairs, a, a_row, 1, b + n, kLanes, c + n, kLanes, factor, false);
    for (int64_t j = rows; j < keys; ++j) std::fill_n(c + j * kLanes + n, 16, 0.0f);
  }
}

// c[d][lane] += a[d][key] b[key][lane], both as pairs of keys.
void LaneProduct(int64_t width, int64_t keys, int64_t first, const uint32_t* a, int64_t pitch,
                 const uint32_t* b, float* c) {
  if (first >= keys) {
    return PairProduct(width, kLanes, (keys + 1) / 2, AsPairs(a), 1, pitch, b, kLanes, c, kLanes, 1, true);
  }
  for (int64_t n = 0; n < kLanes; n += 16) {
    int64_t pairs = (std::clamp<int64_t>(first + n + 15, 0, keys) + 1) / 2;
    PairColumns<1>(width, pairs, AsPairs(a), 1, pitch, b + n, kLanes, c + n, kLanes, 1, true);
  }
}

// c[key][d] += a[key][lane] b[lane][d], both as pairs of lanes.
void KeyProduct(int64_t keys, int64_t width, int64_t first, int64_t count, const BFloat16* a,
                const uint32_t* b, int64_t pitch, float* c) {
  int64_t pairs = (count + 1) / 2, step = first >= keys ? keys : 12;
  for (int64_t j = 0; j < keys; j += step) {
    int64_t begin = std::clamp<int64_t>((j - first + 1) / 2, 0, pairs);
    PairProduct(std::min(step, keys - j), width, pairs - begin, AsPairs(a + j * kLanes) + begin, kLanes / 2,
                1, b + begin * pitch, pitch, c + j * pitch, pitch, 1, true);
  }
}

void StoreRows(const float* from, int64_t pitch, int64_t rows, int64_t width, BFloat16* to, int64_t row) {
  for (int64_t i = 0; i < rows; ++i) Narrow(from + i * pitch, width, to + i * row);
}

// --- Forward

// Maxima and sums of 2^score.
struct NarrowRunning {
  alignas(64) Lanes greatest, total, rescale;
};

// Turns a tile of scores (to base 2) into 2^(score - greatest) and brings maximum and sum up to date.
void NarrowSoftmaxTile(int64_t key_count, float* tile, NarrowRunning* run) {
  for (int64_t i = 0; i < kLanes; i += 16) {
    __m512 before = _mm512_load_ps(run->greatest + i), top = before, sum = _mm512_setzero_ps();
    for (int64_t j = 0; j < key_count; ++j) top = _mm512_max_ps(_mm512_load_ps(tile + j * kLanes + i), top);
    __mmask16 blind = _mm512_cmp_ps_mask(top, _mm512_set1_ps(-kInfinity), _CMP_EQ_OQ);
    __m512 safe = _mm512_mask_blend_ps(blind, top, _mm512_setzero_ps());
    __m512 rescale = PowerOfTwo(_mm512_sub_ps(before, safe));
    for (int64_t j = 0; j < key_count; ++j) {
      __m512 e = PowerOfTwo(_mm512_sub_ps(_mm512_load_ps(tile + j * kLanes + i), safe));
      _mm512_store_ps(tile + j * kLanes + i, e);
      sum = _mm512_add_ps(sum, e);
    }
    _mm512_store_ps(run->greatest + i, top);
    _mm512_store_ps(run->rescale + i, rescale);
    _mm512_store_ps(run->total + i, _mm512_fmadd_ps(_mm512_load_ps(run->total + i), rescale, sum));
  }
}

void ForwardTile(const KernelContext& context, const AttentionCall& call, const int64_t (&place)[4],
                 int64_t t, int64_t key_count, const BlockMask& mask, NarrowRunning* run,
                 const NarrowForward& scratch) {
  auto [b, h, s, count] = place;
  int64_t g = h / call.group, pitch = PitchOf(call.value_width);
  const BFloat16* k = context.in[1].as<BFloat16>() + call.InK(b, t, g);
  const BFloat16* v = context.in[2].as<BFloat16>() + call.InV(b, t, g);
  int64_t first = mask.FirstMasked();
  ScoreProduct(key_count, first, call.width / 2, AsPairs(k), call.k_row / 2, scratch.q, scratch.tile,
               call.scale * kLog2E);
  mask.AddBias(kLog2E, scratch.tile);
  mask.Mask(-kInfinity, scratch.tile);
  NarrowSoftmaxTile(key_count, scratch.tile, run);
  if (call.drop > 0) {
    call.DropFactors(b, h, s, count, t, key_count, scratch.drop);
    for (int64_t i = 0; i < key_count * kLanes; ++i) scratch.tile[i] *= scratch.drop[i];
  }
  NarrowTilePairs(scratch.tile, key_count, scratch.p);
  PairRows(v, call.v_row, key_count, call.value_width, pitch, scratch.v);
  if (t > 0) RescaleLanes(run->rescale, call.value_width, scratch.o);
  LaneProduct(call.value_width, key_count, first, scratch.v, pitch, scratch.p, scratch.o);
}

void NarrowForwardBlock(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t h,
                        int64_t s, const NarrowForward& scratch) {
  int64_t count = std::min(kLanes, call.queries - s);
  PairLanes<kLanes>(context.in[0].as<BFloat16>() + call.InQ(b, s, h), call.q_row, count, call.width,
                    scratch.q);
  std::fill_n(scratch.o, call.value_width * kLanes, 0.0f);
  NarrowRunning run;
  std::fill_n(run.greatest, kLanes, -kInfinity);
  std::fill_n(run.total, kLanes, 0.0f);
  BlockMask mask(call, b, h, s, count);
  int64_t visible = call.Visible(s, count);
  for (int64_t t = 0; t < visible; t += kTileKeys) {
    int64_t key_count = std::min(kTileKeys, visible - t);
    if (mask.Sees(t, key_count))
      ForwardTile(context, call, {b, h, s, count}, t, key_count, mask, &run, scratch);
  }
  float* lse = context.out[1].as<float>() + call.InLse(b, s, h);
  for (int64_t i = 0; i < count; ++i) {
    bool blind = run.total[i] == 0;
    lse[i] = blind ? -kInfinity : run.greatest[i] * kLn2 + std::log(run.total[i]);
    run.total[i] = blind ? 0.0f : 1.0f / run.total[i];
  }
  NarrowLanes<kLanes>(scratch.o, run.total, count, call.value_width,
                      context.out[0].as<BFloat16>() + call.InO(b, s, h), call.o_row);
}

// --- Backward

void LoadNarrowBlock(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t h, int64_t s,
                     int64_t count, const NarrowBackward& scratch) {
  const BFloat16* dy = context.in[0].as<BFloat16>() + call.InO(b, s, h);
  const BFloat16* q = context.in[1].as<BFloat16>() + call.InQ(b, s, h);
  const BFloat16* o = context.in[4].as<BFloat16>() + call.InO(b, s, h);
  const float* lse = context.in[5].as<float>() + call.InLse(b, s, h);
  PairLanes<kLanes>(q, call.q_row, count, call.width, scratch.q_lanes);
  PairLanes<kLanes>(dy, call.o_row, count, call.value_width, scratch.dy_lanes);
  PairRows(q, call.q_row, count, call.width, PitchOf(call.width), scratch.q_rows);
  PairRows(dy, call.o_row, count, call.value_width, PitchOf(call.value_width), scratch.dy_rows);
  for (int64_t i = 0; i < kLanes; ++i) {
    // Lanes past the end, and queries that saw no key: p = 0.
    scratch.lse[i] = i < count && lse[i] != -kInfinity ? lse[i] * kLog2E : kInfinity;
    scratch.dot[i] = 0;
    scratch.one[i] = 1;
  }
  for (int64_t i = 0; i < count; ++i) {
    Widen(dy + i * call.o_row, call.value_width, scratch.row[0]);
    Widen(o + i * call.o_row, call.value_width, scratch.row[1]);
    float sums[16] = {};
    int64_t d = 0;
    for (; d + 16 <= call.value_width; d += 16)
      for (int64_t lane = 0; lane < 16; ++lane)
        sums[lane] += scratch.row[0][d + lane] * scratch.row[1][d + lane];
    for (; d < call.value_width; ++d) sums[0] += scratch.row[0][d] * scratch.row[1][d];
    for (float sum : sums) scratch.dot[i] += sum;
  }
}

// p = 2^(score - lse), and ds = p (keep dp - dot) scale; where masked 0.
void NarrowSlopeTile(const AttentionCall& call, const BlockMask& mask, int64_t keys,
                     const NarrowBackward& s) {
  mask.AddBias(kLog2E, s.p);
  for (int64_t i = 0; i < kLanes; i += 16) {
    __m512 lse = _mm512_load_ps(s.lse + i);
    for (int64_t j = 0; j < keys; ++j) {
      float* p = s.p + j * kLanes + i;
      _mm512_store_ps(p, PowerOfTwo(_mm512_sub_ps(_mm512_load_ps(p), lse)));
    }
  }
  mask.Mask(0.0f, s.p);
  bool drops = call.drop > 0;
  const __m512 scale = _mm512_set1_ps(call.scale);
  for (int64_t i = 0; i < kLanes; i += 16) {
    __m512 dot = _mm512_load_ps(s.dot + i), keep = _mm512_set1_ps(1);
    for (int64_t j = 0; j < keys; ++j) {
      float *p = s.p + j * kLanes + i, *dp = s.dp + j * kLanes + i;
      if (drops) keep = _mm512_load_ps(s.drop + j * kLanes + i);
      __m512 x = _mm512_load_ps(p), slope = _mm512_fmsub_ps(keep, _mm512_load_ps(dp), dot);
      _mm512_store_ps(dp, _mm512_mul_ps(_mm512_mul_ps(x, slope), scale));
      if (drops) _mm512_store_ps(p, _mm512_mul_ps(x, keep));
    }
  }
}

void BackwardTile(const KernelContext& context, const AttentionCall& call, const int64_t (&place)[4],
                  int64_t t, int64_t keys, const BlockMask& mask, const NarrowBackward& scratch) {
  auto [b, h, s, count] = place;
  int64_t g = h / call.group, width = call.width, value_width = call.value_width;
  int64_t pitch = PitchOf(width), value_pitch = PitchOf(value_width), first = mask.FirstMasked();
  const BFloat16* k = context.in[2].as<BFloat16>() + call.InK(b, t, g);
  const BFloat16* v = context.in[3].as<BFloat16>() + call.InV(b, t, g);
  ScoreProduct(keys, first, width / 2, AsPairs(k), call.k_row / 2, scratch.q_lanes, scratch.p,
               call.scale * kLog2E);
  ScoreProduct(keys, first, value_width / 2, AsPairs(v), call.v_row / 2, scratch.dy_lanes, scratch.dp, 1);
  if (call.drop > 0) {
    std::fill_n(scratch.drop, kTileKeys * kLanes, 0.0f);
    call.DropFactors(b, h, s, count, t, keys, scratch.drop);
  }
  NarrowSlopeTile(call, mask, keys, scratch);
  NarrowTileRows(scratch.p, keys, scratch.p_rows);
  NarrowTileRows(scratch.dp, keys, scratch.ds_rows);
  NarrowTilePairs(scratch.dp, keys, scratch.ds_pairs);
  KeyProduct(keys, value_width, first, count, scratch.p_rows, scratch.dy_rows, value_pitch,
             scratch.dv + t * value_pitch);
  KeyProduct(keys, width, first, count, scratch.ds_rows, scratch.q_rows, pitch, scratch.dk + t * pitch);
  LaneProduct(width, keys, first, scratch.k_rows + t / 2 * pitch, pitch, scratch.ds_pairs, scratch.dq);
}

void NarrowBackwardBlock(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t h,
                         int64_t s, const NarrowBackward& scratch) {
  int64_t count = std::min(kLanes, call.queries - s);
  LoadNarrowBlock(context, call, b, h, s, count, scratch);
  std::fill_n(scratch.dq, call.width * kLanes, 0.0f);
  BlockMask mask(call, b, h, s, count);
  int64_t visible = call.Visible(s, count);
  for (int64_t t = 0; t < visible; t += kTileKeys) {
    int64_t keys = std::min(kTileKeys, visible - t);
    if (mask.Sees(t, keys)) BackwardTile(context, call, {b, h, s, count}, t, keys, mask, scratch);
  }
  NarrowLanes<kLanes>(scratch.dq, scratch.one, count, call.width,
                      context.out[0].as<BFloat16>() + call.InQ(b, s, h), call.q_row);
}

// All heads of queries that share head `g` of keys.
void BackwardGroup(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t g,
                   const NarrowBackward& scratch) {
  int64_t keys = call.keys, pitch = PitchOf(call.width), value_pitch = PitchOf(call.value_width);
  const BFloat16* k = context.in[2].as<BFloat16>() + call.InK(b, 0, g);
  PairRows(k, call.k_row, keys, call.width, pitch, scratch.k_rows);
  std::fill_n(scratch.dk, keys * pitch, 0.0f);
  std::fill_n(scratch.dv, keys * value_pitch, 0.0f);
  for (int64_t h = g * call.group; h < (g + 1) * call.group; ++h)
    for (int64_t s = 0; s < call.queries; s += kLanes) NarrowBackwardBlock(context, call, b, h, s, scratch);
  StoreRows(scratch.dk, pitch, keys, call.width, context.out[1].as<BFloat16>() + call.InK(b, 0, g),
            call.k_row);
  StoreRows(scratch.dv, value_pitch, keys, call.value_width,
            context.out[2].as<BFloat16>() + call.InV(b, 0, g), call.v_row);
}

}  // namespace

bool NarrowFits(const KernelSpec& spec, int q) { return AreNarrow(spec, q); }

Status NarrowAttention(const KernelContext& context) {
  AttentionCall call(context, 0, 3);
  int64_t blocks = (call.queries + kLanes - 1) / kLanes;
  const AttentionExtents extents(context, context.spec.attrs, 0);
  const int64_t bytes = NarrowForward(extents).bytes;
  ParallelForParts(call.batch * call.heads * blocks, 1, context.spec.threads,
                   [&](int64_t begin, int64_t end, int part) {
                     const NarrowForward scratch(extents, static_cast<char*>(context.scratch) + part * bytes);
                     for (int64_t i = begin; i < end; ++i) {
                       int64_t pair = i / blocks;
                       NarrowForwardBlock(context, call, pair / call.heads, pair % call.heads,
                                          i % blocks * kLanes, scratch);
                     }
                   });
  return Status();
}

Status NarrowAttentionGrad(const KernelContext& context) {
  AttentionCall call(context, 1, 6);
  const AttentionExtents extents(context, context.spec.attrs, 1);
  const int64_t bytes = NarrowBackward(extents).bytes;
  ParallelForParts(
      call.batch * call.key_heads, 1, context.spec.threads, [&](int64_t begin, int64_t end, int part) {
        const NarrowBackward scratch(extents, static_cast<char*>(context.scratch) + part * bytes);
        for (int64_t pair = begin; pair < end; ++pair)
          BackwardGroup(context, call, pair / call.key_heads, pair % call.key_heads, scratch);
      });
  return Status();
}

#else

bool NarrowFits(const KernelSpec&, int) { return false; }
Status NarrowAttention(const KernelContext&) { return Status("this build multiplies no bf16"); }
Status NarrowAttentionGrad(const KernelContext&) { return Status("this build multiplies no bf16"); }

#endif

}  // namespace oneflow_like::cpu
