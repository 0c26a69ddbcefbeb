// channel_moments and channel_products: two sums for each channel. Floor, bytes: each operand once; a second
// launch joins at most 256 parts.
#include "ops/cuda/channel_sums.h"
#include "ops/cuda/kernels.h"

namespace oneflow_like::cuda {
namespace {

template <typename T>
struct MomentTerms {
  const T* x;
  FloatView centre;
  int64_t channels;
  OFL_DEVICE TwoTerms operator()(int64_t row, int64_t c) const {
    float away = Load(x[row * channels + c]) - centre.At(c);
    return {away, away * away};
  }
};

// dy is read as what it is with every access: it may have another type than x.
template <typename T>
struct ProductTerms {
  FloatView dy;
  const T* x;
  FloatView centre;
  int64_t channels;
  OFL_DEVICE TwoTerms operator()(int64_t row, int64_t c) const {
    float d = dy.At(row * channels + c);
    return {d, d * (Load(x[row * channels + c]) - centre.At(c))};
  }
};

int64_t RowsOf(const TensorArg& x) {
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < x.extent.rank(); ++axis) rows *= x.extent[axis];
  return rows;
}

template <bool kProducts>
Status ChannelSums(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[kProducts ? 1 : 0], &centre = context.in[kProducts ? 2 : 1];
  const int64_t channels = x.extent.back();
  FloatView first = FloatsOf(context.out[0]), second = FloatsOf(context.out[1]);
  if (Status room = RequireRoom(channels, launch); !room.ok()) return room;
  WithFloating(x.dtype, [&](auto t) {
    using T = decltype(t);
    if constexpr (kProducts) {
      ProductTerms<T> terms{FloatsOf(context.in[0]), x.as<T>(), FloatsOf(centre), channels};
      SumChannels(RowsOf(x), channels, terms, first, second, launch);
    } else {
      MomentTerms<T> terms{x.as<T>(), FloatsOf(centre), channels};
      SumChannels(RowsOf(x), channels, terms, first, second, launch);
    }
  });
  return Status();
}

}  // namespace

void AddChannelKernels(KernelRegistry* registry) {
  registry->Add("channel_moments", "cuda", MakeLaunchKernel(ChannelSums<false>));
  registry->Add("channel_products", "cuda", MakeLaunchKernel(ChannelSums<true>));
}

}  // namespace oneflow_like::cuda
