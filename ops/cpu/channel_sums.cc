// channel_moments and channel_products: sums in at most 128 fixed bands of rows, then over the bands in
// double.
#include "core/device/scratch.h"
#include "ops/cpu/channel_bands.h"
#include "ops/cpu/kernels.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

constexpr int64_t kBands = 128;

struct ChannelRoom {
  float* sums;     // [band][two sums][channel]
  double* totals;  // [two sums][channel]
  int64_t bytes;
  ChannelRoom(const TensorArg& x, void* memory) {
    const Rows r = RowsOf(x);
    Scratch scratch(memory);
    sums = scratch.Take<float>(2 * r.width * Bands::Most(r.rows, kBands));
    totals = scratch.Take<double>(2 * r.width);
    bytes = scratch.bytes();
  }
};

// kProducts: dy, x, centre; else x, centre. dy of type D, x of type T.
template <bool kProducts, typename D, typename T>
Status ChannelSums(const KernelContext& context) {
  const TensorArg &x = context.in[kProducts ? 1 : 0], &centre = context.in[kProducts ? 2 : 1];
  const Rows r = RowsOf(x);
  const Bands bands(r.rows, kBands);
  const ChannelRoom room(x, context.scratch);
  const bool one_by_one =
      OneByOne(r.width, x.elements() * static_cast<int64_t>(sizeof(T) + (kProducts ? sizeof(D) : 0)));
  ParallelFor(bands.count, RowGrain(bands.length * r.width), [&](int64_t begin, int64_t end) {
    for (int64_t band = begin; band < end; ++band) {
      int64_t first = band * bands.length, rows = std::min(bands.length, r.rows - first);
      float* sums = room.sums + band * 2 * r.width;
      if constexpr (kProducts) {
        SumProducts(context.in[0].as<D>() + first * r.width, x.as<T>() + first * r.width, centre.as<float>(),
                    rows, r.width, one_by_one, sums);
      } else {
        SumMoments(x.as<T>() + first * r.width, centre.as<float>(), rows, r.width, one_by_one, sums);
      }
    }
  });
  ParallelFor(2 * r.width, RowGrain(bands.count), [&](int64_t begin, int64_t end) {
    JoinBands(room.sums + begin, bands.count, 2 * r.width, end - begin, room.totals + begin);
    for (int64_t i = begin; i < end; ++i) {
      float* to = context.out[i < r.width ? 0 : 1].as<float>();
      to[i < r.width ? i : i - r.width] = static_cast<float>(room.totals[i]);
    }
  });
  return Status();
}

}  // namespace

KernelPtr MakeChannelMoments(const KernelSpec& spec) {
  if (spec.in[1].dtype != DType::kFloat32) return MakeReference(spec);
  return DispatchFloating(spec.in[0].dtype, [&](auto t) {
    return MakeFunctionKernel(ChannelSums<false, float, decltype(t)>)(spec);
  });
}
int64_t ChannelMomentsScratch(const KernelSpec& spec) { return ChannelRoom(spec.in[0], nullptr).bytes; }

KernelPtr MakeChannelProducts(const KernelSpec& spec) {
  if (spec.in[2].dtype != DType::kFloat32) return MakeReference(spec);
  return DispatchFloating(spec.in[0].dtype, [&](auto d) {
    return DispatchFloating(spec.in[1].dtype, [&](auto t) {
      return MakeFunctionKernel(ChannelSums<true, decltype(d), decltype(t)>)(spec);
    });
  });
}
int64_t ChannelProductsScratch(const KernelSpec& spec) { return ChannelRoom(spec.in[1], nullptr).bytes; }

}  // namespace oneflow_like::cpu
