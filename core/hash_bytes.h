// A hash for comparing bytes; not for hash tables, and not secure against deliberate collisions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oneflow_like {

// Data that differs in one place has another hash. `before`: the hash of the preceding bytes.
uint64_t HashOfBytes(const void* data, size_t bytes, uint64_t before = 0);

}  // namespace oneflow_like
