// The gradient of attention: probabilities are computed again tile by tile from the log-sum-exp. For each
// block of queries the tiles of keys go by; dq is summed in scratch, dk and dv in place. One thread has a
// whole head of keys, and the heads of queries that share it, so the order of the sums is fixed. Of 16-bit
// types a tile is widened when it is read, and a head's dk and dv are summed in scratch and rounded once, but
// for bf16 where attention_narrow.h takes it.
#include "core/device/scratch.h"
#include "ops/cpu/attention_narrow.h"
#include "ops/cpu/attention_tile.h"
#include "ops/cpu/tile.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

using scalar::kInfinity;

// Of one thread.
struct BackwardScratch {
  float *q, *dy, *dq;  // transposed; q scaled
  float *p, *dp, *drop, *lse, *dot, *one;
  float *wide_q, *wide_dy, *wide_o, *wide_k, *wide_v;  // a block's and a tile's rows, of 16-bit types
  float *dk, *dv;                                      // of a head of keys
  int64_t bytes;
  explicit BackwardScratch(const AttentionExtents& e, void* memory = nullptr) {
    Scratch scratch(memory);
    q = scratch.Take<float>(e.width * kLanes);
    dy = scratch.Take<float>(e.value_width * kLanes);
    dq = scratch.Take<float>(e.width * kLanes);
    p = scratch.Take<float>(e.tile_keys * kLanes);
    dp = scratch.Take<float>(e.tile_keys * kLanes);
    drop = scratch.Take<float>(e.drops ? e.tile_keys * kLanes : 0);
    lse = scratch.Take<float>(kLanes);
    dot = scratch.Take<float>(kLanes);
    one = scratch.Take<float>(kLanes);
    const auto wide = [&](int64_t elements) { return scratch.Take<float>(e.wide ? elements : 0); };
    wide_q = wide(kLanes * e.width);
    wide_dy = wide(kLanes * e.value_width);
    wide_o = wide(kLanes * e.value_width);
    wide_k = wide(e.tile_keys * e.width);
    wide_v = wide(e.tile_keys * e.value_width);
    dk = wide(e.keys * e.width);
    dv = wide(e.keys * e.value_width);
    bytes = scratch.bytes();
  }
};

// The operands of one head of queries.
template <typename T>
struct Head {
  const T *dy, *q, *k, *v, *o;
  const float* lse;
  Head(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t h)
      : dy(context.in[0].as<T>() + call.InO(b, 0, h)),
        q(context.in[1].as<T>() + call.InQ(b, 0, h)),
        k(context.in[2].as<T>() + call.InK(b, 0, h / call.group)),
        v(context.in[3].as<T>() + call.InV(b, 0, h / call.group)),
        o(context.in[4].as<T>() + call.InO(b, 0, h)),
        lse(context.in[5].as<float>() + call.InLse(b, 0, h)) {}
};
// Where its gradients go; those of keys and values are added up over the heads that share them.
template <typename T>
struct HeadGrad {
  T* dq;
  float *dk, *dv;
  int64_t dk_row, dv_row;
};
// A block of queries.
struct QueryBlock {
  Tile dy, q;
};

// p = exp(score - lse) and ds = p (dp - dot) factor, with dropout's factors m: dv wants p m, ds wants p (m dp
// - dot).
void GradTile(float factor, int64_t key_count, bool dropped, const BackwardScratch& s) {
  for (int64_t j = 0; j < key_count; ++j) {
    float *p = s.p + j * kLanes, *dp = s.dp + j * kLanes;
    const float* drop = s.drop + j * kLanes;
    for (int64_t i = 0; i < kLanes; ++i) {
      float keep = dropped ? drop[i] : 1.0f;
      dp[i] = p[i] * (keep * dp[i] - s.dot[i]) * factor;
      p[i] *= keep;
    }
  }
}

// Loads queries [s, s + count).
template <typename T>
QueryBlock LoadBlock(const Head<T>& at, const AttentionCall& call, int64_t s, int64_t count,
                     const BackwardScratch& scratch) {
  const int64_t value_width = call.value_width;
  const Tile q = TileOf(at.q + s * call.q_row, call.q_row, count, call.width, scratch.wide_q),
             dy = TileOf(at.dy + s * call.o_row, call.o_row, count, value_width, scratch.wide_dy),
             o = TileOf(at.o + s * call.o_row, call.o_row, count, value_width, scratch.wide_o);
  LoadLanes(q.data, q.row, count, call.width, call.scale, scratch.q);
  LoadLanes(dy.data, dy.row, count, value_width, 1.0f, scratch.dy);
  for (int64_t i = 0; i < kLanes; ++i) {
    // Lanes past the end, and queries that saw no key: p = 0.
    scratch.lse[i] = i < count && at.lse[s + i] != -kInfinity ? at.lse[s + i] : kInfinity;
    float dot = 0;
    for (int64_t d = 0; d < value_width && i < count; ++d)
      dot += dy.data[i * dy.row + d] * o.data[i * o.row + d];
    scratch.dot[i] = dot;
    scratch.one[i] = 1;
  }
  return {dy, q};
}

