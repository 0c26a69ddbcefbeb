// Kernels that move elements, of any type: copies, transposes, slices, concatenations, and casts.
#include <atomic>
#include <cstring>

#include "ops/cpu/convert.h"
#include "ops/cpu/kernels.h"
#include "ops/reference.h"
#include "ops/within.h"

namespace oneflow_like::cpu {
namespace {

int64_t Bytes(const TensorArg& arg) { return static_cast<int64_t>(SizeOf(arg.dtype)); }

// Copies `count` indices of one axis, from index `from_at` of x to index `to_at` of y; other axes are equal.
void CopyAlong(const TensorArg& x, const TensorArg& y, int axis, int64_t from_at, int64_t to_at,
               int64_t count) {
  int64_t inner = InnerOf(y.extent, axis) * Bytes(y);
  CopyRuns(y.as<char>() + to_at * inner, y.extent[axis] * inner, x.as<char>() + from_at * inner,
           x.extent[axis] * inner, OuterOf(y.extent, axis), count * inner);
}

template <typename From, typename To>
Status CastTyped(const KernelContext& context) {
  const From* from = context.in[0].as<From>();
  To* to = context.out[0].as<To>();
  ParallelFor(context.out[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if constexpr (std::is_integral_v<From> && std::is_integral_v<To> && !std::is_same_v<To, bool>) {
        to[i] = static_cast<To>(from[i]);
      } else {
        to[i] = FromFloat<To>(AsFloat(from[i]));
      }
    }
  });
  return Status();
}

template <typename T>
Status WidenAll(const KernelContext& context) {
  ParallelFor(context.out[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
    Widen(context.in[0].as<T>() + begin, end - begin, context.out[0].as<float>() + begin);
  });
  return Status();
}

template <typename T>
Status NarrowAll(const KernelContext& context) {
  ParallelFor(context.out[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
    Narrow(context.in[0].as<float>() + begin, end - begin, context.out[0].as<T>() + begin);
  });
  return Status();
}

}  // namespace

Status Copy(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  if (x.data != y.data) CopyRuns(y.data, 0, x.data, 0, 1, y.elements() * Bytes(y));
  return Status();
}

Status Within(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const NumberRange range(context.spec.attrs);
  const auto low = static_cast<float>(range.low), high = static_cast<float>(range.high);
  return DispatchFloating(x.dtype, [&](auto t) {
    using T = decltype(t);
    const T* from = x.as<T>();
    const auto outside = [&](int64_t i) {
      const float value = AsFloat(from[i]);
      return !(value >= low && value <= high);
    };
    std::atomic<bool> all{true};
    ParallelFor(x.elements(), kGrain, [&](int64_t begin, int64_t end) {
      bool some = false;
      for (int64_t i = begin; i < end; ++i) some |= outside(i);
      if (some) all.store(false, std::memory_order_relaxed);
      if (x.data != y.data)
        std::memcpy(y.as<T>() + begin, from + begin, static_cast<size_t>(end - begin) * sizeof(T));
    });
    for (int64_t i = 0; !all && i < x.elements(); ++i)
      if (outside(i)) return Status(range.Outside(AsFloat(from[i])));
    return Status();
  });
}

Status Transpose(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const std::vector<int64_t>& order = context.spec.attrs.Ints("order");
  Dims strides = x.extent;
  for (int axis = 0; axis < y.extent.rank(); ++axis) {
    strides[axis] = InnerOf(x.extent, static_cast<int>(order[axis]));
  }
  PermuteCopy(y.data, x.data, y.extent, strides, Bytes(y));
  return Status();
}

Status BroadcastTo(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  Dims strides = y.extent;
  int skip = y.extent.rank() - x.extent.rank();
  for (int axis = 0; axis < y.extent.rank(); ++axis) {
    bool held = axis >= skip && x.extent[axis - skip] != 1;
    strides[axis] = held ? InnerOf(x.extent, axis - skip) : 0;
  }
  PermuteCopy(y.data, x.data, y.extent, strides, Bytes(y));
  return Status();
}

Status SliceAxis(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const Attrs& attrs = context.spec.attrs;
  int axis = static_cast<int>(attrs.Int("axis"));
  int64_t begin = attrs.Int("begin"), step = attrs.Int("step", 1);
  if (step == 1) {
    CopyAlong(x, y, axis, begin, 0, y.extent[axis]);
    return Status();
  }
  Dims strides = x.extent;
  for (int a = 0; a < y.extent.rank(); ++a) strides[a] = InnerOf(x.extent, a) * (a == axis ? step : 1);
  PermuteCopy(y.data, x.as<char>() + begin * InnerOf(x.extent, axis) * Bytes(x), y.extent, strides, Bytes(y));
  return Status();
}

Status Concat(const KernelContext& context) {
  int axis = static_cast<int>(context.spec.attrs.Int("axis"));
  int64_t at = 0;
  for (const TensorArg& x : context.in) {
    CopyAlong(x, context.out[0], axis, 0, at, x.extent[axis]);
    at += x.extent[axis];
  }
  return Status();
}

Status Pad(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  int axis = static_cast<int>(context.spec.attrs.Int("axis"));
  int64_t before = context.spec.attrs.Int("before"), step = context.spec.attrs.Int("step", 1);
  FillZero(y.data, y.elements() * Bytes(y));
  if (step == 1) {
    CopyAlong(x, y, axis, 0, before, x.extent[axis]);
    return Status();
  }
  int64_t inner = InnerOf(y.extent, axis) * Bytes(y), held = x.extent[axis];
  for (int64_t o = 0; o < OuterOf(y.extent, axis); ++o) {
    CopyRuns(y.as<char>() + (o * y.extent[axis] + before) * inner, step * inner,
             x.as<char>() + o * held * inner, inner, held, inner);
  }
  return Status();
}

// Between float and the 16-bit types, and from integers to float; what else there is has no need of speed.
KernelPtr MakeCast(const KernelSpec& spec) {
  using enum DType;
  DType from = spec.in[0].dtype, to = spec.out[0].dtype;
  KernelFn fn = nullptr;
  if (from == to) fn = Copy;
  if (from == kFloat32 && to == kBFloat16) fn = NarrowAll<BFloat16>;
  if (from == kBFloat16 && to == kFloat32) fn = WidenAll<BFloat16>;
  if (from == kFloat32 && to == kFloat16) fn = NarrowAll<Float16>;
  if (from == kFloat16 && to == kFloat32) fn = WidenAll<Float16>;
  if (from == kFloat32 && to == kBool) fn = CastTyped<float, bool>;
  if (from == kBool && to == kFloat32) fn = CastTyped<bool, float>;
  if (from == kInt32 && to == kFloat32) fn = CastTyped<int32_t, float>;
  if (from == kInt32 && to == kInt64) fn = CastTyped<int32_t, int64_t>;
  if (from == kInt64 && to == kInt32) fn = CastTyped<int64_t, int32_t>;
  return fn == nullptr ? MakeReference(spec) : MakeFunctionKernel(fn)(spec);
}

}  // namespace oneflow_like::cpu
