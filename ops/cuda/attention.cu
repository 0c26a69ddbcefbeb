// attention and attention_grad. Types of 16 bits go to the library (flash.h) where it has a deterministic
// kernel for the shape; everything else, fp32 first of all, to the kernels here, which run any width of head,
// mask, dropout and piece. They keep a running maximum and sum per query instead of a matrix of scores, and
// compute in fp32 on the plain cores: 4 operations per pair and element forward, 14 backward, where the
// device's fp32 peak is the floor.
//
// Backward twice: a block for each tile of keys goes through the queries and adds up dk and dv, a block for
// each tile of queries goes through the keys for dq. Probabilities are computed in both; nothing is added
// across blocks, so the same bits come out of every run.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <span>

#include "ops/cuda/attention_tile.h"
#include "ops/cuda/flash.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/library_use.h"

namespace oneflow_like::cuda {
namespace {

struct AttentionShape {
  int64_t batch, heads, queries, keys;
  int width;
  bool causal, packed;
  int64_t shift;            // query s sees keys up to s + shift, local numbers both
  float scale, drop, keep;  // keep: 1 / (1 - drop)
  uint64_t random_key;
  int64_t batch_begin, head_begin, query_begin, key_begin;  // of the pieces, for draws
  int64_t global_heads, global_queries, global_keys;
  int64_t first_pair, pairs;  // of batch and head, in this launch
};

// The tile a block works on.
struct BlockPlace {
  int64_t pair, b, h, first;
  int from;  // first element of the result
};
OFL_DEVICE BlockPlace PlaceOf(const AttentionShape& shape, int64_t rows) {
  int64_t tiles = (rows + kTile - 1) / kTile;
  BlockPlace at;
  at.pair = shape.first_pair + blockIdx.x / tiles;
  at.b = at.pair / shape.heads;
  at.h = at.pair % shape.heads;
  at.first = blockIdx.x % tiles * kTile;
  at.from = static_cast<int>(blockIdx.y) * kOutput;
  return at;
}

// Offset of element 0 of position i of a tensor [b, length, h, d].
OFL_DEVICE int64_t RowAt(const AttentionShape& shape, const BlockPlace& at, int64_t length, int64_t i) {
  return ((at.b * length + i) * shape.heads + at.h) * shape.width;
}

template <typename T>
OFL_DEVICE HeadRows<T> RowsAt(const AttentionShape& shape, const BlockPlace& at, const T* data,
                              int64_t length, int64_t first) {
  int64_t left = length - first;
  return {data + RowAt(shape, at, length, first), shape.heads * shape.width,
          static_cast<int>(left < kTile ? left : kTile), shape.width, shape.packed};
}

OFL_DEVICE bool Seen(const AttentionShape& shape, int64_t s, int64_t t) {
  return s < shape.queries && t < shape.keys && (!shape.causal || t <= s + shape.shift);
}

// What a probability is multiplied by.
OFL_DEVICE float KeepFactor(const AttentionShape& shape, const BlockPlace& at, int64_t s, int64_t t,
                            int64_t step) {
  int64_t index = (at.b + shape.batch_begin) * shape.global_heads + at.h + shape.head_begin;
  index = (index * shape.global_queries + s + shape.query_begin) * shape.global_keys + t + shape.key_begin;
  uint32_t bits = RandomBits(shape.random_key, static_cast<uint64_t>(step), static_cast<uint64_t>(index));
  return ToUniform(bits) >= shape.drop ? shape.keep : 0.0f;
}

template <typename T>
OFL_KERNEL void AttentionKernel(AttentionShape shape, const T* q, const T* k, const T* v, T* o, float* lse,
                                const ActState* act) {
  alignas(16) OFL_SHARED float room[kRoomFloats];
  OFL_SHARED float weights[kWeightFloats];
  BlockPlace at = PlaceOf(shape, shape.queries);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  HeadRows<T> rows = RowsAt(shape, at, q, shape.queries, at.first);
  float greatest[kRowsOfWarp], total[kRowsOfWarp], out[kRowsOfWarp][kSlots] = {};
  for (int r = 0; r < kRowsOfWarp; ++r) {
    greatest[r] = -INFINITY;
    total[r] = 0;
  }
  int64_t visible = shape.keys;
  if (shape.causal && at.first + rows.count + shape.shift < visible)
    visible = at.first + rows.count + shape.shift;
  int64_t step = act->step;
  for (int64_t first = 0; first < visible; first += kTile) {
    float score[kRowsOfWarp] = {};
    Dots(rows, RowsAt(shape, at, k, shape.keys, first), room, score);
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      int64_t s = at.first + warp * kRowsOfWarp + r, t = first + lane;
      float x = Seen(shape, s, t) ? score[r] * shape.scale : -INFINITY;
      float top = WarpMax(x);
      top = greatest[r] > top || greatest[r] != greatest[r] ? greatest[r] : top;
      float safe = top == -INFINITY ? 0.0f : top;  // a query that has seen no key yet
      float rescale = expf(greatest[r] - safe), p = expf(x - safe);
      total[r] = total[r] * rescale + WarpSum(p);
      greatest[r] = top;
      if (shape.drop > 0) p *= KeepFactor(shape, at, s, t, step);
      weights[(warp * kRowsOfWarp + r) * kWeightPitch + lane] = p;
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) out[r][slot] *= rescale;
    }
    AddColumns(weights, RowsAt(shape, at, v, shape.keys, first), at.from, room, out);
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    int row = warp * kRowsOfWarp + r;
    int64_t s = at.first + row;
    if (row >= rows.count) continue;
    bool blind = total[r] == 0;
    StoreRow(out[r], blind ? 0.0f : 1.0f / total[r], at.from, shape.width,
             o + RowAt(shape, at, shape.queries, s));
    if (lane == 0 && at.from == 0)
      lse[at.pair * shape.queries + s] = blind ? -INFINITY : greatest[r] + logf(total[r]);
  }
}

