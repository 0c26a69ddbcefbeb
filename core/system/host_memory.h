// The memory that the host has left, for code that allocates it: the system grants more than it has and kills
// the process when pages run out, so allocations are compared with the limits here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/error.h"
#include "core/system/memory_limits.h"

namespace oneflow_like {

// Blocks of at least this size are compared with the free memory before they are allocated, and mapped
// separately.
inline constexpr size_t kComparedFrom = size_t{1} << 20;

// What is left of a limit when `held` bytes in blocks of all processes that share it count, touched or not.
int64_t LeftOf(const MemoryLimit& limit, int64_t held);

class ShortOfMemory : public Error {
 public:
  using Error::Error;
};

// Throws ShortOfMemory: "device cpu:0 has no memory for the arena: 8 bytes are needed, 4 bytes are free of
// the 16 that ulimit -v allows", of the tightest limit; the first only how many are free.
[[noreturn]] void FailShortOfMemory(const std::string& owner, const std::string& what, size_t bytes,
                                    int64_t free);
[[noreturn]] void FailShortOfHostMemory(const std::string& owner, const std::string& what, size_t bytes);
// Throws that Error when `bytes` exceed what the tightest limit leaves beside the blocks that host devices of
// this process hold. Small blocks are not compared.
void CheckHostHas(size_t bytes, const std::string& owner, const std::string& what);
// The same for what takes addresses but little memory (threads' stacks, code that libraries make), and cannot
// fail in an orderly way: only limits on the process's own addresses count (ulimit -v, -d).
void CheckAddressesFor(size_t bytes, const std::string& what);
// What to say where the system has refused memory: "this process has no memory left: 8 bytes are free of the
// 16 that ulimit -v allows", of the tightest limit.
std::string OutOfMemoryText();

}  // namespace oneflow_like
