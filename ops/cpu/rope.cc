// rope on the CPU: cosines and sines of a position once for all heads, in double without branches, so that
// they vectorise; then the heads in fp32.
#include "ops/rope.h"

#include <vector>

#include "core/device/scratch.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/loops.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

// Adding it rounds to a whole number, which then stands in the lowest bits.
constexpr double kRounder = 0x1.8p52;
constexpr double kTwoOverPi = 0.63661977236758134308;
// pi / 2 in two parts: the first has 33 bits, so that its multiples up to 2^20 are exact.
constexpr double kHalfPi = 0x1.921fb544p0, kHalfPiRest = 0x1.0b4611a626331p-34;

// sin and cos of r, |r| <= pi / 4, by their series: to 1e-11.
inline double SinOf(double r) {
  double z = r * r, p = 1.0 / 362880;
  p = p * z - 1.0 / 5040;
  p = p * z + 1.0 / 120;
  p = p * z - 1.0 / 6;
  return r + r * z * p;
}
inline double CosOf(double r) {
  double z = r * r, p = -1.0 / 3628800;
  p = p * z + 1.0 / 40320;
  p = p * z - 1.0 / 720;
  p = p * z + 1.0 / 24;
  return 1.0 - 0.5 * z + z * z * p;
}

// Of one thread.
struct Tables {
  float *cos, *sin, *in, *out;
  int64_t bytes;
  explicit Tables(int64_t width, void* memory = nullptr) {
    Scratch scratch(memory);
    for (float** table : {&cos, &sin, &in, &out}) *table = scratch.Take<float>(width);
    bytes = scratch.bytes();
  }
};

class Rope : public Kernel {
 public:
  explicit Rope(const KernelSpec& spec)
      : turns_(TurnsOf(spec.attrs, spec.in[0].extent[3])), frequencies_(turns_.dims / 2) {
    for (size_t i = 0; i < frequencies_.size(); ++i) frequencies_[i] = turns_.Frequency(i);
  }

  Status Run(const KernelContext& context) override {
    DispatchFloating(context.in[0].dtype, [&](auto t) { RunRows<decltype(t)>(context); });
    return Status();
  }

 private:
  // Positions of all batches lie side by side in the order of work, as they may share their angles.
  template <typename T>
  void RunRows(const KernelContext& context) const {
    const TensorArg &x = context.in[0], &positions = context.in[1];
    int64_t batch = x.extent[0], length = x.extent[1], heads = x.extent[2], width = x.extent[3];
    bool of_batch = positions.extent.rank() == 2;
    const int64_t bytes = Tables(width).bytes;
    const auto run = [&](int64_t begin, int64_t end, int part) {
      const Tables tables(width, static_cast<char*>(context.scratch) + part * bytes);
      int64_t filled = -1;  // the element of positions whose angles the tables hold
      for (int64_t i = begin; i < end; ++i) {
        int64_t s = i / batch, b = i % batch, place = of_batch ? b * length + s : s;
        if (place != filled) Fill(static_cast<double>(LoadInt(positions, place)), tables);
        filled = place;
        int64_t at = (b * length + s) * heads * width;
        for (int64_t h = 0; h < heads; ++h, at += width)
          Turn(x.as<T>() + at, width, tables, context.out[0].as<T>() + at);
      }
    };
    ParallelForParts(batch * length, RowGrain(heads * width), context.spec.threads, run);
  }

  void Fill(double position, const Tables& tables) const {
    const double* frequency = frequencies_.data();
    float *cos = tables.cos, *sin = tables.sin;
    int64_t n = static_cast<int64_t>(frequencies_.size());
    OFL_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      double angle = position * frequency[i];
      double rounded = angle * kTwoOverPi + kRounder, quarters = rounded - kRounder;
      double r = (angle - quarters * kHalfPi) - quarters * kHalfPiRest;
      // The quarter of the circle: its number modulo 4.
      double quarter = quarters - 4.0 * ((quarters * 0.25 - 0.375 + kRounder) - kRounder);
      double s = SinOf(r), c = CosOf(r);
      bool odd = quarter == 1.0 || quarter == 3.0;
      double y = odd ? c : s, x = odd ? s : c;
      sin[i] = static_cast<float>(quarter >= 2.0 ? -y : y);
      cos[i] = static_cast<float>(quarter == 1.0 || quarter == 2.0 ? -x : x);
    }
  }

  template <typename T>
  void Turn(const T* x, int64_t width, const Tables& tables, T* y) const {
    if constexpr (std::is_same_v<T, float>) {
      TurnFloats(x, width, tables, y);
    } else {
      Widen(x, width, tables.in);
      TurnFloats(tables.in, width, tables, tables.out);
      Narrow(tables.out, width, y);
    }
  }

  void TurnFloats(const float* x, int64_t width, const Tables& tables, float* y) const {
    const float *cos = tables.cos, *sin = tables.sin;
    int64_t pairs = static_cast<int64_t>(frequencies_.size());
    int64_t step = turns_.interleaved ? 2 : 1, apart = turns_.interleaved ? 1 : pairs;
    OFL_INDEPENDENT
    for (int64_t i = 0; i < pairs; ++i) {
      float a = x[step * i], b = x[step * i + apart];
      y[step * i] = a * cos[i] - b * sin[i];
      y[step * i + apart] = b * cos[i] + a * sin[i];
    }
    for (int64_t d = turns_.dims; d < width; ++d) y[d] = x[d];
  }

  const RopeTurns turns_;
  std::vector<double> frequencies_;
};

}  // namespace

KernelPtr MakeRope(const KernelSpec& spec) { return std::make_unique<Rope>(spec); }
int64_t RopeScratch(const KernelSpec& spec) { return spec.threads * Tables(spec.in[0].extent[3]).bytes; }

}  // namespace oneflow_like::cpu
