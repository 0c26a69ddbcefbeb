// Sorting on the host: elements become unsigned keys of the same order, and a key with the place it came from
// one number (an entry). Entries differ, so any sort of them is stable.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/cpu/kernels.h"

namespace oneflow_like::cpu {

// Keys of 8 bytes for i64, of 4 for all other types.
template <typename T>
using KeyOf = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
template <typename Key>
struct EntryType {
  using type = uint64_t;
};
template <>
struct EntryType<uint64_t> {
  using type = unsigned __int128;
};
template <typename Key>
using EntryOf = typename EntryType<Key>::type;

template <typename Key>
constexpr int kPlaceBits = 8 * sizeof(Key);  // of an entry

// Rising with the value; -0 is 0, and a NaN greater than all.
template <typename T>
KeyOf<T> KeyFor(T value) {
  if constexpr (std::is_same_v<T, int64_t>) {
    return static_cast<uint64_t>(value) ^ (uint64_t{1} << 63);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<uint32_t>(static_cast<int32_t>(value)) ^ 0x80000000u;
  } else {
    float number = AsFloat(value);
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    uint32_t key = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
    key = bits == 0x80000000u ? 0x80000000u : key;
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0xFFFFFFFFu : key;
  }
}

// Sorts n entries by their keys, which stand in their upper halves; their places rise already. `room` has
// space for n more. Short lists by comparison, long ones by counting digits of 11 bits; a digit that all have
// costs one look.
template <typename Key>
void SortEntries(EntryOf<Key>* entries, EntryOf<Key>* room, int64_t n) {
  if (n < 2048) return std::sort(entries, entries + n);
  constexpr int kBits = 11, kDigits = 1 << kBits;
  EntryOf<Key>*from = entries, *to = room;
  for (int shift = kPlaceBits<Key>; shift < 2 * kPlaceBits<Key>; shift += kBits) {
    int64_t next[kDigits] = {};
    auto digit = [shift](EntryOf<Key> e) { return static_cast<int>(e >> shift) & (kDigits - 1); };
    for (int64_t i = 0; i < n; ++i) ++next[digit(from[i])];
    if (next[digit(from[0])] == n) continue;
    int64_t sum = 0;
    for (int64_t& count : next) {
      int64_t own = count;
      count = sum;
      sum += own;
    }
    for (int64_t i = 0; i < n; ++i) to[next[digit(from[i])]++] = from[i];
    std::swap(from, to);
  }
  if (from != entries) std::copy(from, from + n, entries);
}

}  // namespace oneflow_like::cpu
