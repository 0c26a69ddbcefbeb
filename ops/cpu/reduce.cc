// Reductions over any axes. Sums are added in an order that the shape alone settles: along a contiguous run
// in 32 lanes, over rows in bands, and over everything in chunks whose sums are added in double. Operands of
// 16-bit types are widened element by element; results are fp32.
#include <algorithm>
#include <array>
#include <limits>

#include "ops/cpu/kernels.h"
#include "ops/cpu/loops.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

// A fold takes the next element into a partial result; Join takes two partial results.
struct SumOf {
  static constexpr float kIdentity = 0;
  float operator()(float a, float b) const { return a + b; }
  float Join(float a, float b) const { return a + b; }
};
struct SquareSumOf {
  static constexpr float kIdentity = 0;
  float operator()(float a, float b) const { return a + b * b; }
  float Join(float a, float b) const { return a + b; }
};
struct MaxOf {
  static constexpr float kIdentity = -std::numeric_limits<float>::infinity();
  float operator()(float a, float b) const { return b > a || b != b ? b : a; }  // a NaN wins
  float Join(float a, float b) const { return (*this)(a, b); }
};
struct MinOf {
  static constexpr float kIdentity = std::numeric_limits<float>::infinity();
  float operator()(float a, float b) const { return b < a || b != b ? b : a; }
  float Join(float a, float b) const { return (*this)(a, b); }
};

using Mask = std::array<bool, Dims::kMaxRank>;

// x with neighbouring axes of one kind merged. The last group is kept (columns) or reduced (a run).
struct ReducePlan {
  int rank = 0;
  int64_t extent[Dims::kMaxRank + 1], stride[Dims::kMaxRank + 1];
  bool reduced[Dims::kMaxRank + 1];
  int64_t kept_outer = 1, reduced_outer = 1;  // products over all groups but the last
};

ReducePlan MakeReducePlan(const Dims& x, const Mask& mask) {
  ReducePlan p;
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (x[axis] == 1) continue;
    if (p.rank > 0 && p.reduced[p.rank - 1] == mask[axis]) {
      p.extent[p.rank - 1] *= x[axis];
    } else {
      p.extent[p.rank] = x[axis];
      p.reduced[p.rank++] = mask[axis];
    }
  }
  if (p.rank == 0) {
    p.extent[0] = 1;
    p.reduced[0] = false;
    p.rank = 1;
  }
  int64_t stride = 1;
  for (int i = p.rank - 1; i >= 0; --i) {
    p.stride[i] = stride;
    stride *= p.extent[i];
    if (i < p.rank - 1) (p.reduced[i] ? p.reduced_outer : p.kept_outer) *= p.extent[i];
  }
  return p;
}

// Offset of the index-th combination of the outer groups that are reduced, or that are kept.
int64_t OuterOffset(const ReducePlan& p, bool reduced, int64_t index) {
  int64_t offset = 0;
  for (int i = p.rank - 2; i >= 0; --i) {
    if (p.reduced[i] != reduced) continue;
    offset += index % p.extent[i] * p.stride[i];
    index /= p.extent[i];
  }
  return offset;
}

template <typename T, typename F>
float FoldRun(const T* x, int64_t n, F f) {
  constexpr int kLanes = 32;
  float lane[kLanes];
  std::fill_n(lane, kLanes, F::kIdentity);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lane[j] = f(lane[j], AsFloat(x[i + j]));
  }
  for (int j = 0; i + j < n; ++j) lane[j] = f(lane[j], AsFloat(x[i + j]));
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lane[j] = f.Join(lane[j], lane[j + half]);
  }
  return lane[0];
}

// Kept columns [begin, end): adds up the rows in bands, so that long sums keep their digits.
template <typename T, typename F>
void FoldColumns(const ReducePlan& p, const T* x, float* y, int64_t begin, int64_t end, F f) {
  constexpr int64_t kColumns = 256, kBand = 64;
  float band[kColumns], total[kColumns];
  for (int64_t c0 = begin; c0 < end; c0 += kColumns) {
    int64_t n = std::min(kColumns, end - c0);
    std::fill_n(total, n, F::kIdentity);
    for (int64_t r0 = 0; r0 < p.reduced_outer; r0 += kBand) {
      std::fill_n(band, n, F::kIdentity);
      for (int64_t r = r0; r < std::min(p.reduced_outer, r0 + kBand); ++r) {
        const T* row = x + OuterOffset(p, true, r) + c0;
        for (int64_t c = 0; c < n; ++c) band[c] = f(band[c], AsFloat(row[c]));
      }
      for (int64_t c = 0; c < n; ++c) total[c] = f.Join(total[c], band[c]);
    }
    std::copy_n(total, n, y + c0);
  }
}

