// Two sums for every channel over the rows of a tensor [rows channels], in an order that depends on the shape
// only: for the statistics of batch and group norms, and their gradients.
#pragma once

#include <algorithm>

#include "ops/cuda/operand.h"
#include "ops/cuda/walk.h"

namespace oneflow_like::cuda {

struct TwoTerms {
  float a = 0.0f, b = 0.0f;
};

struct ChannelSumPlan {
  int64_t rows = 0, channels = 0, bands = 0, length = 0;
};

// Bands of at least 64 rows, at most 256, as far as their sums fit the workspace. bands 0: they do not.
inline ChannelSumPlan PlanChannelSums(int64_t rows, int64_t channels, const LaunchContext& launch) {
  ChannelSumPlan plan{rows, channels};
  int64_t each = 2 * static_cast<int64_t>(sizeof(float)) * std::max<int64_t>(1, channels);
  int64_t most = std::min<int64_t>(256, static_cast<int64_t>(launch.workspace_bytes) / each);
  if (most == 0) return plan;
  plan.length = std::max<int64_t>(64, (rows + most - 1) / most);
  plan.bands = std::max<int64_t>(1, (rows + plan.length - 1) / plan.length);
  return plan;
}

// sums[band][two][channels]: the terms f(row, channel) of a band added up. A block has 32 channels of a band;
// its 8 warps share the rows, neighbouring lanes read neighbouring channels.
template <typename F>
OFL_KERNEL void SumChannelBands(ChannelSumPlan plan, F f, float* sums) {
  OFL_SHARED float room[2][8][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t tiles = (plan.channels + 31) / 32, channel = blockIdx.x % tiles * 32 + lane;
  int64_t band = blockIdx.x / tiles, first = band * plan.length;
  int64_t end = first + plan.length < plan.rows ? first + plan.length : plan.rows;
  TwoTerms sum;
  for (int64_t row = first + warp; row < end && channel < plan.channels; row += 8) {
    TwoTerms term = f(row, channel);
    sum.a += term.a;
    sum.b += term.b;
  }
  room[0][warp][lane] = sum.a;
  room[1][warp][lane] = sum.b;
  __syncthreads();
  if (warp < 2 && channel < plan.channels) {
    float total = 0.0f;
    for (int w = 0; w < 8; ++w) total += room[warp][w][lane];
    sums[(band * 2 + warp) * plan.channels + channel] = total;
  }
}

// The bands' sums, joined in an order of their own. A block has 32 of all channels and sums; its 8 warps
// share the bands.
template <typename View>
OFL_KERNEL void JoinChannelBands(ChannelSumPlan plan, const float* sums, View a, View b) {
  constexpr int kWarps = 8, kAtOnce = 4;  // loads on their way
  OFL_SHARED double room[kWarps][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t all = 2 * plan.channels, i = int64_t{blockIdx.x} * 32 + lane;
  double total = 0;
  for (int64_t band = warp; band < plan.bands && i < all; band += kWarps * kAtOnce) {
    float part[kAtOnce];
    OFL_UNROLL
    for (int j = 0; j < kAtOnce; ++j)
      part[j] = band + j * kWarps < plan.bands ? sums[(band + j * kWarps) * all + i] : 0.0f;
    OFL_UNROLL
    for (int j = 0; j < kAtOnce; ++j) total += part[j];
  }
  room[warp][lane] = total;
  __syncthreads();
  if (warp != 0 || i >= all) return;
  for (int w = 1; w < kWarps; ++w) total += room[w][lane];
  if (i < plan.channels) {
    a.Put(i, static_cast<float>(total));
  } else {
    b.Put(i - plan.channels, static_cast<float>(total));
  }
}

// Whether the workspace holds the sums of so many channels.
inline Status RequireRoom(int64_t channels, const LaunchContext& launch) {
  if (channels == 0 || PlanChannelSums(1, channels, launch).bands > 0) return Status();
  return Status(Cat(channels, " channels are more than the CUDA kernel has room for"));
}

// a[c], b[c] = the sums of f(row, c) over all rows. REQUIRES: RequireRoom(channels, launch).
template <typename F>
void SumChannels(int64_t rows, int64_t channels, F f, FloatView a, FloatView b, const LaunchContext& launch) {
  if (channels == 0) return;
  ChannelSumPlan plan = PlanChannelSums(rows, channels, launch);
  float* sums = static_cast<float*>(launch.workspace);
  Grid bands{.x = static_cast<unsigned>(plan.bands * ((channels + 31) / 32))};
  Launch(SumChannelBands<F>, bands, launch.stream, plan, f, sums);
  Grid join{.x = static_cast<unsigned>((2 * channels + 31) / 32)};
  Launch(JoinChannelBands<FloatView>, join, launch.stream, plan, sums, a, b);
}

}  // namespace oneflow_like::cuda
