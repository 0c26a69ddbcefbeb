// Counts what a program allocates, in any of its threads: this header defines the C library's functions for
// it, on which C++'s own rest, and so do libraries'. For one file of a program. Memory that is mapped counts
// not, as the code which oneDNN makes.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "tests/sanitized.h"

namespace oneflow_like {

struct Allocations {
  static inline std::atomic<bool> counts{false};
  static inline std::atomic<int64_t> bytes{0},
      most{0};  // allocated and not freed since Begin, and the most there was

  static void Begin() {
    bytes = most = 0;
    counts = true;
  }
  static void End() { counts = false; }

  static void* Taken(void* block) {
    if (block == nullptr || !counts.load(std::memory_order_relaxed)) return block;
    const int64_t now = bytes += static_cast<int64_t>(malloc_usable_size(block));
    for (int64_t seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    return block;
  }
  static void Freed(void* block) {
    if (block != nullptr && counts.load(std::memory_order_relaxed))
      bytes -= static_cast<int64_t>(malloc_usable_size(block));
  }
};

constexpr bool kCountsAllocations = !kSanitized;  // sanitizers have functions of their own

}  // namespace oneflow_like

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t number, size_t bytes);
void* __libc_realloc(void* block, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* block);

void* malloc(size_t bytes) noexcept { return oneflow_like::Allocations::Taken(__libc_malloc(bytes)); }
void* calloc(size_t number, size_t bytes) noexcept {
  return oneflow_like::Allocations::Taken(__libc_calloc(number, bytes));
}
void* realloc(void* block, size_t bytes) noexcept {
  oneflow_like::Allocations::Freed(block);
  return oneflow_like::Allocations::Taken(__libc_realloc(block, bytes));
}
void* memalign(size_t alignment, size_t bytes) noexcept {
  return oneflow_like::Allocations::Taken(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept { return memalign(alignment, bytes); }
int posix_memalign(void** block, size_t alignment, size_t bytes) noexcept {
  *block = memalign(alignment, bytes);
  return *block == nullptr ? ENOMEM : 0;
}
void free(void* block) noexcept {
  oneflow_like::Allocations::Freed(block);
  __libc_free(block);
}
}
#endif