// delta[pair][s] = do . o, a thread for each query, added up in the order of Dots: where a query sees one key
// only, its slope is 0 to the last bit.
template <typename T>
OFL_KERNEL void DeltaKernel(AttentionShape shape, const T* dout, const T* o, float* delta) {
  int64_t count = shape.pairs * shape.queries, threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    int64_t pair = shape.first_pair + i / shape.queries;
    BlockPlace at = {pair, pair / shape.heads, pair % shape.heads, 0, 0};
    int64_t row = RowAt(shape, at, shape.queries, i % shape.queries);
    float sum = 0;
    for (int d = 0; d < shape.width; d += 4) {
      float4 x = LoadFour(dout + row + d, shape.width - d, shape.packed);
      float4 y = LoadFour(o + row + d, shape.width - d, shape.packed);
      sum += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
    }
    delta[i] = sum;
  }
}

// Of one score and its neighbours: the dropped probability, and the gradient of the score before scaling by q
// or k.
struct Slope {
  float p, ds;
};
OFL_DEVICE Slope SlopeOf(const AttentionShape& shape, const BlockPlace& at, int64_t s, int64_t t,
                         int64_t step, float score, float dp, float lse, float delta) {
  if (!Seen(shape, s, t)) return {0, 0};
  float p = expf(score * shape.scale - lse);
  float keep = shape.drop > 0 ? KeepFactor(shape, at, s, t, step) : 1.0f;
  return {p * keep, p * (keep * dp - delta) * shape.scale};
}

