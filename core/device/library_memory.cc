#include "core/device/library_memory.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "core/error.h"
#include "core/system/cache_folder.h"

namespace oneflow_like {
namespace {

constexpr int64_t kMost = int64_t{4} << 30;  // more is not of libraries, but of another program on the card

std::string FileOfSizes() {
  const std::string folder = CacheFolder();
  return folder.empty() ? "" : folder + "/library_memory";
}

// By card: a line is "BYTES CARD". Others are passed over.
std::map<std::string, int64_t> ReadSizes(const std::string& path) {
  std::map<std::string, int64_t> sizes;
  std::ifstream file(path);
  int64_t bytes = 0;
  for (std::string card; file >> bytes && std::getline(file >> std::ws, card);)
    if (bytes > 0 && bytes <= kMost) sizes[card] = std::max(sizes[card], bytes);
  return sizes;
}

}  // namespace

LibraryMemory LibraryMemoryHere() {
  static std::mutex mutex;
  static std::map<std::string, LibraryMemory> known;  // by file: all tables of a process agree
  std::lock_guard<std::mutex> lock(mutex);
  const std::string path = FileOfSizes();
  const auto [place, fresh] = known.try_emplace(path);
  LibraryMemory& memory = place->second;
  if (!fresh) return memory;
  for (const auto& [card, bytes] : ReadSizes(path))
    memory.bytes = memory.measured ? std::max(memory.bytes, bytes) : bytes, memory.measured = true;
  return memory;
}

bool KeepLibraryMemory(const std::string& card, int64_t bytes) {
  const std::string path = FileOfSizes();
  bytes = (((bytes + bytes / 8) >> 20) + 1) << 20;
  if (path.empty() || bytes > kMost) return false;
  std::map<std::string, int64_t> sizes = ReadSizes(path);
  if (sizes[card] >= bytes) return false;
  sizes[card] = bytes;
  std::error_code error;
  std::filesystem::create_directories(CacheFolder(), error);
  const std::string temporary = Cat(path, ".", getpid());
  {
    std::ofstream file(temporary);
    for (const auto& [name, size] : sizes) file << size << " " << name << "\n";
    if (!file.flush().good()) {
      std::filesystem::remove(temporary, error);
      return false;
    }
  }
  std::filesystem::rename(temporary, path, error);
  return !error;
}

}  // namespace oneflow_like
