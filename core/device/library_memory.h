// The memory that the code of CUDA's libraries takes on a card, in each process that uses them. It is unknown
// before the first run on that card, so each run keeps what it measured for the memory tables of later runs.
#pragma once

#include <cstdint>
#include <string>

namespace oneflow_like {

// Where no run is known: an H100 with CUDA 13.0 and cuDNN 9.19 held 347 MiB after steps of GPT-2 124M in a
// fresh process, 64 MiB of which a table allows for recordings (kCudaBytesOfOthers).
constexpr int64_t kCudaBytesOfLibraries = int64_t{320} << 20;

// The bytes that tables allow each process on each of its cards: the most that any run kept in the user's
// folder of caches (core/system/cache_folder.h) took, else kCudaBytesOfLibraries. It is read once in a
// process.
struct LibraryMemory {
  int64_t bytes = kCudaBytesOfLibraries;
  bool measured = false;
};
LibraryMemory LibraryMemoryHere();

// Keeps what libraries took on a card of this description in bytes, with an eighth to spare and in whole MiB,
// if no run there took more. Returns whether that is new. A folder that cannot be written to keeps nothing.
bool KeepLibraryMemory(const std::string& card, int64_t bytes);

}  // namespace oneflow_like
