#include "ops/cuda/library_use.h"

#include <array>
#include <atomic>

namespace oneflow_like::cuda {
namespace {

std::array<std::atomic<int64_t>, kLibraryUses> uses;

}  // namespace

void Count(LibraryUse what) { uses[static_cast<size_t>(what)].fetch_add(1, std::memory_order_relaxed); }
int64_t Counted(LibraryUse what) { return uses[static_cast<size_t>(what)].load(std::memory_order_relaxed); }

}  // namespace oneflow_like::cuda