// The block's probabilities for keys [t, t + keys), and the slopes of the scores, times `factor`. Returns the
// keys.
template <typename T>
Tile SlopeTile(const Head<T>& at, const AttentionCall& call, const BlockMask& mask, const int64_t (&place)[4],
               int64_t t, int64_t keys, float factor, const BackwardScratch& scratch) {
  auto [b, h, s, count] = place;
  const Tile k = TileOf(at.k + t * call.k_row, call.k_row, keys, call.width, scratch.wide_k),
             v = TileOf(at.v + t * call.v_row, call.v_row, keys, call.value_width, scratch.wide_v);
  TileProduct(keys, kLanes, call.width, k.data, k.row, 1, scratch.q, kLanes, scratch.p, kLanes, false);
  TileProduct(keys, kLanes, call.value_width, v.data, v.row, 1, scratch.dy, kLanes, scratch.dp, kLanes,
              false);
  mask.AddBias(1.0f, scratch.p);
  for (int64_t j = 0; j < keys; ++j) {
    float* p = scratch.p + j * kLanes;
    for (int64_t i = 0; i < kLanes; ++i) p[i] = scalar::ExpOf(p[i] - scratch.lse[i]);
  }
  mask.Mask(0.0f, scratch.p);
  if (call.drop > 0) {
    std::fill_n(scratch.drop, keys * kLanes, 0.0f);
    call.DropFactors(b, h, s, count, t, keys, scratch.drop);
  }
  GradTile(factor, keys, call.drop > 0, scratch);
  return k;
}

template <typename T>
void BackwardBlock(const Head<T>& at, const HeadGrad<T>& to, const AttentionCall& call, int64_t b, int64_t h,
                   int64_t s, const BackwardScratch& scratch) {
  int64_t count = std::min(kLanes, call.queries - s), width = call.width;
  const auto [dy, q] = LoadBlock(at, call, s, count, scratch);
  std::fill_n(scratch.dq, width * kLanes, 0.0f);
  BlockMask mask(call, b, h, s, count);
  int64_t visible = call.Visible(s, count);
  for (int64_t t = 0; t < visible; t += kTileKeys) {
    int64_t keys = std::min(kTileKeys, visible - t);
    if (!mask.Sees(t, keys)) continue;
    const Tile k = SlopeTile(at, call, mask, {b, h, s, count}, t, keys, call.scale, scratch);
    TileProduct(keys, call.value_width, count, scratch.p, kLanes, 1, dy.data, dy.row, to.dv + t * to.dv_row,
                to.dv_row, true);
    TileProduct(keys, width, count, scratch.dp, kLanes, 1, q.data, q.row, to.dk + t * to.dk_row, to.dk_row,
                true);
    TileProduct(width, kLanes, keys, k.data, 1, k.row, scratch.dp, kLanes, scratch.dq, kLanes, true);
  }
  StoreLanes(scratch.dq, scratch.one, count, width, to.dq + s * call.q_row, call.q_row);
}

template <typename T>
void StoreHead(const float* from, int64_t rows, int64_t width, T* to, int64_t row) {
  for (int64_t i = 0; i < rows; ++i) Narrow(from + i * width, width, to + i * row);
}

// All heads of queries that share head `g` of keys.
template <typename T>
void RunGroup(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t g,
              const BackwardScratch& scratch) {
  const int64_t width = call.width, value_width = call.value_width, in_k = call.InK(b, 0, g),
                in_v = call.InV(b, 0, g);
  HeadGrad<T> to = {nullptr, scratch.dk, scratch.dv, width, value_width};
  if constexpr (std::is_same_v<T, float>)
    to = {nullptr, context.out[1].as<float>() + in_k, context.out[2].as<float>() + in_v, call.k_row,
          call.v_row};
  for (int64_t t = 0; t < call.keys; ++t) {
    std::fill_n(to.dk + t * to.dk_row, width, 0.0f);
    std::fill_n(to.dv + t * to.dv_row, value_width, 0.0f);
  }
  for (int64_t h = g * call.group; h < (g + 1) * call.group; ++h) {
    const Head<T> head(context, call, b, h);
    to.dq = context.out[0].as<T>() + call.InQ(b, 0, h);
    for (int64_t s = 0; s < call.queries; s += kLanes) BackwardBlock(head, to, call, b, h, s, scratch);
  }
  if constexpr (!std::is_same_v<T, float>) {
    StoreHead(scratch.dk, call.keys, width, context.out[1].as<T>() + in_k, call.k_row);
    StoreHead(scratch.dv, call.keys, value_width, context.out[2].as<T>() + in_v, call.v_row);
  }
}

