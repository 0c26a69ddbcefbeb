// The scratch of attention and its gradient in 16 bits on a GPU.
//
// By a library (ops/cuda/flash.h): what documents and positions hide is written out as a mask. The gradient's
// deterministic kernels keep the gradient of every score, in 16 bits; where heads share keys also the
// gradients of keys and values of every head, before they are added up.
//
// By our own kernels, for what the library does not take: a number for each query of each head, a few for
// each 32 positions, and with dropout a bit for each score of some heads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/device/kernel.h"

namespace oneflow_like {

// The work space of a stream, for all its kernels in turn.
inline constexpr int64_t kStreamWorkspaceBytes = int64_t{128} << 20;
// The most scratch of one launch. If a gradient needs more, each launch computes some of the sequences, or
// some of the heads of one.
inline constexpr int64_t kMostLibraryAttentionBytes = int64_t{2} << 30;

// How `whole` of which `most` fit at once are cut: as few parts as possible, of equal size but for the last.
// 7 of which 3 fit: 3, 3, 1; 6 of which 4 fit: 3, 3.
inline int64_t EqualParts(int64_t whole, int64_t most) {
  const int64_t count = (whole + most - 1) / most;
  return (whole + count - 1) / count;
}

// Bytes for some sequences and heads in one launch: at least what cuDNN 9.8 to 9.28 ask for, at most a
// hundredth and a megabyte more (tests/cudnn).
inline int64_t LibraryAttentionGradBytes(int64_t batch, int64_t heads, int64_t key_heads, int64_t queries,
                                         int64_t keys, int64_t width) {
  constexpr int64_t kTile = 64, kRounding = 1 << 20;
  const auto tiles = [](int64_t n) { return (n + kTile - 1) / kTile * kTile; };
  int64_t bytes_of_head = tiles(queries) * tiles(keys) * 2 + queries * 4;
  if (heads != key_heads) bytes_of_head += 2 * keys * width * 2;
  return batch * heads * bytes_of_head + kRounding;
}

// What the plan gives to all launches of a gradient: for as much at once as kMostLibraryAttentionBytes
// allow. 0 if a group of heads that share keys needs more.
inline int64_t LibraryAttentionGradScratch(int64_t batch, int64_t heads, int64_t key_heads, int64_t queries,
                                           int64_t keys, int64_t width) {
  if (batch == 0 || key_heads == 0) return 0;
  const auto bytes = [&](int64_t sequences, int64_t shared) {
    return LibraryAttentionGradBytes(sequences, shared * (heads / key_heads), shared, queries, keys, width);
  };
  const auto most = [&](int64_t whole, auto&& of) {
    int64_t fit = whole;
    while (fit > 0 && of(fit) > kMostLibraryAttentionBytes) fit = EqualParts(whole, fit) - 1;
    return fit == 0 ? 0 : of(EqualParts(whole, fit));
  };
  const int64_t by_sequence = most(batch, [&](int64_t n) { return bytes(n, key_heads); });
  return by_sequence > 0 ? by_sequence : most(key_heads, [&](int64_t n) { return bytes(1, n); });
}

// What is known of so many queries or keys at a time: one PlaceRange, and for each pair of them a byte that
// says whether a bias leaves any score above minus infinity.
inline constexpr int kRangedRows = 32;
struct PlaceRange {
  int64_t low, high;  // positions
  int64_t low_document, high_document;
};

// What our own kernels need for a piece: with dropout a bit for each score of all heads, or of as many groups
// of heads that share keys as fit the work space of the stream, of one at least.
inline int64_t TensorAttentionBytes(bool gradient, bool bias, bool dropout, int64_t batch, int64_t heads,
                                    int64_t key_heads, int64_t queries, int64_t keys) {
  const auto ranges = [](int64_t rows) { return (rows + kRangedRows - 1) / kRangedRows; };
  const int64_t of_ranges = batch * (ranges(queries) + ranges(keys)) * int64_t{sizeof(PlaceRange)};
  const int64_t of_queries = gradient ? (batch * heads * queries + 1) / 2 * 8 : 0;  // floats
  const int64_t of_bias = bias ? (batch * heads * ranges(queries) * ranges(keys) + 7) / 8 * 8 : 0;
  const int64_t bytes = of_ranges + of_queries + of_bias;
  if (!dropout || key_heads == 0) return bytes;
  const int64_t of_group = heads / key_heads * ((queries + 63) / 64) * ((keys + 63) / 64) * (64 * 64 / 8);
  return bytes + std::min(batch * key_heads * of_group, std::max(of_group, kStreamWorkspaceBytes - bytes));
}

// The widest heads that any of these libraries takes.
inline constexpr int64_t kMostLibraryAttentionWidth = 256;

struct CudaAttentionScratch {
  int64_t mask = 0;     // at its beginning; 0: none
  int64_t work = 0;     // behind that; 0: the work space of the stream is enough
  std::string refused;  // why the library does not take the operands; empty: it does
  int64_t bytes() const { return mask + work; }
};
// Of attention or attention_grad on a CUDA device.
CudaAttentionScratch CudaAttentionScratchOf(const KernelSpec& spec, bool gradient);

}  // namespace oneflow_like
