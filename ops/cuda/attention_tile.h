// The parts of the attention kernels (attention.cu). A block of 256 threads holds a tile of 32 rows against
// tiles of 32 columns that go by: rows are queries and columns keys, or the other way round for the gradients
// of keys and values. A warp has 4 rows, a lane one column while scores are made, and one in 32 of a head's
// elements while results are added up. Heads go through shared memory in chunks of 64 elements, so their
// width is not limited; a block gives at most 256 elements of a result, and wider heads take more blocks.
#pragma once

#include "ops/cuda/attention_shape.h"
#include "ops/cuda/launch.h"

namespace oneflow_like::cuda {

using FloatRows = HeadRows<float>;

constexpr int kTile = 32;
constexpr int kWarps = 8;
constexpr int kRowsOfWarp = kTile / kWarps;
constexpr int kChunk = 64;
constexpr int kPitch = kChunk + 4;  // of a chunk's row: 16-byte accesses of 8 lanes meet all banks
constexpr int kWeightPitch = kTile + 4;
constexpr int kOutput = 256;          // elements of a result row that one block gives
constexpr int kSlots = kOutput / 32;  // of a lane
constexpr int kRoomFloats = 2 * kTile * kPitch;
constexpr int kWeightFloats = kTile * kWeightPitch;

// Four neighbours of which the first `left` exist, the others 0.
OFL_DEVICE float4 LoadFour(const float* at, int left, bool packed) {
  if (packed) return *reinterpret_cast<const float4*>(at);
  return make_float4(at[0], left > 1 ? at[1] : 0.0f, left > 2 ? at[2] : 0.0f, left > 3 ? at[3] : 0.0f);
}

// to[row][0..63] = elements [from, from + 64) of each row, zero where there is none.
OFL_DEVICE void LoadChunk(const FloatRows& rows, int from, float* to) {
  for (int i = threadIdx.x; i < kTile * (kChunk / 4); i += blockDim.x) {
    int row = i / (kChunk / 4), column = i % (kChunk / 4) * 4, left = rows.width - from - column;
    float4 x = make_float4(0, 0, 0, 0);
    if (row < rows.count && left > 0)
      x = LoadFour(rows.data + row * rows.pitch + from + column, left, rows.packed);
    *reinterpret_cast<float4*>(to + row * kPitch + column) = x;
  }
}

// score[r] += row (4 warp + r) . column (lane), over the whole width.
OFL_DEVICE void Dots(const FloatRows& rows, const FloatRows& columns, float* room,
                     float (&score)[kRowsOfWarp]) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* left = room + warp * kRowsOfWarp * kPitch;
  const float* right = room + kTile * kPitch + lane * kPitch;
  for (int from = 0; from < rows.width; from += kChunk) {
    __syncthreads();
    LoadChunk(rows, from, room);
    LoadChunk(columns, from, room + kTile * kPitch);
    __syncthreads();
    for (int d = 0; d < kChunk; d += 4) {
      float4 c = *reinterpret_cast<const float4*>(right + d);
#pragma unroll
      for (int r = 0; r < kRowsOfWarp; ++r) {
        float4 x = *reinterpret_cast<const float4*>(left + r * kPitch + d);
        score[r] += x.x * c.x + x.y * c.y + x.z * c.z + x.w * c.w;
      }
    }
  }
}

// out[r][slot] += sum over columns of weight[4 warp + r][column] * column[from + 32 slot + lane]. Weights are
// a warp's own.
OFL_DEVICE void AddColumns(const float* weights, const FloatRows& columns, int from, float* room,
                           float (&out)[kRowsOfWarp][kSlots]) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* weight = weights + warp * kRowsOfWarp * kWeightPitch;
#pragma unroll
  for (int chunk = 0; chunk < kOutput / kChunk; ++chunk) {
    if (from + chunk * kChunk >= columns.width) break;  // the same for all threads
    __syncthreads();
    LoadChunk(columns, from + chunk * kChunk, room);
    __syncthreads();
    for (int j = 0; j < kTile; ++j) {
      float x = room[j * kPitch + lane], y = room[j * kPitch + 32 + lane];
#pragma unroll
      for (int r = 0; r < kRowsOfWarp; ++r) {
        float w = weight[r * kWeightPitch + j];
        out[r][2 * chunk] += w * x;
        out[r][2 * chunk + 1] += w * y;
      }
    }
  }
}

// Elements [from, from + 256) of one row, each times `factor`.
OFL_DEVICE void StoreRow(const float (&out)[kSlots], float factor, int from, int width, float* to) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    int d = from + slot * 32 + lane;
    if (d < width) to[d] = out[slot] * factor;
  }
}

}  // namespace oneflow_like::cuda