// --- The gradient of the bias: the slopes of the scores, added up where it is broadcast. Computed once more,
// so that one thread adds up all that an element gets, in a fixed order.

// Adds the slopes of queries [s, s + count) of head h of batch b.
template <typename T>
void AddSlopes(const Head<T>& at, const AttentionCall& call, int64_t b, int64_t h, int64_t s,
               const BackwardScratch& scratch, float* dbias) {
  int64_t count = std::min(kLanes, call.queries - s);
  LoadBlock(at, call, s, count, scratch);
  BlockMask mask(call, b, h, s, count);
  int64_t visible = call.Visible(s, count);
  for (int64_t t = 0; t < visible; t += kTileKeys) {
    int64_t keys = std::min(kTileKeys, visible - t);
    if (!mask.Sees(t, keys)) continue;
    SlopeTile(at, call, mask, {b, h, s, count}, t, keys, 1.0f, scratch);
    for (int64_t i = 0; i < count; ++i) {
      float* row = dbias + call.bias_strides.Offset(b, h, s + i, t);
      for (int64_t j = 0; j < keys; ++j) row[j * call.bias_strides.at[3]] += scratch.dp[j * kLanes + i];
    }
  }
}

// Calls body(i) for an axis along which the bias is cut into pieces of work (`index` of them), else for all.
template <typename F>
void ForOneOrAll(int64_t stride, int64_t index, int64_t all, F&& body) {
  for (int64_t i = stride != 0 ? index : 0; i < (stride != 0 ? index + 1 : all); ++i) body(i);
}

template <typename T>
void BiasGrad(const KernelContext& context, const AttentionCall& call) {
  float* dbias = context.out[3].as<float>();
  FillZero(dbias, context.out[3].elements() * sizeof(float));
  const BiasStrides& stride = call.bias_strides;
  int64_t blocks = (call.queries + kLanes - 1) / kLanes;
  int64_t batches = stride.at[0] != 0 ? call.batch : 1, heads = stride.at[1] != 0 ? call.heads : 1,
          parts = stride.at[2] != 0 ? blocks : 1;
  const AttentionExtents extents(context, context.spec.attrs, 1);
  const int64_t bytes = BackwardScratch(extents).bytes;
  const auto run = [&](int64_t begin, int64_t end, int part) {
    const BackwardScratch scratch(extents, static_cast<char*>(context.scratch) + part * bytes);
    for (int64_t i = begin; i < end; ++i) {
      ForOneOrAll(stride.at[0], i / parts / heads, call.batch, [&](int64_t b) {
        ForOneOrAll(stride.at[1], i / parts % heads, call.heads, [&](int64_t h) {
          const Head<T> head(context, call, b, h);
          ForOneOrAll(stride.at[2], i % parts, blocks,
                      [&](int64_t block) { AddSlopes(head, call, b, h, block * kLanes, scratch, dbias); });
        });
      });
    }
  };
  ParallelForParts(batches * heads * parts, 1, context.spec.threads, run);
}

template <typename T>
Status AttentionGrad(const KernelContext& context) {
  AttentionCall call(context, 1, 6);
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (NarrowFits(context.spec, 1)) {
      Status status = NarrowAttentionGrad(context);
      if (context.out.size() > 3) BiasGrad<T>(context, call);
      return status;
    }
  }
  const AttentionExtents extents(context, context.spec.attrs, 1);
  const int64_t bytes = BackwardScratch(extents).bytes;
  ParallelForParts(
      call.batch * call.key_heads, 1, context.spec.threads, [&](int64_t begin, int64_t end, int part) {
        const BackwardScratch scratch(extents, static_cast<char*>(context.scratch) + part * bytes);
        for (int64_t pair = begin; pair < end; ++pair)
          RunGroup<T>(context, call, pair / call.key_heads, pair % call.key_heads, scratch);
      });
  if (context.out.size() > 3) BiasGrad<T>(context, call);
  return Status();
}

bool FitsGrad(const KernelSpec& spec) {
  const std::vector<TensorArg>&in = spec.in, &out = spec.out;
  return FitsAttention({&in[0], &in[1], &in[2], &in[3], &in[4], &out[0], &out[1], &out[2]}, in[5]);
}

}  // namespace

KernelPtr MakeAttentionGrad(const KernelSpec& spec) {
  if (!FitsGrad(spec)) return MakeReference(spec);
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(AttentionGrad<decltype(t)>)(spec); });
}
int64_t AttentionGradScratch(const KernelSpec& spec) {
  if (!FitsGrad(spec)) return ReferenceScratch(spec);
  const AttentionExtents extents(spec, spec.attrs, 1);
  const int64_t parts = spec.out.size() > 3 ? PartsByQueries(spec, 1) : PartsByHeads(spec, 1);
  return parts * std::max(BackwardScratch(extents).bytes, NarrowAttentionGradBytes(spec));
}

}  // namespace oneflow_like::cpu
