// The bodies that ops/cuda/launch.h declares.
#pragma once

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace oneflow_like::cuda {

#if defined(__CUDACC__)
OFL_DEVICE float Load(BFloat16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
OFL_DEVICE float Load(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }
template <>
OFL_DEVICE BFloat16 Store<BFloat16>(float x) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
template <>
OFL_DEVICE Float16 Store<Float16>(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}
#else
OFL_DEVICE float Load(BFloat16 x) { return ToFloat(x); }
OFL_DEVICE float Load(Float16 x) { return ToFloat(x); }
template <>
OFL_DEVICE BFloat16 Store<BFloat16>(float x) {
  return ToBFloat16(x);
}
template <>
OFL_DEVICE Float16 Store<Float16>(float x) {
  return ToFloat16(x);
}
#endif
template <>
OFL_DEVICE float Store<float>(float x) {
  return x;
}
template <>
OFL_DEVICE bool Store<bool>(float x) {
  return x != 0.0f;
}
template <>
OFL_DEVICE int32_t Store<int32_t>(float x) {
  return static_cast<int32_t>(x);
}
template <>
OFL_DEVICE int64_t Store<int64_t>(float x) {
  return static_cast<int64_t>(x);
}

template <typename Fold>
OFL_DEVICE float BlockFold(float x, float* room, float identity, Fold fold) {
  unsigned warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  x = fold(x);
  if (threadIdx.x % 32 == 0) room[warp] = x;
  __syncthreads();
  x = fold(threadIdx.x % 32 < warps ? room[threadIdx.x % 32] : identity);
  __syncthreads();
  return x;
}
OFL_DEVICE float BlockSum(float x, float* room) {
  return BlockFold(x, room, 0.0f, [](float v) { return WarpSum(v); });
}
OFL_DEVICE float BlockMax(float x, float* room) {
  return BlockFold(x, room, -INFINITY, [](float v) { return WarpMax(v); });
}

}  // namespace oneflow_like::cuda
