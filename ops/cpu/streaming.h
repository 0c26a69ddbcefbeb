// Stores past the caches, for results that no cache would hold until they are read: a line that is written
// whole need not be fetched first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "core/device/kernel.h"
#include "ops/cpu/vectors.h"

namespace oneflow_like::cpu {

// Bytes of a kernel's operands and results from which it stores past the caches. More than the third-level
// cache that a core shares on most processors; what the system reports is that of a whole package on some.
// A small result is worth its place even there.
constexpr int64_t kStreamFrom = int64_t{32} << 20, kLeastStreamed = int64_t{8} << 20;

// Whether `out`, which is written once from beginning to end, should go past the caches. An operand at the
// same place is in them already.
inline bool Streams(const TensorArg& out, std::span<const TensorArg> in) {
  auto bytes = [](const TensorArg& arg) { return arg.elements() * static_cast<int64_t>(SizeOf(arg.dtype)); };
  int64_t all = bytes(out);
  if (all < kLeastStreamed) return false;
  for (const TensorArg& from : in) {
    if (from.data == out.data) return false;
    all += bytes(from);
  }
  return all >= kStreamFrom;
}

// Before others are told of what was streamed.
inline void EndStream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

inline void StreamCopy(void* to, const void* from, int64_t bytes) {
  char* target = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  int64_t at = 0;
#if defined(__SSE2__)
  at = std::min<int64_t>(bytes, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) % 64));
  std::memcpy(target, source, at);
  for (; at + 64 <= bytes; at += 64) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at), _mm512_loadu_si512(source + at));
#else
    for (int part = 0; part < 64; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + at + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + at + part)));
#endif
  }
#endif
  std::memcpy(target + at, source + at, bytes - at);
}

// A row of what f(c, lanes, &vector) makes of each vector's columns; EndStream must follow if `stream`.
template <typename T, typename F>
void WriteRow(T* to, int64_t width, bool stream, F&& f) {
  auto write = [&f](int64_t c, auto lanes, T* at) {
    Vector value;
    f(c, lanes, &value);
    StoreVector(value, lanes, at);
  };
  if (!stream) return ForVectors(width, [&](int64_t c, auto lanes) { write(c, lanes, to + c); });
  constexpr int64_t kPart = 512;
  alignas(64) T part[kPart];
  for (int64_t first = 0; first < width; first += kPart) {
    const int64_t n = std::min(kPart, width - first);
    ForVectors(n, [&](int64_t c, auto lanes) { write(first + c, lanes, part + c); });
    StreamCopy(to + first, part, n * static_cast<int64_t>(sizeof(T)));
  }
}

}  // namespace oneflow_like::cpu
