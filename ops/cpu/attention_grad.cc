// The gradient of attention: probabilities are computed again tile by tile from the log-sum-exp. For each
// block of queries the tiles of keys go by; dq is summed in scratch, dk and dv in place. One thread has a
// whole head, so the order of the sums is fixed.
#include "ops/cpu/attention_tile.h"
#include "ops/cpu/tile.h"

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

struct Pointers {
  const float *dy, *q, *k, *v, *o, *lse;
  float *dq, *dk, *dv;
  explicit Pointers(const KernelContext& c)
      : dy(c.in[0].as<float>()),
        q(c.in[1].as<float>()),
        k(c.in[2].as<float>()),
        v(c.in[3].as<float>()),
        o(c.in[4].as<float>()),
        lse(c.in[5].as<float>()),
        dq(c.out[0].as<float>()),
        dk(c.out[1].as<float>()),
        dv(c.out[2].as<float>()) {}
};

// p = exp(score - lse) and ds = p (dp - dot) scale, with dropout's factors m: dv wants p m, ds wants p (m dp
// - dot).
void GradTile(const AttentionCall& call, int64_t key_count, bool dropped, BackwardScratch* s) {
  for (int64_t j = 0; j < key_count; ++j) {
    float *p = s->p + j * kLanes, *dp = s->dp + j * kLanes;
    const float* drop = s->drop + j * kLanes;
    for (int64_t i = 0; i < kLanes; ++i) {
      float factor = dropped ? drop[i] : 1.0f;
      dp[i] = p[i] * (factor * dp[i] - s->dot[i]) * call.scale;
      p[i] *= factor;
    }
  }
}

void BackwardBlock(const Pointers& at, const AttentionCall& call, int64_t b, int64_t h, int64_t s,
                   BackwardScratch* scratch) {
  int64_t count = std::min(kLanes, call.queries - s), width = call.width, row = call.row,
          in_q = call.InQ(b, s, h);
  LoadLanes(at.q + in_q, row, count, width, call.scale, scratch->q);
  LoadLanes(at.dy + in_q, row, count, width, 1.0f, scratch->dy);
  std::fill_n(scratch->dq, width * kLanes, 0.0f);
  for (int64_t i = 0; i < kLanes; ++i) {
    scratch->lse[i] = i < count ? at.lse[call.InLse(b, s, h) + i] : kInfinity;  // lanes past the end: p = 0
    float dot = 0;
    for (int64_t d = 0; d < width && i < count; ++d)
      dot += at.dy[in_q + i * row + d] * at.o[in_q + i * row + d];
    scratch->dot[i] = dot;
    scratch->one[i] = 1;
  }
  int64_t visible = call.Visible(s, count);
  for (int64_t t = 0; t < visible; t += kTileKeys) {
    int64_t keys = std::min(kTileKeys, visible - t), in_k = call.InK(b, t, h);
    TileProduct(keys, kLanes, width, at.k + in_k, row, 1, scratch->q, kLanes, scratch->p, kLanes, false);
    TileProduct(keys, kLanes, width, at.v + in_k, row, 1, scratch->dy, kLanes, scratch->dp, kLanes, false);
    for (int64_t j = 0; j < keys; ++j) {
      float* p = scratch->p + j * kLanes;
      for (int64_t i = 0; i < kLanes; ++i) p[i] = scalar::ExpOf(p[i] - scratch->lse[i]);
    }
    call.Mask(s, t, keys, 0.0f, scratch->p);
    if (call.drop > 0) {
      std::fill_n(scratch->drop, kTileKeys * kLanes, 0.0f);
      call.DropFactors(b, h, s, count, t, keys, scratch->drop);
    }
    GradTile(call, keys, call.drop > 0, scratch);
    TileProduct(keys, width, count, scratch->p, kLanes, 1, at.dy + in_q, row, at.dv + in_k, row, true);
    TileProduct(keys, width, count, scratch->dp, kLanes, 1, at.q + in_q, row, at.dk + in_k, row, true);
    TileProduct(width, kLanes, keys, at.k + in_k, 1, row, scratch->dp, kLanes, scratch->dq, kLanes, true);
  }
  StoreLanes(scratch->dq, scratch->one, count, width, at.dq + in_q, row);
}

Status AttentionGrad(const KernelContext& context) {
  AttentionCall call(context, context.in[1], context.in[2]);
  Pointers at(context);
  ParallelFor(call.batch * call.heads, 1, [&](int64_t begin, int64_t end) {
    static thread_local BackwardScratch scratch;
    for (int64_t pair = begin; pair < end; ++pair) {
      int64_t b = pair / call.heads, h = pair % call.heads;
      for (int64_t t = 0; t < call.keys; ++t) {
        std::fill_n(at.dk + call.InK(b, t, h), call.width, 0.0f);
        std::fill_n(at.dv + call.InK(b, t, h), call.width, 0.0f);
      }
      for (int64_t s = 0; s < call.queries; s += kLanes) BackwardBlock(at, call, b, h, s, &scratch);
    }
  });
  return Status();
}

}  // namespace

KernelPtr MakeAttentionGrad(const KernelSpec& spec) {
  bool fits = AllFloat(spec) && spec.in[1].extent[3] <= kMaxWidth;
  return fits ? MakeFunctionKernel(AttentionGrad)(spec) : MakeReference(spec);
}

}  // namespace oneflow_like::cpu
