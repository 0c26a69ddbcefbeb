// Which kernel does attention and attention_grad: in 16 bits the library (flash.h) where it has a
// deterministic one for the shape, else our tile on tensor cores (attention_tensor.cu); in fp32 the plain
// cores (attention.cu).
#include <algorithm>
#include <atomic>
#include <cmath>

#include "ops/attention_library.h"
#include "ops/cuda/attention_shape.h"
#include "ops/cuda/flash.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/library_use.h"
#include "ops/cuda/walk.h"

namespace oneflow_like::cuda {
namespace {

PlaceView ViewOf(const MaskRow& row) {
  PlaceView view = {{}, false, 0, row.first, row.step};
  if (row.operand == nullptr) return view;
  view.operand = IndicesOf(*row.operand);
  view.of_batch = row.operand->extent.rank() == 2;
  view.length = row.operand->extent.back();
  return view;
}

void SetMasks(const KernelContext& context, const TensorArg& q, const TensorArg& k, int first_mask,
              AttentionShape* s) {
  AttentionMasks masks = MasksOf(context.spec.attrs, first_mask);
  MaskRows rows = MaskRowsOf(masks, context.in, q, k);
  s->causal = masks.causal;
  s->window = masks.window;
  s->by_places = !masks.Positions() && !masks.Documents();
  s->placed = !masks.Positions();
  s->simple = masks.Simple();
  constexpr int kAny = 1 << 30;
  s->least_distance = masks.causal ? 0 : -kAny;
  s->most_distance = masks.window == 0 || masks.window > kAny ? kAny : static_cast<int>(masks.window);
  s->query_positions = ViewOf(rows.query_positions);
  s->key_positions = ViewOf(rows.key_positions);
  s->query_documents = ViewOf(rows.query_documents);
  s->key_documents = ViewOf(rows.key_documents);
  if (masks.bias < 0) return;
  s->bias = context.in[masks.bias].as<float>();
  s->bias_strides = StridesOf(context.in[masks.bias]);
  const int64_t* const stride = s->bias_strides.at;
  s->bias_pairs = stride[3] == 1 && (stride[0] | stride[1] | stride[2]) % 2 == 0 &&
                  reinterpret_cast<uintptr_t>(s->bias) % sizeof(float2) == 0;
}

// `first`: the number of the operand q, which k and v follow; `first_mask`: of the first optional one.
AttentionShape ShapeOf(const KernelContext& context, int first, int first_mask) {
  const TensorArg &q = context.in[first], &k = context.in[first + 1], &v = context.in[first + 2];
  const Attrs& attrs = context.spec.attrs;
  AttentionShape s = {};
  SetMasks(context, q, k, first_mask, &s);
  s.batch = q.extent[0];
  s.queries = q.extent[1];
  s.heads = q.extent[2];
  s.width = static_cast<int>(q.extent[3]);
  s.keys = k.extent[1];
  s.key_heads = k.extent[2];
  s.group = s.key_heads == 0 ? 0 : s.heads / s.key_heads;
  s.value_width = static_cast<int>(v.extent[3]);
  s.shift = q.begin[1] + k.global[1] - q.global[1] - k.begin[1];
  double scale = attrs.Float("scale", 0), drop = attrs.Float("dropout", 0);
  if (scale == 0) scale = q.global[3] == 0 ? 1 : 1 / std::sqrt(static_cast<double>(q.global[3]));
  s.scale = static_cast<float>(scale);
  s.drop = static_cast<float>(drop);
  const DropRule rule = DropRuleOf(drop);
  s.keep = static_cast<float>(rule.scale);
  s.drop_least = rule.least;
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
  FlashShape f = {.batch = s.batch,
                  .heads = s.heads,
                  .queries = s.queries,
                  .keys = s.keys,
                  .width = s.width,
                  .key_heads = s.key_heads,
                  .all_keys = s.keys,
                  .dtype = dtype,
                  .backward = backward,
                  .causal = s.causal,
                  .shift = s.shift,
                  .window = s.window < s.queries + s.shift ? s.window : 0,
                  .scale = s.scale};
  if (!s.by_places) {
    const bool of_batch = s.query_positions.of_batch || s.key_positions.of_batch ||
                          s.query_documents.of_batch || s.key_documents.of_batch;
    f.masks = of_batch ? s.batch : 1;
    // The mask has all that hides keys. What places hide is left out in whole tiles, too; positions are not
    // places.
    if (!f.causal || s.query_positions.operand.data != nullptr) f.causal = false, f.window = 0, f.shift = 0;
  }
  // Pieces of a sequence: later keys are left out.
  if (f.causal && f.shift >= 0) f.keys = std::min(f.keys, f.queries + f.shift);
  if (f.window == 0 && (!f.causal || f.shift >= f.keys - 1)) {  // every query sees every key
    f.causal = false;
    f.shift = 0;
  }
  return f;
}

// Whether 16 bytes of neighbours of every operand lie in one aligned piece.
bool Packed(const KernelContext& context, const AttentionShape& s) {
  uintptr_t bits = 0;
  for (const TensorArg& x : context.in) bits |= reinterpret_cast<uintptr_t>(x.data);
  for (const TensorArg& x : context.out) bits |= reinterpret_cast<uintptr_t>(x.data);
  const size_t neighbours = 16 / SizeOf(context.in[0].dtype);
  return bits % 16 == 0 && s.width % neighbours == 0 && s.value_width % neighbours == 0;
}

Status Zero(const TensorArg& x, const LaunchContext& launch) {
  if (x.elements() == 0) return Status();
  cudaError_t error = cudaMemsetAsync(x.data, 0, x.elements() * SizeOf(x.dtype), launch.stream);
  return error == cudaSuccess ? Status() : Status(Cat("cudaMemsetAsync: ", cudaGetErrorString(error)));
}

// 0 where a key is seen, else -infinity: [masks s t]. A warp for kMaskRows queries of one sequence: what an
// element takes is the comparison and the store, as places and documents are looked up once for a row and
// once for kMaskRows elements of a column.
constexpr int kMaskRows = 4;
template <typename T>
OFL_KERNEL void MaskKernel(AttentionShape shape, int64_t masks, T* mask) {
  const int64_t groups = (shape.queries + kMaskRows - 1) / kMaskRows;
  const T seen = Store<T>(0.0f), hidden = Store<T>(-INFINITY);
  for (int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32; i < masks * groups;
       i += int64_t{gridDim.x} * blockDim.x / 32) {
    const int64_t b = i / groups, first = i % groups * kMaskRows;
    int64_t place[kMaskRows], document[kMaskRows];
    OFL_UNROLL
    for (int r = 0; r < kMaskRows; ++r) {
      const int64_t s = first + r < shape.queries ? first + r : first;
      place[r] = shape.query_positions.At(b, s);
      document[r] = shape.query_documents.At(b, s);
    }
    T* const rows = mask + (b * shape.queries + first) * shape.keys;
    for (int64_t t = threadIdx.x % 32; t < shape.keys; t += 32) {
      const int64_t key = shape.key_positions.At(b, t), its_document = shape.key_documents.At(b, t);
      OFL_UNROLL
      for (int r = 0; r < kMaskRows; ++r)
        if (first + r < shape.queries)
          rows[r * shape.keys + t] = shape.Sees(place[r], key, document[r], its_document) ? seen : hidden;
    }
  }
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
    scratch_ = CudaAttentionScratchOf(spec, backward);
    bool drops = spec.attrs.Float("dropout", 0) != 0;
    if (!drops && in[0].dtype != DType::kFloat32 && FlashAllowed()) flash_ = MakeFlash();
  }

  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    AttentionShape s = backward_ ? ShapeOf(context, 1, 6) : ShapeOf(context, 0, 3);
    bool nothing = s.pairs == 0 || s.queries == 0 || s.keys == 0 || s.width + s.value_width == 0;
    if (backward_ && nothing) {
      for (const TensorArg& x : context.out)
        if (Status status = Zero(x, launch); !status.ok()) return status;
      return Status();
    }
    if (s.pairs == 0) return Status();
    s.packed = Packed(context, s);
    if (context.in[0].dtype == DType::kFloat32) {
      if (backward_) return LaunchPlainAttentionGrad(s, context, launch);
      LaunchPlainAttention(s, context, launch);
      return Status();
    }
    LaunchContext roomy = launch;
    if (scratch_.work > 0) {
      roomy.workspace = static_cast<char*>(context.scratch) + scratch_.mask;
      roomy.workspace_bytes = static_cast<size_t>(scratch_.work);
    }
    FlashShape shape = FlashShapeOf(s, context.in[0].dtype, backward_);
    bool plain = (s.by_places || (scratch_.mask > 0 && EachSeesItself(s))) && s.bias == nullptr &&
                 s.value_width == s.width;
    if (flash_ && plain && MayFlash(shape) && s.packed && flash_->Takes(shape, roomy))
      return ByLibrary(s, shape, context, roomy);
    return backward_ ? LaunchTensorAttentionGrad(s, context, roomy)
                     : LaunchTensorAttention(s, context, roomy);
  }

