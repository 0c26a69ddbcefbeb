// The gradient of attention: probabilities are computed again tile by tile from the log-sum-exp. For each
// block of queries the tiles of keys go by; dq is summed in scratch, dk and dv in place. One thread has a
// whole head, so the order of the sums is fixed. Of 16-bit types a head is widened first, and its dk and dv
// are summed in fp32 and rounded once.
#include "ops/cpu/attention_tile.h"
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

// One head's operands in fp32, each with the distance between its rows.
struct Head {
  Tile dy, q, k, v, o;
  const float* lse;
  float *dq, *dk, *dv;
  int64_t out_row;  // of dq, dk and dv
};

// Of one thread, kept between acts: a head of a 16-bit type, widened.
struct WideHead {
  std::vector<float> in[5], out[3];
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

void BackwardBlock(const Head& at, const AttentionCall& call, int64_t b, int64_t h, int64_t s,
                   BackwardScratch* scratch) {
  int64_t count = std::min(kLanes, call.queries - s), width = call.width, out = at.out_row;
  const float *q = at.q.data + s * at.q.row, *dy = at.dy.data + s * at.dy.row, *o = at.o.data + s * at.o.row;
  LoadLanes(q, at.q.row, count, width, call.scale, scratch->q);
  LoadLanes(dy, at.dy.row, count, width, 1.0f, scratch->dy);
  std::fill_n(scratch->dq, width * kLanes, 0.0f);
  for (int64_t i = 0; i < kLanes; ++i) {
    scratch->lse[i] = i < count ? at.lse[s + i] : kInfinity;  // lanes past the end: p = 0
    float dot = 0;
    for (int64_t d = 0; d < width && i < count; ++d) dot += dy[i * at.dy.row + d] * o[i * at.o.row + d];
    scratch->dot[i] = dot;
    scratch->one[i] = 1;
  }
  int64_t visible = call.Visible(s, count);
  for (int64_t t = 0; t < visible; t += kTileKeys) {
    int64_t keys = std::min(kTileKeys, visible - t);
    const float *k = at.k.data + t * at.k.row, *v = at.v.data + t * at.v.row;
    TileProduct(keys, kLanes, width, k, at.k.row, 1, scratch->q, kLanes, scratch->p, kLanes, false);
    TileProduct(keys, kLanes, width, v, at.v.row, 1, scratch->dy, kLanes, scratch->dp, kLanes, false);
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
    TileProduct(keys, width, count, scratch->p, kLanes, 1, dy, at.dy.row, at.dv + t * out, out, true);
    TileProduct(keys, width, count, scratch->dp, kLanes, 1, q, at.q.row, at.dk + t * out, out, true);
    TileProduct(width, kLanes, keys, k, 1, at.k.row, scratch->dp, kLanes, scratch->dq, kLanes, true);
  }
  StoreLanes(scratch->dq, scratch->one, count, width, at.dq + s * out, out);
}

void BackwardHead(const Head& head, const AttentionCall& call, int64_t b, int64_t h) {
  static thread_local BackwardScratch scratch;
  for (int64_t t = 0; t < call.keys; ++t) {
    std::fill_n(head.dk + t * head.out_row, call.width, 0.0f);
    std::fill_n(head.dv + t * head.out_row, call.width, 0.0f);
  }
  for (int64_t s = 0; s < call.queries; s += kLanes) BackwardBlock(head, call, b, h, s, &scratch);
}

template <typename T>
void RunHead(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t h) {
  // Operands 0 to 4 are dy, q, k, v and o.
  bool of_keys[5] = {false, false, true, true, false};
  int64_t in_q = call.InQ(b, 0, h), in_k = call.InK(b, 0, h), width = call.width, row = call.row;
  const float* lse = context.in[5].as<float>() + call.InLse(b, 0, h);
  if constexpr (std::is_same_v<T, float>) {
    auto at = [&](int i) { return Tile{context.in[i].as<float>() + (of_keys[i] ? in_k : in_q), row}; };
    BackwardHead({at(0), at(1), at(2), at(3), at(4), lse, context.out[0].as<float>() + in_q,
                  context.out[1].as<float>() + in_k, context.out[2].as<float>() + in_k, row},
                 call, b, h);
  } else {
    static thread_local WideHead wide;
    Tile tiles[5];
    for (int i = 0; i < 5; ++i) {
      int64_t rows = of_keys[i] ? call.keys : call.queries;
      wide.in[i].resize(rows * width);
      tiles[i] =
          TileOf(context.in[i].as<T>() + (of_keys[i] ? in_k : in_q), row, rows, width, wide.in[i].data());
    }
    for (int o = 0; o < 3; ++o) wide.out[o].resize((o > 0 ? call.keys : call.queries) * width);
    BackwardHead({tiles[0], tiles[1], tiles[2], tiles[3], tiles[4], lse, wide.out[0].data(),
                  wide.out[1].data(), wide.out[2].data(), width},
                 call, b, h);
    for (int o = 0; o < 3; ++o) {
      T* to = context.out[o].as<T>() + (o > 0 ? in_k : in_q);
      for (int64_t i = 0; i < (o > 0 ? call.keys : call.queries); ++i)
        Narrow(wide.out[o].data() + i * width, width, to + i * row);
    }
  }
}

template <typename T>
Status AttentionGrad(const KernelContext& context) {
  AttentionCall call(context, context.in[1], context.in[2]);
  ParallelFor(call.batch * call.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair)
      RunHead<T>(context, call, pair / call.heads, pair % call.heads);
  });
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
