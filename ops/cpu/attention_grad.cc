// The gradient of attention: probabilities are computed again tile by tile from the log-sum-exp. For each
// block of queries the tiles of keys go by; dq is summed in scratch, dk and dv in place. One thread has a
// whole head of keys, and the heads of queries that share it, so the order of the sums is fixed. Of 16-bit
// types a head is widened first, and its dk and dv are summed in fp32 and rounded once, but for bf16 where
// attention_narrow.h takes it.
#include "ops/cpu/attention_narrow.h"
#include "ops/cpu/attention_tile.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/tile.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

using scalar::kInfinity;

// Of one thread, kept between acts: 260 KB.
struct BackwardScratch {
  alignas(64) float q[kMaxWidth * kLanes];   // scaled, transposed
  alignas(64) float dy[kMaxWidth * kLanes];  // transposed
  alignas(64) float dq[kMaxWidth * kLanes];  // transposed
  alignas(64) float p[kTileKeys * kLanes];
  alignas(64) float dp[kTileKeys * kLanes];
  alignas(64) float drop[kTileKeys * kLanes];
  alignas(64) float lse[kLanes], dot[kLanes], one[kLanes];
};

// The operands of one head of queries in fp32, each with the distance between its rows.
struct Head {
  Tile dy, q, k, v, o;
  const float* lse;
};
// Where its gradients go; those of keys and values are added up over the heads that share them.
struct HeadGrad {
  float *dq, *dk, *dv;
  int64_t dq_row, dk_row, dv_row;
};

// Of one thread, kept between acts: heads of a 16-bit type, widened.
struct WideHead {
  std::vector<float> in[5], out[3];
};

// p = exp(score - lse) and ds = p (dp - dot) factor, with dropout's factors m: dv wants p m, ds wants p (m dp
// - dot).
void GradTile(float factor, int64_t key_count, bool dropped, BackwardScratch* s) {
  for (int64_t j = 0; j < key_count; ++j) {
    float *p = s->p + j * kLanes, *dp = s->dp + j * kLanes;
    const float* drop = s->drop + j * kLanes;
    for (int64_t i = 0; i < kLanes; ++i) {
      float keep = dropped ? drop[i] : 1.0f;
      dp[i] = p[i] * (keep * dp[i] - s->dot[i]) * factor;
      p[i] *= keep;
    }
  }
}

// Loads queries [s, s + count).
void LoadBlock(const Head& at, const AttentionCall& call, int64_t s, int64_t count,
               BackwardScratch* scratch) {
  const float *dy = at.dy.data + s * at.dy.row, *o = at.o.data + s * at.o.row;
  LoadLanes(at.q.data + s * at.q.row, at.q.row, count, call.width, call.scale, scratch->q);
  LoadLanes(dy, at.dy.row, count, call.value_width, 1.0f, scratch->dy);
  for (int64_t i = 0; i < kLanes; ++i) {
    // Lanes past the end, and queries that saw no key: p = 0.
    scratch->lse[i] = i < count && at.lse[s + i] != -kInfinity ? at.lse[s + i] : kInfinity;
    float dot = 0;
    for (int64_t d = 0; d < call.value_width && i < count; ++d)
      dot += dy[i * at.dy.row + d] * o[i * at.o.row + d];
    scratch->dot[i] = dot;
    scratch->one[i] = 1;
  }
}

