#include "core/hash_bytes.h"

#include <cstring>

#include "core/formatted.h"

namespace oneflow_like {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;

// Can be undone, so that two words, or what came before them, give two hashes.
uint64_t Mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * kOdd;
  return hash ^ hash >> 32;
}

}  // namespace

// Four lanes, since one multiplication would wait for the one before it.
uint64_t HashOfBytes(const void* data, size_t bytes, uint64_t before) {
  const char* at = static_cast<const char*>(data);
  uint64_t lane[4] = {Mix(before, bytes), 1, 2, 3};
  for (; bytes >= sizeof lane; bytes -= sizeof lane, at += sizeof lane) {
    uint64_t word[4];
    std::memcpy(word, at, sizeof word);
    for (int i = 0; i < 4; ++i) lane[i] = Mix(lane[i], word[i]);
  }
  for (size_t part; bytes > 0; bytes -= part, at += part) {
    part = bytes < 8 ? bytes : 8;
    uint64_t word = 0;
    std::memcpy(&word, at, part);
    lane[0] = Mix(lane[0], word);
  }
  for (int i = 1; i < 4; ++i) lane[0] = Mix(lane[0], lane[i]);
  return lane[0];
}

std::string Hexadecimal(uint64_t number) {
  return Formatted("%016llx", static_cast<unsigned long long>(number));
}

}  // namespace oneflow_like
