// How much memory the host can still give, for those who hand it out: the system grants more than it has and
// ends the process when pages run out, so we compare ourselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/memory_limits.h"

namespace oneflow_like {

// From this size on a block is compared with what is free before it is taken, and mapped by itself.
inline constexpr size_t kComparedFrom = size_t{1} << 20;

// What is left of a limit, where `held` bytes of the blocks of all who share it count, touched or not.
int64_t LeftOf(const MemoryLimit& limit, int64_t held);
// What is left of the tightest limit beside the blocks that host devices of this process hold.
int64_t FreeHostBytes();

// Throws Error: "device cpu:0 has no memory for the arena: 8 bytes are needed, 4 bytes are free".
[[noreturn]] void FailShortOfMemory(const std::string& owner, const std::string& what, size_t bytes,
                                    int64_t free);
// Does so when `bytes` are more than FreeHostBytes(). Small blocks are not compared.
void CheckHostHas(size_t bytes, const std::string& owner, const std::string& what);

}  // namespace oneflow_like
