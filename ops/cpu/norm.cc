// layer_norm and rms_norm by rows, and their gradients. Gradients of gamma and beta are summed in at most 32
// fixed bands of rows, then over the bands, so their bits do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "ops/cpu/convert.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/vectors.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

// Rows taken together: they share one pass over gamma (and the sums of a gradient), and their own sums do not
// wait for each other.
constexpr int kTogether = 4;

// x, gamma, beta -> y, mean, rstd; kCentred false: x, gamma -> y, rstd. x and y of type T, the rest fp32.
template <bool kCentred, typename T, int R>
void NormRows(const KernelContext& context, int64_t width, double eps, int64_t first) {
  const T* x = context.in[0].as<T>() + first * width;
  const float *gamma = context.in[1].as<float>(), *beta = kCentred ? context.in[2].as<float>() : nullptr;
  T* y = context.out[0].as<T>() + first * width;
  const float count = static_cast<float>(std::max<int64_t>(width, 1));
  float mean[R] = {}, rstd[R];

  if (kCentred) {
    Vector sum[R] = {};
    ForVectors(width, [&](int64_t c, auto lanes) {
      for (int r = 0; r < R; ++r) sum[r] += LoadVector(x + r * width + c, lanes);
    });
    for (int r = 0; r < R; ++r) {
      mean[r] = SumOfLanes(sum[r]) / count;
      context.out[1].as<float>()[first + r] = mean[r];
    }
  }
  Vector squares[R] = {};
  ForVectors(width, [&](int64_t c, auto lanes) {
    for (int r = 0; r < R; ++r) {
      Vector centred = LoadVector(x + r * width + c, lanes, mean[r]) - mean[r];
      squares[r] += centred * centred;
    }
  });
  for (int r = 0; r < R; ++r) {
    rstd[r] = static_cast<float>(1.0 / std::sqrt(SumOfLanes(squares[r]) / count + eps));
    context.out[kCentred ? 2 : 1].as<float>()[first + r] = rstd[r];
  }
  ForVectors(width, [&](int64_t c, auto lanes) {
    Vector scale = LoadVector(gamma + c, lanes), shift = {};
    if (kCentred) shift = LoadVector(beta + c, lanes);
    for (int r = 0; r < R; ++r) {
      Vector n = (LoadVector(x + r * width + c, lanes) - mean[r]) * rstd[r];
      StoreVector(n * scale + shift, lanes, y + r * width + c);
    }
  });
}

template <bool kCentred, typename T>
Status Norm(const KernelContext& context) {
  Rows r = RowsOf(context.in[0]);
  double eps = context.spec.attrs.Float("eps");
  // A group of rows is the same whatever the number of threads.
  int64_t groups = (r.rows + kTogether - 1) / kTogether;
  ParallelFor(groups, RowGrain(kTogether * r.width), [&](int64_t begin, int64_t end) {
    int64_t row = begin * kTogether, last = std::min(r.rows, end * kTogether);
    for (; row + kTogether <= last; row += kTogether)
      NormRows<kCentred, T, kTogether>(context, r.width, eps, row);
    for (; row < last; ++row) NormRows<kCentred, T, 1>(context, r.width, eps, row);
  });
  return Status();
}

// dy, x, gamma, mean, rstd[, residual] -> dx, dgamma, dbeta; kCentred false: without mean and dbeta. dy, x,
// the residual and dx of type T, the rest fp32.
constexpr int64_t kGradBands = 32;
int64_t NormGradSums(const TensorArg& x) { return kGradBands * 2 * RowsOf(x).width; }  // floats