 private:
  Status ByLibrary(const AttentionShape& s, const FlashShape& shape, const KernelContext& context,
                   const LaunchContext& launch) {
    Count(LibraryUse::kAttention);
    if (backward_)
      if (Status status = ZeroUnseen(shape, context, launch); !status.ok()) return status;
    FlashOperands operands = OperandsOf(context);
    if (shape.masks > 0) {
      operands.mask = context.scratch;
      WriteMask(s, shape, context.scratch, launch);
    }
    return flash_->Launch(shape, operands, launch);
  }

  // A row without a key would be NaN to the library. Where queries and keys have the same places and
  // documents there is none.
  static bool EachSeesItself(const AttentionShape& s) {
    return s.queries == s.keys && s.shift == 0 &&
           s.query_positions.operand.data == s.key_positions.operand.data &&
           s.query_documents.operand.data == s.key_documents.operand.data;
  }

  static void WriteMask(const AttentionShape& s, const FlashShape& shape, void* to,
                        const LaunchContext& launch) {
    const int64_t warps = shape.masks * ((s.queries + kMaskRows - 1) / kMaskRows);
    const Grid grid{BlocksFor(32 * warps, 256, launch.multiprocessors), 1, 256, 0};
    if (shape.dtype == DType::kBFloat16) {
      cuda::Launch(MaskKernel<BFloat16>, grid, launch.stream, s, shape.masks, static_cast<BFloat16*>(to));
    } else {
      cuda::Launch(MaskKernel<Float16>, grid, launch.stream, s, shape.masks, static_cast<Float16*>(to));
    }
  }