// Rows are queries.
template <typename T>
OFL_KERNEL void QueryGradKernel(AttentionShape shape, const T* dout, const T* q, const T* k, const T* v,
                                const float* lse, const float* delta, T* dq, const ActState* act) {
  alignas(16) OFL_SHARED float room[kRoomFloats];
  OFL_SHARED float weights[kWeightFloats];
  BlockPlace at = PlaceOf(shape, shape.queries);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  HeadRows<T> rows = RowsAt(shape, at, q, shape.queries, at.first);
  HeadRows<T> dout_rows = RowsAt(shape, at, dout, shape.queries, at.first);
  float own_lse[kRowsOfWarp], own_delta[kRowsOfWarp], out[kRowsOfWarp][kSlots] = {};
  for (int r = 0; r < kRowsOfWarp; ++r) {
    int64_t s = at.first + warp * kRowsOfWarp + r;
    bool here = s < shape.queries;
    own_lse[r] = here ? lse[at.pair * shape.queries + s] : 0.0f;
    own_delta[r] = here ? delta[(at.pair - shape.first_pair) * shape.queries + s] : 0.0f;
  }
  int64_t visible = shape.keys;
  if (shape.causal && at.first + rows.count + shape.shift < visible)
    visible = at.first + rows.count + shape.shift;
  int64_t step = act->step;
  for (int64_t first = 0; first < visible; first += kTile) {
    float score[kRowsOfWarp] = {}, dp[kRowsOfWarp] = {};
    HeadRows<T> keys = RowsAt(shape, at, k, shape.keys, first);
    Dots(rows, keys, room, score);
    Dots(dout_rows, RowsAt(shape, at, v, shape.keys, first), room, dp);
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      int row = warp * kRowsOfWarp + r;
      Slope slope =
          SlopeOf(shape, at, at.first + row, first + lane, step, score[r], dp[r], own_lse[r], own_delta[r]);
      weights[row * kWeightPitch + lane] = slope.ds;
    }
    AddColumns(weights, keys, at.from, room, out);
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    int row = warp * kRowsOfWarp + r;
    if (row < rows.count)
      StoreRow(out[r], 1.0f, at.from, shape.width, dq + RowAt(shape, at, shape.queries, at.first + row));
  }
}

// Rows are keys and values, columns queries.
template <typename T>
OFL_KERNEL void KeyGradKernel(AttentionShape shape, const T* dout, const T* q, const T* k, const T* v,
                              const float* lse, const float* delta, T* dk, T* dv, const ActState* act) {
  alignas(16) OFL_SHARED float room[kRoomFloats];
  OFL_SHARED float p_weights[kWeightFloats];
  OFL_SHARED float ds_weights[kWeightFloats];
  BlockPlace at = PlaceOf(shape, shape.keys);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  HeadRows<T> keys = RowsAt(shape, at, k, shape.keys, at.first),
              values = RowsAt(shape, at, v, shape.keys, at.first);
  float dk_out[kRowsOfWarp][kSlots] = {}, dv_out[kRowsOfWarp][kSlots] = {};
  int64_t begin = 0;  // first tile with a query that sees the first of these keys
  if (shape.causal && at.first > shape.shift) begin = (at.first - shape.shift) / kTile * kTile;
  int64_t step = act->step;
  for (int64_t first = begin; first < shape.queries; first += kTile) {
    float score[kRowsOfWarp] = {}, dp[kRowsOfWarp] = {};
    HeadRows<T> queries = RowsAt(shape, at, q, shape.queries, first);
    HeadRows<T> douts = RowsAt(shape, at, dout, shape.queries, first);
    int64_t s = first + lane;
    bool here = s < shape.queries;
    float its_lse = here ? lse[at.pair * shape.queries + s] : 0.0f;
    float its_delta = here ? delta[(at.pair - shape.first_pair) * shape.queries + s] : 0.0f;
    Dots(keys, queries, room, score);
    Dots(values, douts, room, dp);
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      int row = warp * kRowsOfWarp + r;
      Slope slope = SlopeOf(shape, at, s, at.first + row, step, score[r], dp[r], its_lse, its_delta);
      p_weights[row * kWeightPitch + lane] = slope.p;
      ds_weights[row * kWeightPitch + lane] = slope.ds;
    }
    AddColumns(p_weights, douts, at.from, room, dv_out);
    AddColumns(ds_weights, queries, at.from, room, dk_out);
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    int row = warp * kRowsOfWarp + r;
    if (row >= keys.count) continue;
    int64_t to = RowAt(shape, at, shape.keys, at.first + row);
    StoreRow(dk_out[r], 1.0f, at.from, shape.width, dk + to);
    StoreRow(dv_out[r], 1.0f, at.from, shape.width, dv + to);
  }
}

// --- The host's side

