// Counter-based random numbers: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC'11). A draw is a pure function of (seed, key, step, index), so every mesh draws the same number for the
// same element of a tensor. Usable from host and device code.
#pragma once

#include <cstdint>
#include <string>

#include "core/host_device.h"

namespace oneflow_like {

struct Philox4 {
  uint32_t v[4];
};

OFL_HOST_DEVICE Philox4 Philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_lo), c1 = static_cast<uint32_t>(counter_lo >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_hi), c3 = static_cast<uint32_t>(counter_hi >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The Philox key of one random operator: the job's seed mixed with the operator's own key (HashName of its
// path).
OFL_HOST_DEVICE uint64_t RandomKey(uint64_t seed, uint64_t op_key) {
  uint64_t x = seed * 0x9E3779B97F4A7C15ull ^ op_key;
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Element `index` (global, row-major) of step `step`: four elements share one Philox block.
OFL_HOST_DEVICE uint32_t RandomBits(uint64_t key, uint64_t step, uint64_t index) {
  return Philox(key, index >> 2, step).v[index & 3];
}

// The 16 bits that dropout draws for element `index`. Eight elements share one Philox block.
OFL_HOST_DEVICE uint32_t DropBits(uint64_t key, uint64_t step, uint64_t index) {
  return Philox(key, index >> 3, step).v[index >> 1 & 3] >> (index & 1) * 16 & 0xFFFF;
}

// Dropout by DropBits: p is rounded to a multiple of 2^-16, and what is kept is divided by its real share, so
// that expectations are exact.
struct DropRule {
  uint32_t least;  // an element is kept if its bits are at least this; below 2^16
  double scale;    // of what is kept
};
// REQUIRES: 0 <= p < 1.
DropRule DropRuleOf(double p);

// Uniform in [0, 1), 24 bits.
OFL_HOST_DEVICE float ToUniform(uint32_t bits) {
  return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f);
}

// FNV-1a; stable across machines and builds.
uint64_t HashName(const std::string& name);

}  // namespace oneflow_like