// The block's probabilities for keys [t, t + keys), and the slopes of the scores, times `factor`.
void SlopeTile(const Head& at, const AttentionCall& call, const BlockMask& mask, const int64_t (&place)[4],
               int64_t t, int64_t keys, float factor, BackwardScratch* scratch) {
  auto [b, h, s, count] = place;
  const float *k = at.k.data + t * at.k.row, *v = at.v.data + t * at.v.row;
  TileProduct(keys, kLanes, call.width, k, at.k.row, 1, scratch->q, kLanes, scratch->p, kLanes, false);
  TileProduct(keys, kLanes, call.value_width, v, at.v.row, 1, scratch->dy, kLanes, scratch->dp, kLanes,
              false);
  mask.AddBias(1.0f, scratch->p);
  for (int64_t j = 0; j < keys; ++j) {
    float* p = scratch->p + j * kLanes;
    for (int64_t i = 0; i < kLanes; ++i) p[i] = scalar::ExpOf(p[i] - scratch->lse[i]);
  }
  mask.Mask(0.0f, scratch->p);
  if (call.drop > 0) {
    std::fill_n(scratch->drop, kTileKeys * kLanes, 0.0f);
    call.DropFactors(b, h, s, count, t, keys, scratch->drop);
  }
  GradTile(factor, keys, call.drop > 0, scratch);
}

void BackwardBlock(const Head& at, const HeadGrad& to, const AttentionCall& call, int64_t b, int64_t h,
                   int64_t s, BackwardScratch* scratch) {
  int64_t count = std::min(kLanes, call.queries - s), width = call.width;
  const float *q = at.q.data + s * at.q.row, *dy = at.dy.data + s * at.dy.row;
  LoadBlock(at, call, s, count, scratch);
  std::fill_n(scratch->dq, width * kLanes, 0.0f);
  BlockMask mask(call, b, h, s, count);
  int64_t visible = call.Visible(s, count);
  for (int64_t t = 0; t < visible; t += kTileKeys) {
    int64_t keys = std::min(kTileKeys, visible - t);
    if (!mask.Sees(t, keys)) continue;
    SlopeTile(at, call, mask, {b, h, s, count}, t, keys, call.scale, scratch);
    TileProduct(keys, call.value_width, count, scratch->p, kLanes, 1, dy, at.dy.row, to.dv + t * to.dv_row,
                to.dv_row, true);
    TileProduct(keys, width, count, scratch->dp, kLanes, 1, q, at.q.row, to.dk + t * to.dk_row, to.dk_row,
                true);
    TileProduct(width, kLanes, keys, at.k.data + t * at.k.row, 1, at.k.row, scratch->dp, kLanes, scratch->dq,
                kLanes, true);
  }
  StoreLanes(scratch->dq, scratch->one, count, width, to.dq + s * to.dq_row, to.dq_row);
}

void BackwardHead(const Head& head, const HeadGrad& to, const AttentionCall& call, int64_t b, int64_t h) {
  for (int64_t s = 0; s < call.queries; s += kLanes)
    BackwardBlock(head, to, call, b, h, s, OfThread<BackwardScratch>());
}

// Operand i of attention_grad (dy, q, k, v, o) of a head of queries, in place or in the thread's buffer.
template <typename T>
Tile HeadTile(const KernelContext& context, const AttentionCall& call, int i, int64_t b, int64_t h,
              std::vector<float>* buffer) {
  int64_t g = h / call.group;
  bool of_keys = i == 2 || i == 3;
  int64_t at[] = {call.InO(b, 0, h), call.InQ(b, 0, h), call.InK(b, 0, g), call.InV(b, 0, g),
                  call.InO(b, 0, h)};
  int64_t row[] = {call.o_row, call.q_row, call.k_row, call.v_row, call.o_row};
  int64_t width = i == 1 || i == 2 ? call.width : call.value_width, rows = of_keys ? call.keys : call.queries;
  if (!std::is_same_v<T, float>) buffer->resize(rows * width);
  return TileOf(context.in[i].as<T>() + at[i], row[i], rows, width, buffer->data());
}

template <typename T>
void StoreHead(const std::vector<float>& from, int64_t rows, int64_t width, T* to, int64_t row) {
  for (int64_t i = 0; i < rows; ++i) Narrow(from.data() + i * width, width, to + i * row);
}

