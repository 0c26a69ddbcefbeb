// A hash for comparing bytes; not for hash tables, and not secure against deliberate collisions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace oneflow_like {

// Data that differs in one place has another hash. `before`: the hash of the preceding bytes.
uint64_t HashOfBytes(const void* data, size_t bytes, uint64_t before = 0);

// 16 digits: a hash as text.
std::string Hexadecimal(uint64_t number);

}  // namespace oneflow_like