template <typename T, typename F>
void FoldAxes(const TensorArg& x, const TensorArg& y, const Mask& mask, F f) {
  if (y.elements() == 0) return;
  if (x.elements() == 0) {
    std::fill_n(y.as<float>(), y.elements(), F::kIdentity);
    return;
  }
  ReducePlan p = MakeReducePlan(x.extent, mask);
  const T* from = x.as<T>();
  float* to = y.as<float>();
  int64_t last = p.extent[p.rank - 1];
  if (p.reduced[p.rank - 1]) {
    ParallelFor(p.kept_outer, RowGrain(p.reduced_outer * last), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* base = from + OuterOffset(p, false, i);
        float total = F::kIdentity;
        for (int64_t r = 0; r < p.reduced_outer; ++r) {
          total = f.Join(total, FoldRun(base + OuterOffset(p, true, r), last, f));
        }
        to[i] = total;
      }
    });
    return;
  }
  // One task is a stretch of columns of one kept index.
  constexpr int64_t kStretch = 64;
  int64_t stretches = (last + kStretch - 1) / kStretch;
  ParallelFor(
      p.kept_outer * stretches, RowGrain(p.reduced_outer * kStretch), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end;) {
          int64_t kept = i / stretches, next = std::min(end, (kept + 1) * stretches);
          int64_t c0 = i % stretches * kStretch, c1 = std::min(last, (next - kept * stretches) * kStretch);
          FoldColumns(p, from + OuterOffset(p, false, kept), to + kept * last, c0, c1, f);
          i = next;
        }
      });
}

// The sum of f(x) over everything: at most 256 chunks, a function of the size alone; a chunk goes by blocks
// of 1024 in 32 lanes of fp32, and blocks and chunks are added in double.
template <typename T, typename F>
double SumAll(const TensorArg& x, F f) {
  constexpr int64_t kChunks = 256, kBlock = 1024;
  double partial[kChunks] = {};
  int64_t n = x.elements(), length = std::max<int64_t>(4096, (n + kChunks - 1) / kChunks);
  const T* data = x.as<T>();
  int64_t chunks = (n + length - 1) / length;
  ParallelFor(chunks, std::max<int64_t>(1, kGrain / length), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      int64_t stop = std::min(n, (c + 1) * length);
      for (int64_t b = c * length; b < stop; b += kBlock) {
        partial[c] += FoldRun(data + b, std::min(kBlock, stop - b), f);
      }
    }
  });
  double total = 0;
  for (int64_t c = 0; c < chunks; ++c) total += partial[c];
  return total;
}

Mask MaskOf(const Attrs& attrs) {
  Mask mask{};
  for (int64_t axis : attrs.Ints("axes")) mask[axis] = true;
  return mask;
}

void SumAxes(const TensorArg& x, const TensorArg& y, const Mask& mask) {
  if (y.elements() == 1) {
    y.as<float>()[0] = static_cast<float>(
        DispatchFloating(x.dtype, [&](auto t) { return SumAll<decltype(t)>(x, SumOf()); }));
  } else {
    DispatchFloating(x.dtype, [&](auto t) { FoldAxes<decltype(t)>(x, y, mask, SumOf()); });
  }
}

}  // namespace

KernelFactory ForSum(KernelFn fn) {
  return [fn](const KernelSpec& spec) {
    bool fits = IsFloating(spec.in[0].dtype) && spec.out[0].dtype == DType::kFloat32;
    return fits ? MakeFunctionKernel(fn)(spec) : MakeReference(spec);
  };
}

Status Sum(const KernelContext& context) {
  SumAxes(context.in[0], context.out[0], MaskOf(context.spec.attrs));
  return Status();
}

Status Mean(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  Mask mask = MaskOf(context.spec.attrs);
  int64_t count = 1;
  for (int i = 0; i < x.global.rank(); ++i) count *= mask[i] ? x.global[i] : 1;
  SumAxes(x, y, mask);
  float divisor = static_cast<float>(count);
  for (int64_t i = 0; i < y.elements(); ++i)
    y.as<float>()[i] = count == 0 ? 0.0f : y.as<float>()[i] / divisor;
  return Status();
}

Status Max(const KernelContext& context) {
  FoldAxes<float>(context.in[0], context.out[0], MaskOf(context.spec.attrs), MaxOf());
  return Status();
}

Status Min(const KernelContext& context) {
  FoldAxes<float>(context.in[0], context.out[0], MaskOf(context.spec.attrs), MinOf());
  return Status();
}

Status SumTo(const KernelContext& context) {
  const TensorArg& x = context.in[0];
  Dims shape = context.spec.attrs.GetDims("shape");
  Mask mask{};
  int lead = x.extent.rank() - shape.rank();
  for (int i = 0; i < x.extent.rank(); ++i) mask[i] = i < lead || (shape[i - lead] == 1 && x.global[i] != 1);
  SumAxes(x, context.out[0], mask);
  return Status();
}

Status SquareSum(const KernelContext& context) {
  const TensorArg& x = context.in[0];
  double sum = DispatchFloating(x.dtype, [&](auto t) { return SumAll<decltype(t)>(x, SquareSumOf()); });
  context.out[0].as<float>()[0] = static_cast<float>(sum);
  return Status();
}

Status AddN(const KernelContext& context) {
  float* y = context.out[0].as<float>();
  ParallelFor(context.out[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
    constexpr int64_t kBlock = 2048;  // the sum stays in the first-level cache over all terms
    for (int64_t b = begin; b < end; b += kBlock) {
      int64_t e = std::min(end, b + kBlock);
      std::copy(context.in[0].as<float>() + b, context.in[0].as<float>() + e, y + b);
      for (size_t k = 1; k < context.in.size(); ++k) {
        const float* x = context.in[k].as<float>();
        OFL_INDEPENDENT
        for (int64_t i = b; i < e; ++i) y[i] += x[i];
      }
    }
  });
  return Status();
}

}  // namespace oneflow_like::cpu
