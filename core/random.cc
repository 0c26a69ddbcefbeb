// FNV-1a over the bytes of a name.
#include "core/random.h"

namespace oneflow_like {

uint64_t HashName(const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (unsigned char c : name) {
    hash ^= c;
    hash *= 0x100000001B3ull;
  }
  return hash;
}

}  // namespace oneflow_like
