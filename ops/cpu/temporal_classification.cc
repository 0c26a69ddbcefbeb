// ctc_loss and its gradient, a sample by a thread. The states of a place are a line of fp32, three
// exponentials and a logarithm each, in vectors; so that these keep their digits over many places, the
// greatest of each place is taken off and added up in double. Lines have two more elements that nothing leads
// to.
#include "ops/temporal_classification.h"

#include <algorithm>
#include <cmath>

#include "core/device/scratch.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/loops.h"
#include "ops/scalar.h"

namespace oneflow_like::cpu {
namespace {

constexpr float kNothing = -scalar::kInfinity;

struct CtcLines {
  float *from, *to, *leap, *emit, *shares, *table;
  int32_t* classes;
  double* taken;  // of the places of the table

  CtcLines(const KernelSpec& spec, bool gradient, int range, Scratch* scratch) {
    const int64_t line = 2 * spec.in[1].extent[1] + 3, places = spec.in[0].extent[1];
    for (int r = 0; r <= range; ++r) {
      from = scratch->Take<float>(line);
      to = scratch->Take<float>(line);
      leap = scratch->Take<float>(line);
      emit = scratch->Take<float>(line);
      classes = scratch->Take<int32_t>(line);
      shares = scratch->Take<float>(gradient ? spec.in[0].extent[2] : 0);
      table = scratch->Take<float>(gradient ? places * line : 0);
      taken = scratch->Take<double>(gradient ? places : 0);
    }
  }
};

// log(e^a + e^b + e^c).
inline float LogSum3(float a, float b, float c) {
  float most = a > b ? a : b;
  most = c > most ? c : most;
  most = most > -1e30f ? most : -1e30f;
  return most + scalar::LogOf(scalar::ExpOf(a - most) + scalar::ExpOf(b - most) + scalar::ExpOf(c - most));
}

float GreatestOf(const float* x, int64_t n) {
  float greatest = kNothing;
#ifndef __clang__
#pragma omp simd reduction(max : greatest)
#endif
  for (int64_t i = 0; i < n; ++i) greatest = x[i] > greatest ? x[i] : greatest;
  return greatest;
}

template <typename T>
struct CtcSample {
  const T* log_probs;  // of the sample
  CtcLines lines;
  int64_t places, length, states, classes, blank;

  CtcSample(const KernelContext& context, const CtcLines& lines, int64_t n)
      : lines(lines), classes(context.in[0].extent[2]), blank(context.spec.attrs.Int("blank")) {
    const TensorArg &probs = context.in[0], &targets = context.in[1];
    log_probs = probs.as<T>() + n * probs.extent[1] * classes;
    places = LoadInt(context.in[2], n);
    length = LoadInt(context.in[3], n);
    states = 2 * length + 1;
    for (int64_t s = 0; s < states; ++s)
      lines.classes[s] =
          static_cast<int32_t>(s % 2 == 0 ? blank : LoadInt(targets, n * targets.extent[1] + s / 2));
    for (int64_t s = 0; s < states; ++s)
      lines.leap[s] = s % 2 == 1 && s > 1 && lines.classes[s] != lines.classes[s - 2] ? 0.0f : kNothing;
  }

  void Emit(int64_t t) const {
    const T* row = log_probs + t * classes;
    for (int64_t s = 0; s < states; ++s) lines.emit[s] = AsFloat(row[lines.classes[s]]);
  }

