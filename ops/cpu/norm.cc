// layer_norm and rms_norm by rows, and their gradients. Gradients of gamma and beta are summed in at most 32
// fixed bands of rows, then over the bands, so their bits do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/convert.h"
#include "ops/cpu/kernels.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

// Rows of 16-bit types in fp32; of one thread, kept between acts. Asked for outside the loops over rows.
struct WideRows {
  float *x = nullptr, *dy = nullptr, *out = nullptr;
};
[[gnu::noinline]] WideRows OfThread(int64_t width) {
  static thread_local std::vector<float> floats;
  if (static_cast<int64_t>(floats.size()) < 3 * width) floats.resize(3 * width);
  return {floats.data(), floats.data() + width, floats.data() + 2 * width};
}
template <typename T>
WideRows BuffersFor(int64_t width) {
  if constexpr (std::is_same_v<T, float>) {
    return {};
  } else {
    return OfThread(width);
  }
}

// A row of x in fp32: in place, or widened into the buffer.
template <typename T>
const float* RowOf(const T* from, int64_t n, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return from;
  } else {
    Widen(from, n, buffer);
    return buffer;
  }
}

// Where to write a row in fp32: in place, or into the buffer, which Finish rounds to its place.
template <typename T>
float* RowTo(T* to, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return to;
  } else {
    return buffer;
  }
}
template <typename T>
void Finish(const float* row, int64_t n, T* to) {
  if constexpr (!std::is_same_v<T, float>) Narrow(row, n, to);
}

float SumOf(const float* x, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

float SquaresAbout(const float* x, int64_t n, float mean) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += (x[i] - mean) * (x[i] - mean);
  return sum;
}

// x, gamma, beta -> y, mean, rstd; kCentred false: x, gamma -> y, rstd. x and y of type T, the rest fp32.
template <bool kCentred, typename T>
Status Norm(const KernelContext& context) {
  Rows r = RowsOf(context.in[0]);
  const T* x = context.in[0].as<T>();
  const float* gamma = context.in[1].as<float>();
  const float* beta = kCentred ? context.in[2].as<float>() : nullptr;
  T* y = context.out[0].as<T>();
  float* means = kCentred ? context.out[1].as<float>() : nullptr;
  float* rstds = context.out[kCentred ? 2 : 1].as<float>();
  double eps = context.spec.attrs.Float("eps");
  float count = static_cast<float>(std::max<int64_t>(r.width, 1));
  ParallelFor(r.rows, RowGrain(r.width), [&](int64_t begin, int64_t end) {
    WideRows wide = BuffersFor<T>(r.width);
    for (int64_t row = begin; row < end; ++row) {
      const float* in = RowOf(x + row * r.width, r.width, wide.x);
      float* out = RowTo(y + row * r.width, wide.out);
      float mean = kCentred ? SumOf(in, r.width) / count : 0.0f;
      float rstd = static_cast<float>(1.0 / std::sqrt(SquaresAbout(in, r.width, mean) / count + eps));
#pragma GCC ivdep
      for (int64_t c = 0; c < r.width; ++c) {
        float n = (in[c] - mean) * rstd;
        out[c] = kCentred ? n * gamma[c] + beta[c] : n * gamma[c];
      }
      Finish(out, r.width, y + row * r.width);
      if (kCentred) means[row] = mean;
      rstds[row] = rstd;
    }
  });
  return Status();
}

// dy, x, gamma, mean, rstd -> dx, dgamma, dbeta; kCentred false: dy, x, gamma, rstd -> dx, dgamma. dy, x and
// dx of type T, the rest fp32.
template <bool kCentred, typename T>
class NormGrad : public Kernel {
 public:
  explicit NormGrad(const KernelSpec& spec) : sums_(kBands * 2 * RowsOf(spec.in[1]).width) {}

  Status Run(const KernelContext& context) override {
    Rows r = RowsOf(context.in[1]);
    int64_t length = std::max<int64_t>(16, (r.rows + kBands - 1) / kBands);
    int64_t bands = (r.rows + length - 1) / length;
    ParallelFor(bands, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, length * r.width)),
                [&](int64_t begin, int64_t end) {
                  for (int64_t band = begin; band < end; ++band) {
                    RunBand(context, r.width, band * length, std::min(r.rows, (band + 1) * length),
                            sums_.data() + band * 2 * r.width);
                  }
                });
    for (int output = 1; output <= (kCentred ? 2 : 1); ++output) {
      float* to = context.out[output].as<float>();
      std::fill_n(to, r.width, 0.0f);
      for (int64_t band = 0; band < bands; ++band) {
        const float* from = sums_.data() + (band * 2 + output - 1) * r.width;
        for (int64_t c = 0; c < r.width; ++c) to[c] += from[c];
      }
    }
    return Status();
  }

 private:
  static constexpr int64_t kBands = 32;

  // With n = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - n mean(g n)).
  static void RunBand(const KernelContext& context, int64_t width, int64_t begin, int64_t end, float* sums) {
    const float *gamma = context.in[2].as<float>(), *means = kCentred ? context.in[3].as<float>() : nullptr;
    const float* rstds = context.in[kCentred ? 4 : 3].as<float>();
    float *dgamma = sums, *dbeta = sums + width;
    std::fill_n(sums, 2 * width, 0.0f);
    WideRows wide = BuffersFor<T>(width);
    for (int64_t row = begin; row < end; ++row) {
      const float* dy = RowOf(context.in[0].as<T>() + row * width, width, wide.dy);
      const float* x = RowOf(context.in[1].as<T>() + row * width, width, wide.x);
      T* to = context.out[0].as<T>() + row * width;
      float* dx = RowTo(to, wide.out);
      float mean = kCentred ? means[row] : 0.0f, rstd = rstds[row], sum_g = 0, sum_gn = 0;
#pragma omp simd reduction(+ : sum_g, sum_gn)
      for (int64_t c = 0; c < width; ++c) {
        float n = (x[c] - mean) * rstd, g = dy[c] * gamma[c];
        sum_g += g;
        sum_gn += g * n;
        dgamma[c] += dy[c] * n;
        if (kCentred) dbeta[c] += dy[c];
      }
      float mean_g = kCentred ? sum_g / static_cast<float>(width) : 0.0f;
      float mean_gn = sum_gn / static_cast<float>(width);
#pragma GCC ivdep
      for (int64_t c = 0; c < width; ++c) {
        dx[c] = rstd * (dy[c] * gamma[c] - mean_g - (x[c] - mean) * rstd * mean_gn);
      }
      Finish(dx, width, to);
    }
  }

  std::vector<float> sums_;  // [band][dgamma, dbeta][width]
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
  if (!Mixed(spec, 1, {&spec.in[0], &spec.out[0]})) return MakeReference(spec);
  return DispatchFloating(spec.in[1].dtype, [&](auto t) -> KernelPtr {
    return std::make_unique<NormGrad<kCentred, decltype(t)>>(spec);
  });
}

}  // namespace

KernelPtr MakeLayerNorm(const KernelSpec& spec) { return MakeNorm<true>(spec); }
KernelPtr MakeRmsNorm(const KernelSpec& spec) { return MakeNorm<false>(spec); }
KernelPtr MakeLayerNormGrad(const KernelSpec& spec) { return MakeNormGrad<true>(spec); }
KernelPtr MakeRmsNormGrad(const KernelSpec& spec) { return MakeNormGrad<false>(spec); }

}  // namespace oneflow_like::cpu
