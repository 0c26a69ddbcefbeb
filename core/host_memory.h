// How much memory the host can still give, for those who hand it out: the system grants more than it has and
// ends the process when pages run out, so we compare ourselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace oneflow_like {

// From this size on a block is compared with what is free before it is taken, and mapped by itself.
inline constexpr size_t kComparedFrom = size_t{1} << 20;

// What the host has free now, and at most what is left of the machine (or this container) beside the blocks
// that host devices of this process hold, touched or not.
int64_t FreeHostBytes();

// Throws Error: "device cpu:0 has no memory for the arena: 8 bytes are needed, 4 bytes are free".
[[noreturn]] void FailShortOfMemory(const std::string& owner, const std::string& what, size_t bytes,
                                    int64_t free);
// Does so when `bytes` are more than FreeHostBytes(). Small blocks are not compared.
void CheckHostHas(size_t bytes, const std::string& owner, const std::string& what);

}  // namespace oneflow_like
