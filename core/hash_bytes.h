// A hash of bytes, for telling equal from different; not for tables, nor against those who wish for equal
// ones.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oneflow_like {

// Data that differs in one place has another hash. `before`: the hash of what came before.
uint64_t HashOfBytes(const void* data, size_t bytes, uint64_t before = 0);

}  // namespace oneflow_like