// All heads of queries that share head `g` of keys.
template <typename T>
void RunGroup(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t g) {
  static thread_local WideHead wide;
  int64_t width = call.width, value_width = call.value_width, in_k = call.InK(b, 0, g),
          in_v = call.InV(b, 0, g);
  HeadGrad to = {nullptr, nullptr, nullptr, call.q_row, call.k_row, call.v_row};
  if constexpr (std::is_same_v<T, float>) {
    to.dk = context.out[1].as<float>() + in_k;
    to.dv = context.out[2].as<float>() + in_v;
  } else {
    wide.out[0].resize(call.queries * width);
    wide.out[1].resize(call.keys * width);
    wide.out[2].resize(call.keys * value_width);
    to = {wide.out[0].data(), wide.out[1].data(), wide.out[2].data(), width, width, value_width};
  }
  for (int64_t t = 0; t < call.keys; ++t) {
    std::fill_n(to.dk + t * to.dk_row, width, 0.0f);
    std::fill_n(to.dv + t * to.dv_row, value_width, 0.0f);
  }
  for (int64_t h = g * call.group; h < (g + 1) * call.group; ++h) {
    auto tile = [&](int i) { return HeadTile<T>(context, call, i, b, h, &wide.in[i]); };
    Head head = {tile(0), tile(1), tile(2),
                 tile(3), tile(4), context.in[5].as<float>() + call.InLse(b, 0, h)};
    int64_t in_q = call.InQ(b, 0, h);
    if constexpr (std::is_same_v<T, float>) to.dq = context.out[0].as<float>() + in_q;
    BackwardHead(head, to, call, b, h);
    if constexpr (!std::is_same_v<T, float>)
      StoreHead(wide.out[0], call.queries, width, context.out[0].as<T>() + in_q, call.q_row);
  }
  if constexpr (!std::is_same_v<T, float>) {
    StoreHead(wide.out[1], call.keys, width, context.out[1].as<T>() + in_k, call.k_row);
    StoreHead(wide.out[2], call.keys, value_width, context.out[2].as<T>() + in_v, call.v_row);
  }
}

// --- The gradient of the bias: the slopes of the scores, added up where it is broadcast. Computed once more,
// so that one thread adds up all that an element gets, in a fixed order.

// Adds the slopes of queries [s, s + count) of head h of batch b.
void AddSlopes(const Head& at, const AttentionCall& call, int64_t b, int64_t h, int64_t s, float* dbias) {
  BackwardScratch* scratch = OfThread<BackwardScratch>();
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
      for (int64_t j = 0; j < keys; ++j) row[j * call.bias_strides.at[3]] += scratch->dp[j * kLanes + i];
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
  ParallelFor(batches * heads * parts, 1, [&](int64_t begin, int64_t end) {
    static thread_local WideHead wide;
    for (int64_t i = begin; i < end; ++i) {
      ForOneOrAll(stride.at[0], i / parts / heads, call.batch, [&](int64_t b) {
        ForOneOrAll(stride.at[1], i / parts % heads, call.heads, [&](int64_t h) {
          auto tile = [&](int n) { return HeadTile<T>(context, call, n, b, h, &wide.in[n]); };
          Head head = {tile(0), tile(1), tile(2),
                       tile(3), tile(4), context.in[5].as<float>() + call.InLse(b, 0, h)};
          ForOneOrAll(stride.at[2], i % parts, blocks,
                      [&](int64_t block) { AddSlopes(head, call, b, h, block * kLanes, dbias); });
        });
      });
    }
  });
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
  ParallelFor(call.batch * call.key_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair)
      RunGroup<T>(context, call, pair / call.key_heads, pair % call.key_heads);
  });
  if (context.out.size() > 3) BiasGrad<T>(context, call);
  return Status();
}

}  // namespace

KernelPtr MakeAttentionGrad(const KernelSpec& spec) {
  const std::vector<TensorArg>&in = spec.in, &out = spec.out;
  if (!FitsAttention({&in[0], &in[1], &in[2], &in[3], &in[4], &out[0], &out[1], &out[2]}, in[5]))
    return MakeReference(spec);
  return DispatchFloating(in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(AttentionGrad<decltype(t)>)(spec); });
}

}  // namespace oneflow_like::cpu