AttentionShape ShapeOf(const KernelContext& context, const TensorArg& q, const TensorArg& k) {
  const Attrs& attrs = context.spec.attrs;
  AttentionShape s = {};
  s.batch = q.extent[0];
  s.queries = q.extent[1];
  s.heads = q.extent[2];
  s.width = static_cast<int>(q.extent[3]);
  s.keys = k.extent[1];
  s.causal = attrs.Int("causal", 0) != 0;
  s.shift = q.begin[1] + k.global[1] - q.global[1] - k.begin[1];
  double scale = attrs.Float("scale", 0), drop = attrs.Float("dropout", 0);
  if (scale == 0) scale = q.global[3] == 0 ? 1 : 1 / std::sqrt(static_cast<double>(q.global[3]));
  s.scale = static_cast<float>(scale);
  s.drop = static_cast<float>(drop);
  s.keep = static_cast<float>(1 / (1 - drop));
  s.random_key = RandomKey(context.seed, static_cast<uint64_t>(attrs.Int("key", 0)));
  s.batch_begin = q.begin[0];
  s.query_begin = q.begin[1];
  s.head_begin = q.begin[2];
  s.key_begin = k.begin[1];
  s.global_heads = q.global[2];
  s.global_queries = q.global[1];
  s.global_keys = k.global[1];
  s.pairs = s.batch * s.heads;
  return s;
}

FlashShape FlashShapeOf(const AttentionShape& s, DType dtype, bool backward) {
  FlashShape f = {s.batch, s.heads, s.queries, s.keys, s.width, dtype, backward, s.causal, s.shift, s.scale};
  if (!f.causal || f.shift >= f.keys - 1) {  // every query sees every key
    f.causal = false;
    f.shift = 0;
  }
  return f;
}

// Whether four neighbours of every operand lie in one aligned piece.
bool Packed(std::span<const TensorArg> operands, int64_t width) {
  uintptr_t bits = 0;
  for (const TensorArg& x : operands) bits |= reinterpret_cast<uintptr_t>(x.data);
  return bits % 16 == 0 && width % 4 == 0;
}

Grid GridOf(const AttentionShape& s, int64_t rows) {
  int64_t tiles = (rows + kTile - 1) / kTile, parts = std::max<int64_t>(1, (s.width + kOutput - 1) / kOutput);
  return {static_cast<unsigned>(tiles * s.pairs), static_cast<unsigned>(parts), kWarps * 32, 0};
}

template <typename F>
void ForType(DType dtype, F&& f) {
  if (dtype == DType::kBFloat16) {
    f(BFloat16{});
  } else if (dtype == DType::kFloat16) {
    f(Float16{});
  } else {
    f(float{});
  }
}

Status Zero(const TensorArg& x, const LaunchContext& launch) {
  if (x.elements() == 0) return Status();
  cudaError_t error = cudaMemsetAsync(x.data, 0, x.elements() * SizeOf(x.dtype), launch.stream);
  return error == cudaSuccess ? Status() : Status(Cat("cudaMemsetAsync: ", cudaGetErrorString(error)));
}

void LaunchForward(AttentionShape s, const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &q = context.in[0], &k = context.in[1], &v = context.in[2], &o = context.out[0];
  ForType(q.dtype, [&](auto t) {
    using T = decltype(t);
    cuda::Launch(AttentionKernel<T>, GridOf(s, s.queries), launch.stream, s, q.as<T>(), k.as<T>(), v.as<T>(),
                 o.as<T>(), context.out[1].as<float>(), launch.act);
  });
}

