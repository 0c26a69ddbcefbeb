// softmax, log_softmax and cross_entropy by rows: the log-sum-exp of a row is found in one pass over memory,
// and no probabilities are stored.
#include <algorithm>
#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/scalar.h"

namespace oneflow_like::cpu {
namespace {

using scalar::ExpOf;
using scalar::kInfinity;

float MaxOfRow(const float* x, int64_t n) {
  float greatest = -kInfinity;
#pragma omp simd reduction(max : greatest)
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

// Block by block: while a block is in the first-level cache its greatest and its sum are found.
RowSum SumRow(const float* x, int64_t width) {
  constexpr int64_t kBlock = 2048;
  RowSum row;
  for (int64_t b = 0; b < width; b += kBlock) {
    int64_t n = std::min(kBlock, width - b);
    float greatest = MaxOfRow(x + b, n);
    if (greatest > row.greatest) {
      row.total *= ExpOf(row.greatest - greatest);
      row.greatest = greatest;
    }
    row.total += SumOfExp(x + b, n, row.greatest);
  }
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
      return Status(Cat("cross_entropy: target ", wanted, " is outside the ", classes, " classes"));
    }
  }
  return Status();
}

Status CrossEntropy(const KernelContext& context) {
  const TensorArg &logits = context.in[0], &target = context.in[1];
  Status checked = CheckTargets(target, logits.extent.back());
  if (!checked.ok()) return checked;
  ForRows(logits, [&](int64_t row, int64_t width) {
    const float* x = logits.as<float>() + row * width;
    RowSum sum = SumRow(x, width);
    int64_t wanted = TargetAt(target, row);
    // The greatest is taken off first: the difference of two large numbers would lose the small loss.
    float loss = wanted < 0 ? 0.0f : static_cast<float>(std::log(sum.total)) + (sum.greatest - x[wanted]);
    context.out[0].as<float>()[row] = loss;
    context.out[1].as<float>()[row] = sum.lse();
  });
  return Status();
}

Status CrossEntropyGrad(const KernelContext& context) {
  const TensorArg &logits = context.in[0], &target = context.in[1];
  Status checked = CheckTargets(target, logits.global.back());
  if (!checked.ok()) return checked;
  int64_t first = logits.begin.back();
  ForRows(logits, [&](int64_t row, int64_t width) {
    const float* x = logits.as<float>() + row * width;
    float* dx = context.out[0].as<float>() + row * width;
    float lse = context.in[2].as<float>()[row], dloss = context.in[3].as<float>()[row];
    int64_t wanted = TargetAt(target, row);
    if (wanted < 0) {
      std::fill_n(dx, width, 0.0f);
      return;
    }
#pragma GCC ivdep
    for (int64_t c = 0; c < width; ++c) dx[c] = ExpOf(x[c] - lse) * dloss;
    if (wanted >= first && wanted < first + width) {
      int64_t c = wanted - first;
      dx[c] = (ExpOf(x[c] - lse) - 1.0f) * dloss;
    }
  });
  return Status();
}

bool FloatButTarget(const KernelSpec& spec) {
  for (size_t i = 0; i < spec.in.size(); ++i) {
    if (i != 1 && spec.in[i].dtype != DType::kFloat32) return false;
  }
  return spec.out[0].dtype == DType::kFloat32;
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
#pragma GCC ivdep
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
#pragma GCC ivdep
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
#pragma GCC ivdep
    for (int64_t c = 0; c < width; ++c) dx[c] = dy[c] - ExpOf(y[c]) * sum;
  });
  return Status();
}

KernelPtr MakeCrossEntropy(const KernelSpec& spec) {
  return FloatButTarget(spec) ? MakeFunctionKernel(CrossEntropy)(spec) : MakeReference(spec);
}
KernelPtr MakeCrossEntropyGrad(const KernelSpec& spec) {
  return FloatButTarget(spec) ? MakeFunctionKernel(CrossEntropyGrad)(spec) : MakeReference(spec);
}

}  // namespace oneflow_like::cpu
