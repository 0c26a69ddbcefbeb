// Memory of emulated devices. Every block begins as 0xFF (a NaN, an index far out of range), has guarded
// bytes around it and a closed page behind; with protection keys only threads of streams can touch it, those
// of other devices after cudaDeviceEnablePeerAccess.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "tests/cuda_emulator/state.h"

namespace cuda_emulator {
namespace {

constexpr size_t kPage = 4096, kAlign = 256, kChunk = size_t{4} << 20;
constexpr char kGuard = '\xA7';
constexpr int kMostKeys = 8;  // devices that have one of their own

struct Blocks {
  std::mutex mutex;
  std::map<uintptr_t, BlockOfMemory> by_address;
};
Blocks& AllBlocks() {
  static auto* blocks = new Blocks;
  return *blocks;
}

// What the calling thread may touch now; the memory of streams is opened by OpenDevices.
thread_local unsigned open_devices = 0;

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void OnFault(int signal, siginfo_t* info, void*) {
  const char* text =
      info->si_code == SEGV_PKUERR
          ? "CUDA emulator: a thread of the host, or a kernel of a device without peer access, "
            "touched memory of a device\n"
          : "CUDA emulator: an address that is no memory was touched: beyond a block of a device's "
            "memory, or freed\n";
  if (write(2, text, std::strlen(text)) < 0) _exit(3);
  struct sigaction plain = {};
  plain.sa_handler = SIG_DFL;
  sigaction(signal, &plain, nullptr);
}

// A key for each device; -1: the processor or the kernel has none.
int KeyOf(int device) {
  static const std::vector<int>* const keys = [] {
    auto* all = new std::vector<int>;
    for (int i = 0; i < kMostKeys; ++i) {
      int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
      if (key < 0) break;
      all->push_back(key);
    }
    if (!all->empty()) {
      struct sigaction action = {};
      action.sa_sigaction = OnFault;
      action.sa_flags = SA_SIGINFO;
      sigaction(SIGSEGV, &action, nullptr);
    }
    return all;
  }();
  return keys->empty() ? -1 : (*keys)[device % keys->size()];
}
void Protect(void* data, size_t bytes, int device) {
  if (KeyOf(device) >= 0) pkey_mprotect(data, bytes, PROT_READ | PROT_WRITE, KeyOf(device));
}
#else
int KeyOf(int) { return -1; }
void Protect(void*, size_t, int) {}
#endif

// A file of 0xFF in memory: large blocks are made of it, and take memory only where they are written.
int PatternFile() {
  static const int file = [] {
    int made = memfd_create("ofl_unwritten", MFD_CLOEXEC);
    std::string bytes(1 << 16, '\xFF');
    for (size_t at = 0; made >= 0 && at < kChunk; at += bytes.size()) {
      if (write(made, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) return -1;
    }
    return made;
  }();
  return file;
}

// With AddressSanitizer reads beside a block are told, too, which no guard can see.
void Fence(const BlockOfMemory& block, bool closed) {
#if defined(__SANITIZE_ADDRESS__)
  char *behind = block.data + block.bytes, *end = block.mapping + block.mapped;
  if (closed) {
    ASAN_POISON_MEMORY_REGION(block.mapping, block.data - block.mapping);
    ASAN_POISON_MEMORY_REGION(behind, end - behind);
  } else {
    ASAN_UNPOISON_MEMORY_REGION(block.mapping, block.mapped);
  }
#else
  (void)block, (void)closed;
#endif
}

BlockOfMemory Map(size_t bytes) {
  BlockOfMemory block;
  block.bytes = bytes;
  size_t used = std::max<size_t>(1, (bytes + kPage - 1) / kPage) * kPage;
  block.mapped = used + 2 * kPage;  // a page of guards before, a closed one behind
  void* mapping =
      mmap(nullptr, block.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return {};
  block.mapping = static_cast<char*>(mapping);
  char* first = block.mapping + kPage;
  // As far to the end of the page as its alignment lets it be.
  block.data = first + (used - (bytes + kAlign - 1) / kAlign * kAlign);
  mprotect(first + used, kPage, PROT_NONE);
  std::memset(block.mapping, kGuard, kPage);
  if (used >= kChunk && PatternFile() >= 0) {
    for (size_t at = 0; at < used; at += kChunk) {
      size_t part = std::min(kChunk, used - at);
      if (mmap(first + at, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
               PatternFile(), 0) == MAP_FAILED) {
        munmap(mapping, block.mapped);
        return {};
      }
    }
  } else {
    std::memset(block.data, 0xFF, bytes);
  }
  std::fill(first, block.data, kGuard);
  std::fill(block.data + bytes, first + used, kGuard);
  return block;
}

void* Keep(const BlockOfMemory& block) {
  if (block.data == nullptr) return nullptr;
  Blocks& all = AllBlocks();
  std::lock_guard lock(all.mutex);
  all.by_address[reinterpret_cast<uintptr_t>(block.data)] = block;
  Fence(block, true);
  return block.data;
}

std::string Damage(const BlockOfMemory& block) {
  char* first = block.mapping + kPage;
  char* end = block.mapping + block.mapped - kPage;
  for (char* p = first - kAlign; p < end; ++p) {
    if (p == block.data && block.bytes > 0) p += block.bytes;
    if (p >= end) break;
    if (*p == kGuard) continue;
    auto offset = p < block.data ? block.data - p : p - (block.data + block.bytes) + 1;
    return "byte " + std::to_string(offset) + (p < block.data ? " before" : " behind") + " a block of " +
           std::to_string(block.bytes) + " bytes of device " + std::to_string(block.device) + " was written";
  }
  return "";
}

}  // namespace

bool HostIsKeptOut() { return KeyOf(0) >= 0; }

void OpenDevices(unsigned devices) {
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  if (KeyOf(0) < 0 || open_devices == devices) return;
  for (int i = 0; i < kMostKeys; ++i) {
    if (((open_devices ^ devices) >> i & 1) != 0)
      pkey_set(KeyOf(i), (devices >> i & 1) != 0 ? 0 : PKEY_DISABLE_ACCESS);
  }
#endif
  open_devices = devices;
}

unsigned OpenAllDevices() {
  unsigned before = open_devices;
  OpenDevices((1u << kMostKeys) - 1);
  return before;
}

void* AllocateDevice(int device, size_t bytes) {
  BlockOfMemory block = Map(bytes);
  block.device = device;
  if (block.data != nullptr) Protect(block.mapping, block.mapped - kPage, device);
  return Keep(block);
}

void* AllocatePinned(size_t bytes) { return Keep(Map(bytes)); }

BlockOfMemory FindMemory(const void* data) {
  Blocks& all = AllBlocks();
  std::lock_guard lock(all.mutex);
  auto it = all.by_address.upper_bound(reinterpret_cast<uintptr_t>(data));
  if (it == all.by_address.begin()) return {};
  const BlockOfMemory& block = (--it)->second;
  bool inside = static_cast<const char*>(data) < block.data + std::max<size_t>(1, block.bytes);
  return inside ? block : BlockOfMemory{};
}

void FreeDevice(void* data) {
  Blocks& all = AllBlocks();
  BlockOfMemory block;
  {
    std::lock_guard lock(all.mutex);
    auto it = all.by_address.find(reinterpret_cast<uintptr_t>(data));
    if (it == all.by_address.end()) return;
    block = it->second;
    all.by_address.erase(it);
  }
  unsigned before = OpenAllDevices();
  Fence(block, false);
  std::string damage = Damage(block);
  OpenDevices(before);
  munmap(block.mapping, block.mapped);
  if (!damage.empty()) TellFault(damage + ", which was seen when it was freed");
}

void CheckGuards() {
  Blocks& all = AllBlocks();
  std::vector<std::string> found;
  {
    std::lock_guard lock(all.mutex);
    unsigned before = OpenAllDevices();
    for (const auto& [address, block] : all.by_address) {
      Fence(block, false);
      std::string damage = Damage(block);
      Fence(block, true);
      if (!damage.empty()) found.push_back(damage);
    }
    OpenDevices(before);
  }
  for (const std::string& damage : found) TellFault(damage);
}

void FreeAllMemory() {
  Blocks& all = AllBlocks();
  std::lock_guard lock(all.mutex);
  for (const auto& [address, block] : all.by_address) {
    Fence(block, false);
    munmap(block.mapping, block.mapped);
  }
  all.by_address.clear();
}

}  // namespace cuda_emulator
