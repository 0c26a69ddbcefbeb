// FNV-1a over the bytes of a name, and the rounding of dropout's probabilities.
#include "core/random.h"

#include <algorithm>
#include <cmath>

namespace oneflow_like {

DropRule DropRuleOf(double p) {
  constexpr double kDraws = 65536;
  const double least = std::min(std::round(p * kDraws), kDraws - 1);  // something is kept of any p below 1
  return {static_cast<uint32_t>(least), kDraws / (kDraws - least)};
}

uint64_t HashName(const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (unsigned char c : name) {
    hash ^= c;
    hash *= 0x100000001B3ull;
  }
  return hash;
}

}  // namespace oneflow_like
