// softmax, log_softmax and cross_entropy by rows: the log-sum-exp of a row is found in one pass over memory,
// and no probabilities are stored.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/class_blocks.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/loops.h"
#include "ops/reference.h"
#include "ops/scalar.h"

namespace oneflow_like::cpu {
namespace {

using scalar::ExpOf;
using scalar::kInfinity;

float MaxOfRow(const float* x, int64_t n) {
  float greatest = -kInfinity;
#ifndef __clang__  // which takes no vectors for a maximum of numbers that may be NaN, and warns when told to
#pragma omp simd reduction(max : greatest)
#endif
  for (int64_t i = 0; i < n; ++i) greatest = x[i] > greatest ? x[i] : greatest;
  return greatest;
}

float SumOfExp(const float* x, int64_t n, float minus) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += ExpOf(x[i] - minus);
  return sum;
}

struct RowSum {
  float greatest = -kInfinity;
  double total = 0;  // of exp(x - greatest)
  float lse() const { return static_cast<float>(std::log(total)) + greatest; }
};

constexpr int64_t kBlock = 2048;

// x[0 .. n), n at most kBlock, in fp32: in place, or widened into `buffer`.
template <typename T>
const float* BlockOf(const T* x, int64_t n, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    Widen(x, n, buffer);
    return buffer;
  }
}

// Block by block: while a block is in the first-level cache its greatest and its sum are found. While there
// is nothing but -inf the sum is relative to 0: exp(-inf - -inf) would be a NaN.
template <typename T>
RowSum SumOfPart(const T* from, int64_t width) {
  float buffer[std::is_same_v<T, float> ? 1 : kBlock];
  RowSum row;
  for (int64_t b = 0; b < width; b += kBlock) {
    int64_t n = std::min(kBlock, width - b);
    const float* x = BlockOf(from + b, n, buffer);
    float greatest = MaxOfRow(x, n);
    if (greatest > row.greatest) {
      row.total *= ExpOf(row.greatest - greatest);
      row.greatest = greatest;
    }
    row.total += SumOfExp(x, n, row.greatest == -kInfinity ? 0.0f : row.greatest);
  }
  return row;
}

// A row of -inf alone has no sum: NaN, as the definition gives.
template <typename T>
RowSum SumRow(const T* from, int64_t width) {
  RowSum row = SumOfPart(from, width);
  if (row.greatest == -kInfinity) row.total = std::numeric_limits<double>::quiet_NaN();
  return row;
}

template <typename F>
void ForRows(const TensorArg& x, F&& body) {
  Rows r = RowsOf(x);
  ParallelFor(r.rows, RowGrain(r.width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row, r.width);
  });
}

int64_t TargetAt(const TensorArg& target, int64_t row) {
  return target.dtype == DType::kInt32 ? target.as<int32_t>()[row] : target.as<int64_t>()[row];
}

// The first target outside the classes, if there is one: what the reference reports.
Status CheckTargets(const TensorArg& target, int64_t classes) {
  for (int64_t row = 0; row < target.elements(); ++row) {
    int64_t wanted = TargetAt(target, row);
    if (wanted >= classes) {
      return Status(Cat("target ", wanted, " is outside the ", classes, " classes"));
    }
  }
  return Status();
}

// Logits of type T.
template <typename T>
Status CrossEntropy(const KernelContext& context) {
  const TensorArg &logits = context.in[0], &target = context.in[1];
  if (Status checked = CheckTargets(target, logits.extent.back()); !checked.ok()) return checked;
  ForRows(logits, [&](int64_t row, int64_t width) {
    const T* x = logits.as<T>() + row * width;
    RowSum sum = SumRow(x, width);
    int64_t wanted = TargetAt(target, row);
    // The greatest is taken off first: the difference of two large numbers would lose the small loss.
    float loss =
        wanted < 0 ? 0.0f : static_cast<float>(std::log(sum.total)) + (sum.greatest - AsFloat(x[wanted]));
    context.out[0].as<float>()[row] = loss;
    context.out[1].as<float>()[row] = sum.lse();
  });
  return Status();
}

// The greatest logit and the sum of each block of classes, and the target's logit where it is held here.
template <typename T>
Status ClassStatisticsOf(const KernelContext& context) {
  const TensorArg &logits = context.in[0], &target = context.in[1];
  const int64_t blocks = context.out[0].extent.back(), first = logits.begin.back();
  if (blocks == 0 && logits.extent.back() > 0) return TooFewBlocks(context.out[0].global.back());
  if (Status checked = CheckTargets(target, logits.global.back()); !checked.ok()) return checked;
  ForRows(logits, [&](int64_t row, int64_t width) {
    const T* x = logits.as<T>() + row * width;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t begin = FirstOfBlock(width, blocks, block), end = FirstOfBlock(width, blocks, block + 1);
      const RowSum sum = SumOfPart(x + begin, end - begin);
      context.out[0].as<float>()[row * blocks + block] = sum.greatest;
      context.out[1].as<float>()[row * blocks + block] = static_cast<float>(sum.total);
    }
    const int64_t wanted = TargetAt(target, row), here = wanted - first;
    const bool held = wanted >= 0 && here >= 0 && here < width;
    context.out[2].as<float>()[row] = held ? AsFloat(x[here]) : 0.0f;
  });
  return Status();
}

