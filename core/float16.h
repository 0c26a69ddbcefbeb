// The 16-bit floating types as raw bits, converted to and from fp32 with rounding to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace oneflow_like {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline float ToFloat(BFloat16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

inline BFloat16 ToBFloat16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16;
  // Rounding could carry a NaN's payload into infinity, so a NaN keeps its top bits and becomes quiet.
  bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return {static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded)};
}

inline float ToFloat(Float16 value) {
  uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  uint32_t magnitude = value.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  if (magnitude < 0x400u) {  // zero or subnormal: a multiple of 2^-24
    float small = static_cast<float>(magnitude) * (1.0f / 16777216.0f);
    return std::bit_cast<float>(std::bit_cast<uint32_t>(small) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (uint32_t{127 - 15} << 23)));
}

inline Float16 ToFloat16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<uint16_t>(sign | 0x7E00u)};
  if (magnitude >= 0x47800000u) return {static_cast<uint16_t>(sign | 0x7C00u)};  // 65536 and above
  uint32_t half;
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is a multiple of 2^-24: adding 0.5 leaves that multiple, rounded, in the last
    // bits.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  } else {
    half = (magnitude - (uint32_t{127 - 15} << 23) + 0xFFFu + ((magnitude >> 13) & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

}  // namespace oneflow_like