  // Gradients of keys and values that no query sees.
  static Status ZeroUnseen(const FlashShape& shape, const KernelContext& context,
                           const LaunchContext& launch) {
    const size_t row = static_cast<size_t>(shape.key_heads * shape.width) * SizeOf(shape.dtype),
                 unseen = static_cast<size_t>(shape.all_keys - shape.keys) * row;
    for (int64_t b = 0; unseen > 0 && b < shape.batch; ++b) {
      for (int i : {1, 2}) {
        char* const from =
            context.out[i].as<char>() + static_cast<size_t>(b * shape.all_keys + shape.keys) * row;
        const cudaError_t error = cudaMemsetAsync(from, 0, unseen, launch.stream);
        if (error != cudaSuccess) return Status(Cat("cudaMemsetAsync: ", cudaGetErrorString(error)));
      }
    }
    return Status();
  }

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
  CudaAttentionScratch scratch_;
  std::unique_ptr<Flash> flash_;
};

std::atomic<bool> flash_allowed{true};

}  // namespace

void SetFlash(bool allowed) { flash_allowed = allowed; }
bool FlashAllowed() { return flash_allowed; }

void AddAttentionKernels(KernelRegistry* registry) {
  const auto add = [registry](const char* name, bool gradient) {
    registry->Add(name, "cuda",
                  [=](const KernelSpec& spec) { return std::make_unique<AttentionKernels>(spec, gradient); });
  };
  add("attention", false);
  add("attention_grad", true);
}

}  // namespace oneflow_like::cuda