// y = exp(x - lse) factor; y may be x.
template <typename T>
void ScaledExp(const T* from, int64_t width, float lse, float factor, T* to) {
  float in[std::is_same_v<T, float> ? 1 : kBlock], out[std::is_same_v<T, float> ? 1 : kBlock];
  for (int64_t b = 0; b < width; b += kBlock) {
    int64_t n = std::min(kBlock, width - b);
    const float* x = BlockOf(from + b, n, in);
    float* y = out;
    if constexpr (std::is_same_v<T, float>) y = to + b;
    OFL_INDEPENDENT
    for (int64_t c = 0; c < n; ++c) y[c] = ExpOf(x[c] - lse) * factor;
    if constexpr (!std::is_same_v<T, float>) Narrow(y, n, to + b);
  }
}

// Logits and their gradient of type T, which may lie in the same place.
template <typename T>
Status CrossEntropyGrad(const KernelContext& context) {
  const TensorArg &logits = context.in[0], &target = context.in[1];
  if (Status checked = CheckTargets(target, logits.global.back()); !checked.ok()) return checked;
  int64_t first = logits.begin.back();
  const float* dlse = context.in.size() > 4 ? context.in[4].as<float>() : nullptr;
  ForRows(logits, [&](int64_t row, int64_t width) {
    const T* x = logits.as<T>() + row * width;
    T* dx = context.out[0].as<T>() + row * width;
    int64_t wanted = TargetAt(target, row);
    float lse = context.in[2].as<float>()[row], of_lse = dlse ? dlse[row] : 0.0f,
          dloss = wanted < 0 ? 0.0f : context.in[3].as<float>()[row];
    if (wanted < 0 && of_lse == 0) {
      std::fill_n(dx, width, FromFloat<T>(0.0f));
      return;
    }
    const int64_t own = wanted - first;
    const bool held = wanted >= first && own < width;
    const float likely = held ? ExpOf(AsFloat(x[own]) - lse) : 0.0f;
    ScaledExp(x, width, lse, dloss + of_lse, dx);
    if (held) dx[own] = FromFloat<T>((likely - 1.0f) * dloss + likely * of_lse);
  });
  return Status();
}

// Whether logits, operand 0, are of a floating type, and all other operands but the target fp32. `result`:
// the type the first output must have.
bool FloatButTarget(const KernelSpec& spec, DType result) {
  for (size_t i = 2; i < spec.in.size(); ++i) {
    if (spec.in[i].dtype != DType::kFloat32) return false;
  }
  return IsFloating(spec.in[0].dtype) && spec.out[0].dtype == result;
}

}  // namespace

Status Softmax(const KernelContext& context) {
  ForRows(context.in[0], [&](int64_t row, int64_t width) {
    const float* x = context.in[0].as<float>() + row * width;
    float* y = context.out[0].as<float>() + row * width;
    float greatest = MaxOfRow(x, width), sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < width; ++c) {
      float e = ExpOf(x[c] - greatest);
      y[c] = e;
      sum += e;
    }
    float factor = 1.0f / sum;
    for (int64_t c = 0; c < width; ++c) y[c] *= factor;
  });
  return Status();
}

Status LogSoftmax(const KernelContext& context) {
  ForRows(context.in[0], [&](int64_t row, int64_t width) {
    const float* x = context.in[0].as<float>() + row * width;
    float* y = context.out[0].as<float>() + row * width;
    RowSum sum = SumRow(x, width);
    float log = static_cast<float>(std::log(sum.total)), greatest = sum.greatest;
    OFL_INDEPENDENT
    for (int64_t c = 0; c < width; ++c) y[c] = (x[c] - greatest) - log;
  });
  return Status();
}

Status SoftmaxGrad(const KernelContext& context) {
  ForRows(context.in[1], [&](int64_t row, int64_t width) {
    const float *dy = context.in[0].as<float>() + row * width, *y = context.in[1].as<float>() + row * width;
    float* dx = context.out[0].as<float>() + row * width;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < width; ++c) sum += dy[c] * y[c];
    OFL_INDEPENDENT
    for (int64_t c = 0; c < width; ++c) dx[c] = (dy[c] - sum) * y[c];
  });
  return Status();
}

Status LogSoftmaxGrad(const KernelContext& context) {
  ForRows(context.in[1], [&](int64_t row, int64_t width) {
    const float *dy = context.in[0].as<float>() + row * width, *y = context.in[1].as<float>() + row * width;
    float* dx = context.out[0].as<float>() + row * width;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < width; ++c) sum += dy[c];
    OFL_INDEPENDENT
    for (int64_t c = 0; c < width; ++c) dx[c] = dy[c] - ExpOf(y[c]) * sum;
  });
  return Status();
}

KernelPtr MakeCrossEntropy(const KernelSpec& spec) {
  if (!FloatButTarget(spec, DType::kFloat32)) return MakeReference(spec);
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(CrossEntropy<decltype(t)>)(spec); });
}
KernelPtr MakeClassStatistics(const KernelSpec& spec) {
  if (!FloatButTarget(spec, DType::kFloat32)) return MakeReference(spec);
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(ClassStatisticsOf<decltype(t)>)(spec); });
}
KernelPtr MakeCrossEntropyGrad(const KernelSpec& spec) {
  if (!FloatButTarget(spec, spec.in[0].dtype)) return MakeReference(spec);
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(CrossEntropyGrad<decltype(t)>)(spec); });
}

}  // namespace oneflow_like::cpu
