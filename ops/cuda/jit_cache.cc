// Reading and writing the folder of compiled kernels.
#include "ops/cuda/jit_cache.h"

#include <glog/logging.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>

#include "core/error.h"
#include "core/random.h"

namespace oneflow_like::cuda {
namespace {

constexpr char kMagic[] = "oneflow_like kernel 1";

std::string Hex(uint64_t value) {
  std::ostringstream text;
  text << std::hex << std::setfill('0') << std::setw(16) << value;
  return text.str();
}

// What a file opens with. The key itself is in it: two keys of one hash are told apart.
std::string Header(const std::string& key, const std::string& code) {
  return Cat(kMagic, "\n", key.size(), " ", code.size(), " ", Hex(HashName(code)), "\n", key);
}

}  // namespace

std::string JitCache::FileOf(const std::string& key) const {
  return folder_ + "/" + Hex(HashName(key)) + Hex(HashName(key + "2")) + ".kernel";
}

std::optional<std::string> JitCache::Load(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  std::ifstream file(FileOf(key), std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream all;
  all << file.rdbuf();
  std::string text = all.str();
  size_t first = text.find('\n'), second = first == std::string::npos ? first : text.find('\n', first + 1);
  if (second != std::string::npos && text.size() >= second + 1 + key.size()) {
    std::string code = text.substr(second + 1 + key.size());
    if (text.compare(0, second + 1 + key.size(), Header(key, code)) == 0) return code;
  }
  LOG(WARNING) << "the compiled kernel in " << FileOf(key) << " is damaged and is compiled again";
  return std::nullopt;
}

void JitCache::Store(const std::string& key, const std::string& code) const {
  if (folder_.empty()) return;
  static std::atomic<int> number{0};
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  std::string path = FileOf(key), temporary = Cat(path, ".", getpid(), ".", number++);
  bool written = false;
  {
    std::ofstream file(temporary, std::ios::binary);
    file << Header(key, code) << code;
    written = file.flush().good();
  }
  if (written) {
    std::filesystem::rename(temporary, path, error);
    if (!error) return;
  }
  std::filesystem::remove(temporary, error);
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    LOG(WARNING) << "compiled kernels cannot be kept in " << folder_ << ": each run compiles them again";
  }
}

}  // namespace oneflow_like::cuda
