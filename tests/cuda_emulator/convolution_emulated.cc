// Convolutions of the emulator's library: loops over the relation of ops/convolution.h, for every second
// number of groups, so that what is passed to a library and what it refuses are both tested.
#include <cuda_runtime.h>

#include <vector>

#include "core/float16.h"
#include "ops/cuda/convolution_library.h"

namespace oneflow_like::cuda {
namespace {

class Floats {
 public:
  Floats(const void* data, DType dtype, int64_t elements) : values_(static_cast<size_t>(elements)) {
    for (int64_t i = 0; i < elements; ++i) {
      values_[i] = dtype == DType::kFloat16    ? ToFloat(static_cast<const Float16*>(data)[i])
                   : dtype == DType::kBFloat16 ? ToFloat(static_cast<const BFloat16*>(data)[i])
                                               : static_cast<const float*>(data)[i];
    }
  }
  explicit Floats(int64_t elements) : values_(static_cast<size_t>(elements)) {}
  float& operator[](int64_t i) { return values_[i]; }
  void Write(void* to, DType dtype) const {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (dtype == DType::kFloat16)
        static_cast<Float16*>(to)[i] = ToFloat16(values_[i]);
      else if (dtype == DType::kBFloat16)
        static_cast<BFloat16*>(to)[i] = ToBFloat16(values_[i]);
      else
        static_cast<float*>(to)[i] = values_[i];
    }
  }

 private:
  std::vector<float> values_;
};

// body(element of x, of the filter, of y) for every product.
template <typename F>
void ForEachProduct(const ConvolutionShape& s, F&& body) {
  const auto meets = [](const ConvolutionAxis& axis, int64_t p, int64_t r) {
    const int64_t h = p * axis.stride - axis.padding + r * axis.dilation;
    return h < 0 || h >= axis.in ? int64_t{-1} : h;
  };
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t p = 0; p < s.rows.out; ++p)
      for (int64_t q = 0; q < s.columns.out; ++q)
        for (int64_t k = 0; k < s.groups * s.out; ++k)
          for (int64_t r = 0; r < s.rows.window; ++r)
            for (int64_t e = 0; e < s.columns.window; ++e) {
              const int64_t h = meets(s.rows, p, r), w = meets(s.columns, q, e), g = k / s.out;
              if (h < 0 || w < 0) continue;
              for (int64_t c = 0; c < s.in; ++c)
                body(((n * s.rows.in + h) * s.columns.in + w) * s.groups * s.in + g * s.in + c,
                     ((k * s.rows.window + r) * s.columns.window + e) * s.in + c,
                     ((n * s.rows.out + p) * s.columns.out + q) * s.groups * s.out + k);
            }
}

void Convolve(const LibraryConvolution& convolution, const ConvolutionOperands& p) {
  const ConvolutionShape& s = convolution.shape;
  const int64_t planes = s.batch * s.groups, window = s.rows.window * s.columns.window,
                elements[] = {planes * s.in * s.rows.in * s.columns.in, s.groups * s.out * s.in * window,
                              planes * s.out * s.rows.out * s.columns.out};
  const int result = convolution.kind == ConvolutionKind::kGradInput    ? 0
                     : convolution.kind == ConvolutionKind::kGradFilter ? 1
                                                                        : 2;
  void* const data[] = {p.x, p.filter, p.y};
  std::vector<Floats> all;
  for (int i = 0; i < 3; ++i)
    all.push_back(i == result ? Floats(elements[i]) : Floats(data[i], convolution.dtype, elements[i]));
  ForEachProduct(s, [&](int64_t x, int64_t filter, int64_t y) {
    const int64_t at[] = {x, filter, y};
    float product = 1;
    for (int i = 0; i < 3; ++i)
      if (i != result) product *= all[i][at[i]];
    all[result][at[result]] += product;
  });
  all[result].Write(data[result], convolution.result);
}

class EmulatedConvolutions : public ConvolutionLibrary {
 public:
  bool Takes(const LibraryConvolution& convolution, const LaunchContext&) override {
    return convolution.shape.groups % 2 == 1;
  }
  Status Launch(const LibraryConvolution& convolution, const ConvolutionOperands& operands,
                const LaunchContext& launch) override {
    cuda_emulator::LoadCode(this);
    cuda_emulator::Enqueue(launch.stream, [convolution, operands] { Convolve(convolution, operands); });
    return Status();
  }
};

}  // namespace

std::unique_ptr<ConvolutionLibrary> MakeConvolutionLibrary() {
  return std::make_unique<EmulatedConvolutions>();
}

}  // namespace oneflow_like::cuda