template <bool kCentred, typename T>
struct NormGrad {
  static Status Run(const KernelContext& context) {
    Rows r = RowsOf(context.in[1]);
    float* const sums = static_cast<float*>(context.scratch);  // [band][dgamma, dbeta][width]
    int64_t length = std::max<int64_t>(16, (r.rows + kGradBands - 1) / kGradBands);
    int64_t bands = (r.rows + length - 1) / length;
    ParallelFor(bands, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, length * r.width)),
                [&](int64_t begin, int64_t end) {
                  for (int64_t band = begin; band < end; ++band) {
                    RunBand(context, r.width, band * length, std::min(r.rows, (band + 1) * length),
                            sums + band * 2 * r.width);
                  }
                });
    for (int output = 1; output <= (kCentred ? 2 : 1); ++output) {
      float* to = context.out[output].as<float>();
      std::fill_n(to, r.width, 0.0f);
      for (int64_t band = 0; band < bands; ++band) {
        const float* from = sums + (band * 2 + output - 1) * r.width;
        for (int64_t c = 0; c < r.width; ++c) to[c] += from[c];
      }
    }
    return Status();
  }

 private:
  static void RunBand(const KernelContext& context, int64_t width, int64_t begin, int64_t end, float* sums) {
    std::fill_n(sums, 2 * width, 0.0f);
    int64_t row = begin;
    for (; row + kTogether <= end; row += kTogether) RunRows<kTogether>(context, width, row, sums);
    for (; row < end; ++row) RunRows<1>(context, width, row, sums);
  }

  // With n = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - n mean(g n)) [+ residual].
  template <int R>
  static void RunRows(const KernelContext& context, int64_t width, int64_t first, float* sums) {
    const float *gamma = context.in[2].as<float>(), *means = kCentred ? context.in[3].as<float>() : nullptr;
    const float* rstds = context.in[kCentred ? 4 : 3].as<float>();
    float *dgamma = sums, *dbeta = sums + width;
    const T *dy = context.in[0].as<T>() + first * width, *x = context.in[1].as<T>() + first * width;
    T* dx = context.out[0].as<T>() + first * width;
    constexpr size_t kOperands = kCentred ? 5 : 4;
    const T* residual =
        context.in.size() > kOperands ? context.in[kOperands].as<T>() + first * width : nullptr;
    float mean[R], rstd[R];
    for (int r = 0; r < R; ++r) {
      mean[r] = kCentred ? means[first + r] : 0.0f;
      rstd[r] = rstds[first + r];
    }

    Vector sum_g[R] = {}, sum_gn[R] = {};
    ForVectors(width, [&](int64_t c, auto lanes) {
      Vector scale = LoadVector(gamma + c, lanes), to_gamma = {}, to_beta = {};
      for (int r = 0; r < R; ++r) {
        Vector d = LoadVector(dy + r * width + c, lanes), g = d * scale;
        Vector n = (LoadVector(x + r * width + c, lanes) - mean[r]) * rstd[r];
        sum_g[r] += g;
        sum_gn[r] += g * n;
        to_gamma += d * n;
        to_beta += d;
      }
      StoreVector(LoadVector(dgamma + c, lanes) + to_gamma, lanes, dgamma + c);
      if (kCentred) StoreVector(LoadVector(dbeta + c, lanes) + to_beta, lanes, dbeta + c);
    });

    // dx = rstd g - shift - factor (x - mean) [+ residual]
    float shift[R], factor[R];
    for (int r = 0; r < R; ++r) {
      float count = static_cast<float>(width);
      shift[r] = kCentred ? rstd[r] * SumOfLanes(sum_g[r]) / count : 0.0f;
      factor[r] = rstd[r] * rstd[r] * SumOfLanes(sum_gn[r]) / count;
    }
    auto write = [&](auto beside) {
      ForVectors(width, [&](int64_t c, auto lanes) {
        Vector scale = LoadVector(gamma + c, lanes);
        for (int r = 0; r < R; ++r) {
          Vector g = LoadVector(dy + r * width + c, lanes) * scale;
          Vector centred = LoadVector(x + r * width + c, lanes) - mean[r];
          Vector to = rstd[r] * g - shift[r] - factor[r] * centred;
          if constexpr (beside.value) to += LoadVector(residual + r * width + c, lanes);
          StoreVector(to, lanes, dx + r * width + c);
        }
      });
    };
    if (residual) {
      write(std::true_type());
    } else {
      write(std::false_type());
    }
  }
};

// Whether x (operand `x`) and all of `alike` have one floating type, and all other operands are fp32.
bool Mixed(const KernelSpec& spec, size_t x, std::vector<const TensorArg*> alike) {
  DType dtype = spec.in[x].dtype;
  if (!IsFloating(dtype)) return false;
  alike.push_back(&spec.in[x]);
  auto fits = [&](const TensorArg& arg) {
    bool is_alike = std::find(alike.begin(), alike.end(), &arg) != alike.end();
    return arg.dtype == (is_alike ? dtype : DType::kFloat32);
  };
  return std::all_of(spec.in.begin(), spec.in.end(), fits) &&
         std::all_of(spec.out.begin(), spec.out.end(), fits);
}

template <bool kCentred>
KernelPtr MakeNorm(const KernelSpec& spec) {
  if (!Mixed(spec, 0, {&spec.out[0]})) return MakeReference(spec);
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(Norm<kCentred, decltype(t)>)(spec); });
}

template <bool kCentred>
KernelPtr MakeNormGrad(const KernelSpec& spec) {
  std::vector<const TensorArg*> alike = {&spec.in[0], &spec.out[0]};
  if (spec.in.size() > (kCentred ? 5 : 4)) alike.push_back(&spec.in.back());
  if (!Mixed(spec, 1, alike)) return MakeReference(spec);
  return DispatchFloating(spec.in[1].dtype, [&](auto t) {
    return MakeFunctionKernel(NormGrad<kCentred, decltype(t)>::Run)(spec);
  });
}

}  // namespace

KernelPtr MakeLayerNorm(const KernelSpec& spec) { return MakeNorm<true>(spec); }
KernelPtr MakeRmsNorm(const KernelSpec& spec) { return MakeNorm<false>(spec); }
KernelPtr MakeLayerNormGrad(const KernelSpec& spec) { return MakeNormGrad<true>(spec); }
KernelPtr MakeRmsNormGrad(const KernelSpec& spec) { return MakeNormGrad<false>(spec); }
int64_t NormGradScratch(const KernelSpec& spec) {
  return NormGradSums(spec.in[1]) * static_cast<int64_t>(sizeof(float));
}

}  // namespace oneflow_like::cpu