// The work space holds one number per query of the heads under way.
Status LaunchBackward(AttentionShape s, const KernelContext& context, const LaunchContext& launch) {
  int64_t most = static_cast<int64_t>(launch.workspace_bytes / sizeof(float)) / s.queries, all = s.pairs;
  if (most == 0) return Status(Cat("axis s has ", s.queries, " queries, more than work space holds"));
  float* delta = static_cast<float*>(launch.workspace);
  const TensorArg &dout = context.in[0], &q = context.in[1], &k = context.in[2], &v = context.in[3];
  const float* lse = context.in[5].as<float>();
  ForType(q.dtype, [&](auto t) {
    using T = decltype(t);
    for (s.first_pair = 0; s.first_pair < all; s.first_pair += s.pairs) {
      s.pairs = all - s.first_pair < most ? all - s.first_pair : most;
      Grid rows{BlocksFor(s.pairs * s.queries, 256, launch.multiprocessors), 1, 256, 0};
      cuda::Launch(DeltaKernel<T>, rows, launch.stream, s, dout.as<T>(), context.in[4].as<T>(), delta);
      cuda::Launch(QueryGradKernel<T>, GridOf(s, s.queries), launch.stream, s, dout.as<T>(), q.as<T>(),
                   k.as<T>(), v.as<T>(), lse, delta, context.out[0].as<T>(), launch.act);
      cuda::Launch(KeyGradKernel<T>, GridOf(s, s.keys), launch.stream, s, dout.as<T>(), q.as<T>(), k.as<T>(),
                   v.as<T>(), lse, delta, context.out[1].as<T>(), context.out[2].as<T>(), launch.act);
    }
  });
  return Status();
}

class AttentionKernels : public CudaKernel {
 public:
  AttentionKernels(const KernelSpec& spec, bool backward) : backward_(backward) {
    const std::vector<TensorArg>& in = spec.in;
    size_t heads = backward ? 5 : 3;  // operands [b s h d]; the statistics come after them
    for (size_t i = 1; i < heads; ++i) {
      if (in[i].dtype == in[0].dtype) continue;
      Fail(spec.name, " at ", spec.line.str(), ": operands are ", Name(in[0].dtype), " and ",
           Name(in[i].dtype), " but on cuda must be of one type");
    }
    bool drops = spec.attrs.Float("dropout", 0) != 0;
    if (!drops && in[0].dtype != DType::kFloat32 && FlashAllowed()) flash_ = MakeFlash();
  }

  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    const TensorArg &q = context.in[backward_ ? 1 : 0], &k = context.in[backward_ ? 2 : 1];
    AttentionShape s = ShapeOf(context, q, k);
    if (s.pairs == 0) return Status();
    if (backward_ && (s.width == 0 || s.queries == 0 || s.keys == 0)) {
      for (const TensorArg& x : context.out)
        if (Status status = Zero(x, launch); !status.ok()) return status;
      return Status();
    }
    FlashShape shape = FlashShapeOf(s, q.dtype, backward_);
    if (flash_ && MayFlash(shape) && Packed(context.in, s.width) && Packed(context.out, s.width) &&
        flash_->Takes(shape, launch)) {
      Count(LibraryUse::kAttention);
      return flash_->Launch(shape, OperandsOf(context), launch);
    }
    s.packed = Packed(context.in, s.width);
    if (backward_) return LaunchBackward(s, context, launch);
    LaunchForward(s, context, launch);
    return Status();
  }

 private:
  FlashOperands OperandsOf(const KernelContext& c) const {
    FlashOperands p;
    if (!backward_) {
      p.q = c.in[0].data;
      p.k = c.in[1].data;
      p.v = c.in[2].data;
      p.o = c.out[0].data;
      p.lse = c.out[1].as<float>();
      return p;
    }
    p.dout = c.in[0].data;
    p.q = c.in[1].data;
    p.k = c.in[2].data;
    p.v = c.in[3].data;
    p.o = c.in[4].data;
    p.lse = c.in[5].as<float>();
    p.dq = c.out[0].data;
    p.dk = c.out[1].data;
    p.dv = c.out[2].data;
    return p;
  }

  bool backward_;
  std::unique_ptr<Flash> flash_;
};

std::atomic<bool> flash_allowed{true};

}  // namespace

void SetFlash(bool allowed) { flash_allowed = allowed; }
bool FlashAllowed() { return flash_allowed; }

void AddAttentionKernels(KernelRegistry* registry) {
  registry->Add("attention", "cuda",
                [](const KernelSpec& spec) { return std::make_unique<AttentionKernels>(spec, false); });
  registry->Add("attention_grad", "cuda",
                [](const KernelSpec& spec) { return std::make_unique<AttentionKernels>(spec, true); });
}

}  // namespace oneflow_like::cuda
