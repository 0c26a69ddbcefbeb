// attention without a matrix of scores: for a block of 64 queries the keys go by in tiles, with a running
// maximum and sum per query (the online softmax of Milakov and Gimelshein 2018; tiled as in Dao et al. 2022).
// Operands of 16-bit types are widened tile by tile, but for bf16 where attention_narrow.h takes it. Tiles
// that are masked throughout are skipped. Blocks of queries are independent and run in parallel.
#include "core/device/scratch.h"
#include "ops/cpu/attention_few.h"
#include "ops/cpu/attention_narrow.h"
#include "ops/cpu/attention_tile.h"
#include "ops/cpu/tile.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

using scalar::kInfinity;

// Of one thread.
struct ForwardScratch {
  float *q, *o, *tile, *drop;
  float* wide[2];  // k or q, and v, of 16-bit types
  int64_t bytes;
  explicit ForwardScratch(const AttentionExtents& e, void* memory = nullptr) {
    Scratch scratch(memory);
    q = scratch.Take<float>(e.width * kLanes);
    o = scratch.Take<float>(e.value_width * kLanes);
    tile = scratch.Take<float>(e.tile_keys * kLanes);
    drop = scratch.Take<float>(e.drops ? e.tile_keys * kLanes : 0);
    wide[0] = scratch.Take<float>(e.wide ? kLanes * e.width : 0);
    wide[1] = scratch.Take<float>(e.wide ? e.tile_keys * e.value_width : 0);
    bytes = scratch.bytes();
  }
};

struct Running {
  alignas(64) float greatest[kLanes], total[kLanes], rescale[kLanes];
};

// Turns a tile of scores into exp(score - greatest) and brings maximum and sum up to date.
void SoftmaxTile(int64_t key_count, float* tile, Running* run) {
  alignas(64) float top[kLanes], sum[kLanes];
  std::copy_n(run->greatest, kLanes, top);
  for (int64_t j = 0; j < key_count; ++j) {
    const float* lanes = tile + j * kLanes;
    for (int64_t i = 0; i < kLanes; ++i) top[i] = lanes[i] > top[i] ? lanes[i] : top[i];
  }
  for (int64_t i = 0; i < kLanes; ++i) {
    float safe = top[i] == -kInfinity ? 0.0f : top[i];  // a query that has seen no key yet
    run->rescale[i] = scalar::ExpOf(run->greatest[i] - safe);
    run->greatest[i] = top[i];
    top[i] = safe;
    sum[i] = 0;
  }
  for (int64_t j = 0; j < key_count; ++j) {
    float* lanes = tile + j * kLanes;
    for (int64_t i = 0; i < kLanes; ++i) {
      float e = scalar::ExpOf(lanes[i] - top[i]);
      lanes[i] = e;
      sum[i] += e;
    }
  }
  for (int64_t i = 0; i < kLanes; ++i) run->total[i] = run->total[i] * run->rescale[i] + sum[i];
}

template <typename T>
void ForwardBlock(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t h, int64_t s,
                  const ForwardScratch& scratch) {
  const T *k = context.in[1].as<T>(), *v = context.in[2].as<T>();
  int64_t count = std::min(kLanes, call.queries - s), width = call.width, g = h / call.group;
  Tile q = TileOf(context.in[0].as<T>() + call.InQ(b, s, h), call.q_row, count, width, scratch.wide[0]);
  LoadLanes(q.data, q.row, count, width, call.scale, scratch.q);
  std::fill_n(scratch.o, call.value_width * kLanes, 0.0f);
  Running run;
  std::fill_n(run.greatest, kLanes, -kInfinity);
  std::fill_n(run.total, kLanes, 0.0f);
  BlockMask mask(call, b, h, s, count);
  int64_t visible = call.Visible(s, count);
  for (int64_t t = 0; t < visible; t += kTileKeys) {
    int64_t key_count = std::min(kTileKeys, visible - t);
    if (!mask.Sees(t, key_count)) continue;
    Tile keys = TileOf(k + call.InK(b, t, g), call.k_row, key_count, width, scratch.wide[0]);
    Tile values = TileOf(v + call.InV(b, t, g), call.v_row, key_count, call.value_width, scratch.wide[1]);
    TileProduct(key_count, kLanes, width, keys.data, keys.row, 1, scratch.q, kLanes, scratch.tile, kLanes,
                false);
    mask.AddBias(1.0f, scratch.tile);
    mask.Mask(-kInfinity, scratch.tile);
    SoftmaxTile(key_count, scratch.tile, &run);
    if (call.drop > 0) {
      call.DropFactors(b, h, s, count, t, key_count, scratch.drop);
      for (int64_t i = 0; i < key_count * kLanes; ++i) scratch.tile[i] *= scratch.drop[i];
    }
    if (t > 0) RescaleLanes(run.rescale, call.value_width, scratch.o);
    TileProduct(call.value_width, kLanes, key_count, values.data, 1, values.row, scratch.tile, kLanes,
                scratch.o, kLanes, true);
  }
  float* lse = context.out[1].as<float>() + call.InLse(b, s, h);
  for (int64_t i = 0; i < count; ++i) {
    bool blind = run.total[i] == 0;
    lse[i] = blind ? -kInfinity : run.greatest[i] + std::log(run.total[i]);
    run.total[i] = blind ? 0.0f : 1.0f / run.total[i];
  }
  StoreLanes(scratch.o, run.total, count, call.value_width, context.out[0].as<T>() + call.InO(b, s, h),
             call.o_row);
}

template <typename T>
Status Attention(const KernelContext& context) {
  AttentionCall call(context, 0, 3);
  int64_t blocks = (call.queries + kLanes - 1) / kLanes;
  const AttentionExtents extents(context, context.spec.attrs, 0);
  const int64_t bytes = ForwardScratch(extents).bytes;
  ParallelForParts(
      call.batch * call.heads * blocks, 1, context.spec.threads, [&](int64_t begin, int64_t end, int part) {
        const ForwardScratch scratch(extents, static_cast<char*>(context.scratch) + part * bytes);
        for (int64_t i = begin; i < end; ++i) {
          int64_t pair = i / blocks;
          ForwardBlock<T>(context, call, pair / call.heads, pair % call.heads, i % blocks * kLanes, scratch);
        }
      });
  return Status();
}

bool FitsForward(const KernelSpec& spec) {
  return FitsAttention({&spec.in[0], &spec.in[1], &spec.in[2], &spec.out[0]}, spec.out[1]);
}

}  // namespace

KernelPtr MakeAttention(const KernelSpec& spec) {
  if (!FitsForward(spec)) return MakeReference(spec);
  if (FewQueriesFit(spec)) return MakeFunctionKernel(FewQueriesAttention)(spec);
  if (NarrowFits(spec, 0)) return MakeFunctionKernel(NarrowAttention)(spec);
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(Attention<decltype(t)>)(spec); });
}

int64_t AttentionScratch(const KernelSpec& spec) {
  if (!FitsForward(spec)) return ReferenceScratch(spec);
  if (FewQueriesFit(spec)) return PartsByHeads(spec, 0) * FewQueriesBytes(spec);
  const AttentionExtents extents(spec, spec.attrs, 0);
  return PartsByQueries(spec, 0) * std::max(ForwardScratch(extents).bytes, NarrowAttentionBytes(spec));
}

}  // namespace oneflow_like::cpu
