// Attention of the emulator's library: loops over the shape cuDNN would get, so that what is passed to it is
// tested.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/float16.h"
#include "ops/cuda/flash.h"

namespace oneflow_like::cuda {
namespace {

struct Reader {
  const void* data;
  bool half;
  float operator[](int64_t i) const {
    return half ? ToFloat(static_cast<const Float16*>(data)[i])
                : ToFloat(static_cast<const BFloat16*>(data)[i]);
  }
};

void Write(void* to, bool half, const std::vector<float>& from, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    if (half) {
      static_cast<Float16*>(to)[i] = ToFloat16(from[i]);
    } else {
      static_cast<BFloat16*>(to)[i] = ToBFloat16(from[i]);
    }
  }
}

struct Loops {
  const FlashShape& s;
  int64_t At(int64_t b, int64_t i, int64_t h) const { return ((b * s.queries + i) * s.heads + h) * s.width; }
  int64_t KeyAt(int64_t b, int64_t t, int64_t h) const {
    return ((b * s.all_keys + t) * s.key_heads + h / s.group()) * s.width;
  }
  int64_t First(int64_t i) const {
    return s.window == 0 ? 0 : std::max<int64_t>(0, i + s.shift + 1 - s.window);
  }
  int64_t Visible(int64_t i) const { return s.causal ? std::min(s.keys, i + s.shift + 1) : s.keys; }
  // Added to a score.
  float Mask(const FlashOperands& p, int64_t b, int64_t i, int64_t t) const {
    if (s.masks == 0) return 0;
    const Reader mask{p.mask, s.dtype == DType::kFloat16};
    return mask[((s.masks == 1 ? 0 : b) * s.queries + i) * s.keys + t];
  }
  float Dot(const Reader& x, int64_t at_x, const Reader& y, int64_t at_y) const {
    float sum = 0;
    for (int64_t d = 0; d < s.width; ++d) sum += x[at_x + d] * y[at_y + d];
    return sum;
  }
  template <typename F>
  void ForEachQuery(F&& body) const {
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads; ++h)
        for (int64_t i = 0; i < s.queries; ++i) body(b, h, i, (b * s.heads + h) * s.queries + i);
  }
};

void Forward(const FlashShape& s, const FlashOperands& p) {
  bool half = s.dtype == DType::kFloat16;
  Loops loops{s};
  Reader q{p.q, half}, k{p.k, half}, v{p.v, half};
  std::vector<float> o(s.batch * s.queries * s.heads * s.width), row(s.keys);
  loops.ForEachQuery([&](int64_t b, int64_t h, int64_t i, int64_t at_lse) {
    int64_t first = loops.First(i), visible = loops.Visible(i), at = loops.At(b, i, h);
    float greatest = -INFINITY, total = 0;
    for (int64_t t = first; t < visible; ++t) {
      row[t] = loops.Dot(q, at, k, loops.KeyAt(b, t, h)) * s.scale + loops.Mask(p, b, i, t);
      greatest = std::max(greatest, row[t]);
    }
    for (int64_t t = first; t < visible; ++t) total += row[t] = std::exp(row[t] - greatest);
    for (int64_t t = first; t < visible; ++t)
      for (int64_t d = 0; d < s.width; ++d) o[at + d] += row[t] / total * v[loops.KeyAt(b, t, h) + d];
    p.lse[at_lse] = greatest + std::log(total);
  });
  Write(p.o, half, o, 0, o.size());
}

void Backward(const FlashShape& s, const FlashOperands& p) {
  bool half = s.dtype == DType::kFloat16;
  Loops loops{s};
  Reader q{p.q, half}, k{p.k, half}, v{p.v, half}, o{p.o, half}, dout{p.dout, half};
  std::vector<float> dq(s.batch * s.queries * s.heads * s.width),
      dk(s.batch * s.all_keys * s.key_heads * s.width), dv(dk.size());
  loops.ForEachQuery([&](int64_t b, int64_t h, int64_t i, int64_t at_lse) {
    int64_t at = loops.At(b, i, h);
    float delta = loops.Dot(dout, at, o, at);
    for (int64_t t = loops.First(i); t < loops.Visible(i); ++t) {
      int64_t at_k = loops.KeyAt(b, t, h);
      float weight = std::exp(loops.Dot(q, at, k, at_k) * s.scale + loops.Mask(p, b, i, t) - p.lse[at_lse]);
      float ds = weight * (loops.Dot(dout, at, v, at_k) - delta) * s.scale;
      for (int64_t d = 0; d < s.width; ++d) {
        dv[at_k + d] += weight * dout[at + d];
        dq[at + d] += ds * k[at_k + d];
        dk[at_k + d] += ds * q[at + d];
      }
    }
  });
  Write(p.dq, half, dq, 0, dq.size());
  for (int64_t b = 0; b < s.batch; ++b) {  // rows that no query sees are not the library's
    const size_t row = s.key_heads * s.width, begin = b * s.all_keys * row, end = begin + s.keys * row;
    Write(p.dk, half, dk, begin, end);
    Write(p.dv, half, dv, begin, end);
  }
}

class EmulatedFlash : public Flash {
 public:
  bool Takes(const FlashShape& shape, const LaunchContext&) override { return shape.width <= 128; }
  Status Launch(const FlashShape& shape, const FlashOperands& operands,
                const LaunchContext& launch) override {
    cuda_emulator::LoadCode(this);
    cuda_emulator::Enqueue(launch.stream, [shape, operands] {
      if (shape.backward) {
        Backward(shape, operands);
      } else {
        Forward(shape, operands);
      }
    });
    return Status();
  }
};

}  // namespace

std::unique_ptr<Flash> MakeFlash() { return std::make_unique<EmulatedFlash>(); }

}  // namespace oneflow_like::cuda