  // Of place t, from that of the place before; what is taken off is returned. Lines begin with two elements
  // that nothing leads to.
  double Forward(int64_t t, const float* from, float* to) const {
    Emit(t);
    to[0] = to[1] = kNothing;
    const float *leap = lines.leap, *emit = lines.emit;
    if (t == 0) {
      for (int64_t s = 0; s < states; ++s) to[s + 2] = s < 2 ? emit[s] : kNothing;
    } else {
      OFL_INDEPENDENT
      for (int64_t s = 0; s < states; ++s)
        to[s + 2] = LogSum3(from[s + 2], from[s + 1], from[s] + leap[s]) + emit[s];
    }
    return TakeOff(to + 2);
  }
  double TakeOff(float* line) const {
    const float greatest = GreatestOf(line, states);
    if (!(greatest > kNothing)) return 0;
    for (int64_t s = 0; s < states; ++s) line[s] -= greatest;
    return greatest;
  }
  double Loss(const float* line, double taken) const {
    if (places == 0) return length == 0 ? 0 : -double{kNothing};
    const double last = line[states + 1], before = length == 0 ? double{kNothing} : line[states];
    const double most = std::max(last, before), least = std::min(last, before);
    if (std::isnan(last + before)) return last + before;
    return -(taken + (least == double{kNothing} ? most : most + std::log1p(std::exp(least - most))));
  }
};

template <typename T>
Status CtcLoss(const KernelContext& context) {
  if (Status status = CheckSpellings(context); !status.ok()) return status;
  ParallelForParts(context.in[0].extent[0], 1, context.spec.threads,
                   [&](int64_t begin, int64_t end, int range) {
                     Scratch scratch(context.scratch);
                     const CtcLines lines(context.spec, false, range, &scratch);
                     for (int64_t n = begin; n < end; ++n) {
                       const CtcSample<T> sample(context, lines, n);
                       float *from = lines.from, *to = lines.to;
                       double taken = 0;
                       for (int64_t t = 0; t < sample.places; ++t) {
                         taken += sample.Forward(t, from, to);
                         std::swap(from, to);
                       }
                       context.out[0].as<float>()[n] = static_cast<float>(sample.Loss(from, taken));
                     }
                   });
  return Status();
}

// The gradient of a sample: into[places classes], of which the first are written.
template <typename T>
void CtcSampleGrad(const CtcSample<T>& sample, float dloss, T* into) {
  const CtcLines& lines = sample.lines;
  const int64_t states = sample.states, line = states + 2, last = sample.places - 1;
  double taken = 0;
  for (int64_t t = 0; t <= last; ++t)
    lines.taken[t] = taken +=
        sample.Forward(t, t > 0 ? lines.table + (t - 1) * line : nullptr, lines.table + t * line);
  const double loss = sample.Loss(last >= 0 ? lines.table + last * line : lines.from, taken);
  const bool possible = std::isfinite(loss);
  // What follows a place, by its state, which begins with the probability of the place after: `from`.
  float *from = lines.from, *to = lines.to;
  const float* leap = lines.leap;
  taken = 0;
  for (int64_t t = last; t >= 0; --t) {
    T* row = into + t * sample.classes;
    std::fill_n(lines.shares, sample.classes, 0.0f);
    if (possible) {
      if (t == last) {
        for (int64_t s = 0; s < states; ++s) to[s] = s >= states - 2 ? 0.0f : kNothing;
      } else {
        sample.Emit(t + 1);
        for (int64_t s = 0; s < states; ++s) from[s] += lines.emit[s];
        from[states] = from[states + 1] = kNothing;
        lines.leap[states] = lines.leap[states + 1] = kNothing;
        OFL_INDEPENDENT
        for (int64_t s = 0; s < states; ++s) to[s] = LogSum3(from[s], from[s + 1], from[s + 2] + leap[s + 2]);
      }
      taken += sample.TakeOff(to);
      const auto rest = static_cast<float>(lines.taken[t] + taken + loss);
      const float* ways = lines.table + t * line + 2;
      OFL_INDEPENDENT
      for (int64_t s = 0; s < states; ++s) from[s] = scalar::ExpOf(ways[s] + to[s] + rest);
      for (int64_t s = 0; s < states; ++s) lines.shares[lines.classes[s]] += from[s];
      std::swap(from, to);
    }
    for (int64_t k = 0; k < sample.classes; ++k)
      row[k] = FromFloat<T>(possible ? -dloss * lines.shares[k] : 0.0f);
  }
}

template <typename T>
Status CtcLossGrad(const KernelContext& context) {
  if (Status status = CheckSpellings(context); !status.ok()) return status;
  const int64_t each = context.in[0].extent[1] * context.in[0].extent[2];
  ParallelForParts(context.in[0].extent[0], 1, context.spec.threads,
                   [&](int64_t begin, int64_t end, int range) {
                     Scratch scratch(context.scratch);
                     const CtcLines lines(context.spec, true, range, &scratch);
                     for (int64_t n = begin; n < end; ++n) {
                       const CtcSample<T> sample(context, lines, n);
                       T* into = context.out[0].as<T>() + n * each;
                       CtcSampleGrad(sample, static_cast<float>(LoadFloat(context.in[4], n)), into);
                       for (int64_t i = sample.places * sample.classes; i < each; ++i)
                         into[i] = FromFloat<T>(0.0f);
                     }
                   });
  return Status();
}

template <bool kGradient>
int64_t CtcBytes(const KernelSpec& spec) {
  Scratch scratch;
  CtcLines(spec, kGradient, spec.threads - 1, &scratch);
  return scratch.bytes();
}

}  // namespace

KernelPtr MakeCtcLoss(const KernelSpec& spec) {
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(CtcLoss<decltype(t)>)(spec); });
}
KernelPtr MakeCtcLossGrad(const KernelSpec& spec) {
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(CtcLossGrad<decltype(t)>)(spec); });
}
int64_t CtcLossScratch(const KernelSpec& spec) { return CtcBytes<false>(spec); }
int64_t CtcLossGradScratch(const KernelSpec& spec) { return CtcBytes<true>(spec); }

}  // namespace oneflow_like::cpu
