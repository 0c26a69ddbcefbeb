// channel_moments and channel_products: sums in at most 128 fixed bands of rows, then over the bands in
// double.
#include <vector>

#include "ops/cpu/channel_bands.h"
#include "ops/cpu/kernels.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

constexpr int64_t kBands = 128;

// kProducts: dy, x, centre; else x, centre. dy of type D, x of type T.
template <bool kProducts, typename D, typename T>
class ChannelSums : public Kernel {
 public:
  explicit ChannelSums(const KernelSpec& spec) {
    Rows r = RowsOf(spec.in[kProducts ? 1 : 0]);
    sums_.resize(2 * r.width * Bands(r.rows, kBands).count);
    totals_.resize(2 * r.width);
  }

  Status Run(const KernelContext& context) override {
    const TensorArg &x = context.in[kProducts ? 1 : 0], &centre = context.in[kProducts ? 2 : 1];
    const Rows r = RowsOf(x);
    const Bands bands(r.rows, kBands);
    const bool one_by_one =
        OneByOne(r.width, x.elements() * static_cast<int64_t>(sizeof(T) + (kProducts ? sizeof(D) : 0)));
    ParallelFor(bands.count, RowGrain(bands.length * r.width), [&](int64_t begin, int64_t end) {
      for (int64_t band = begin; band < end; ++band) {
        int64_t first = band * bands.length, rows = std::min(bands.length, r.rows - first);
        float* sums = sums_.data() + band * 2 * r.width;
        if constexpr (kProducts) {
          SumProducts(context.in[0].as<D>() + first * r.width, x.as<T>() + first * r.width,
                      centre.as<float>(), rows, r.width, one_by_one, sums);
        } else {
          SumMoments(x.as<T>() + first * r.width, centre.as<float>(), rows, r.width, one_by_one, sums);
        }
      }
    });
    ParallelFor(2 * r.width, RowGrain(bands.count), [&](int64_t begin, int64_t end) {
      JoinBands(sums_.data() + begin, bands.count, 2 * r.width, end - begin, totals_.data() + begin);
      for (int64_t i = begin; i < end; ++i) {
        float* to = context.out[i < r.width ? 0 : 1].as<float>();
        to[i < r.width ? i : i - r.width] = static_cast<float>(totals_[i]);
      }
    });
    return Status();
  }

 private:
  std::vector<float> sums_;     // [band][two sums][channel]
  std::vector<double> totals_;  // [two sums][channel]
};

}  // namespace

KernelPtr MakeChannelMoments(const KernelSpec& spec) {
  if (spec.in[1].dtype != DType::kFloat32) return MakeReference(spec);
  return DispatchFloating(spec.in[0].dtype, [&](auto t) -> KernelPtr {
    return std::make_unique<ChannelSums<false, float, decltype(t)>>(spec);
  });
}

KernelPtr MakeChannelProducts(const KernelSpec& spec) {
  if (spec.in[2].dtype != DType::kFloat32) return MakeReference(spec);
  return DispatchFloating(spec.in[0].dtype, [&](auto d) -> KernelPtr {
    return DispatchFloating(spec.in[1].dtype, [&](auto t) -> KernelPtr {
      return std::make_unique<ChannelSums<true, decltype(d), decltype(t)>>(spec);
    });
  });
}

}  // namespace oneflow_like::cpu
