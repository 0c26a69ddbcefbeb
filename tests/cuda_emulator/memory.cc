// Memory of emulated devices. Every block begins as 0xFF (a NaN, an index far out of range), has guarded
// bytes around it and a closed page behind; with protection keys only threads of streams can touch it, those
// of other devices after cudaDeviceEnablePeerAccess. Freed blocks are closed. Small ones are kept and used
// again instead, since tests of kernels make one for each operand, and system calls would cost more than the
// kernels: they are 0xFF meanwhile, and what is written there is told.
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
constexpr size_t kSmall = 16 * kPage, kMostKept = 256;  // of one device and size
constexpr char kGuard = '\xA7';
constexpr int kMostKeys = 8;  // devices that have one of their own

struct Blocks {
  std::mutex mutex;
  std::map<uintptr_t, BlockOfMemory> by_address;
  std::map<std::pair<int, size_t>, std::vector<BlockOfMemory>>
      freed;  // by device and pages, to be used again
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

// With AddressSanitizer reads beside a block, or of one that was freed, are told, too, which no guard can
// see.
enum class Fence { kOpen, kAround, kClosed };
void Set(Fence fence, const BlockOfMemory& block) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(block.mapping, block.mapped);
  if (fence == Fence::kOpen) return;
  char* end = block.mapping + block.mapped;
  char *data = fence == Fence::kClosed ? end : block.data, *behind = data + (data == end ? 0 : block.bytes);
  ASAN_POISON_MEMORY_REGION(block.mapping, data - block.mapping);
  ASAN_POISON_MEMORY_REGION(behind, end - behind);
#else
  (void)fence, (void)block;
#endif
}

// Bytes of the pages that hold a block, between a page of guards and a closed one.
size_t PagesFor(size_t bytes) { return std::max<size_t>(1, (bytes + kPage - 1) / kPage) * kPage; }
size_t PagesOf(const BlockOfMemory& block) { return block.mapped - 2 * kPage; }

// Without data or guards as yet, but 0xFF.
BlockOfMemory Map(int device, size_t pages) {
  BlockOfMemory block;
  block.device = device;
  block.mapped = pages + 2 * kPage;
  void* mapping =
      mmap(nullptr, block.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return {};
  block.mapping = static_cast<char*>(mapping);
  char* first = block.mapping + kPage;
  std::memset(block.mapping, kGuard, kPage);
  if (pages >= kChunk && PatternFile() >= 0) {
    for (size_t at = 0; at < pages; at += kChunk) {
      size_t part = std::min(kChunk, pages - at);
      if (mmap(first + at, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
               PatternFile(), 0) == MAP_FAILED) {
        munmap(mapping, block.mapped);
        return {};
      }
    }
  } else {
    std::memset(first, 0xFF, pages);
  }
  mprotect(first + pages, kPage, PROT_NONE);
  if (device >= 0) Protect(block.mapping, block.mapped - kPage, device);
  return block;
}

bool AllAre(char value, const char* from, size_t bytes) {
  return bytes == 0 || (*from == value && std::memcmp(from, from + 1, bytes - 1) == 0);
}

std::string Text(const BlockOfMemory& block) {
  return "a block of " + std::to_string(block.bytes) + " bytes of device " + std::to_string(block.device);
}

// What was written beside the block, which is open.
std::string Damage(const BlockOfMemory& block) {
  char *first = block.mapping, *behind = block.data + block.bytes,
       *end = block.mapping + kPage + PagesOf(block);
  if (AllAre(kGuard, first, block.data - first) && AllAre(kGuard, behind, end - behind)) return "";
  const char* at = block.data;
  while (at > first && at[-1] == kGuard) --at;
  if (at > first)
    return "byte " + std::to_string(block.data - at + 1) + " before " + Text(block) + " was written";
  at = std::find_if(behind, end, [](char c) { return c != kGuard; });
  return "byte " + std::to_string(at - behind + 1) + " behind " + Text(block) + " was written";
}

// The same of a block that was freed; what was written is 0xFF again.
std::string DamageOfFreed(const BlockOfMemory& block) {
  Set(Fence::kOpen, block);
  char* first = block.mapping + kPage;
  if (AllAre('\xFF', first, PagesOf(block))) return "";
  std::memset(first, 0xFF, PagesOf(block));
  return Text(block) + " was written after it had been freed";
}

// One of these pages that was freed, else a new one; without a mapping: there is no memory.
BlockOfMemory Take(int device, size_t pages) {
  Blocks& all = AllBlocks();
  BlockOfMemory block;
  {
    std::lock_guard lock(all.mutex);
    std::vector<BlockOfMemory>& freed = all.freed[{device, pages}];
    if (freed.empty()) return Map(device, pages);
    block = freed.back();
    freed.pop_back();
  }
  std::string damage = DamageOfFreed(block);
  if (!damage.empty()) TellFault(damage);
  return block;
}

// To the system, or for Take. Returns what was written beside the block.
std::string GiveBack(const BlockOfMemory& block) {
  Blocks& all = AllBlocks();
  Set(Fence::kOpen, block);
  std::string damage = Damage(block);
  const size_t pages = PagesOf(block);
  if (pages <= kSmall) {
    if (!damage.empty()) std::memset(block.mapping, kGuard, kPage);
    std::memset(block.mapping + kPage, 0xFF, pages);
    std::lock_guard lock(all.mutex);
    std::vector<BlockOfMemory>& freed = all.freed[{block.device, pages}];
    if (freed.size() < kMostKept) {
      freed.push_back(block);
      Set(Fence::kClosed, block);
      return damage;
    }
  }
  munmap(block.mapping, block.mapped);
  return damage;
}

// As far to the end of its pages as its alignment lets it be.
void* MakeBlock(int device, size_t bytes) {
  const unsigned before = OpenAllDevices();
  BlockOfMemory block = Take(device, PagesFor(bytes));
  if (block.mapping != nullptr) {
    char *first = block.mapping + kPage, *end = first + PagesOf(block);
    block.bytes = bytes;
    block.data = end - (bytes + kAlign - 1) / kAlign * kAlign;
    std::fill(first, block.data, kGuard);
    std::fill(block.data + bytes, end, kGuard);
    Set(Fence::kAround, block);
    Blocks& all = AllBlocks();
    std::lock_guard lock(all.mutex);
    all.by_address[reinterpret_cast<uintptr_t>(block.data)] = block;
  }
  OpenDevices(before);
  return block.data;
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

void* AllocateDevice(int device, size_t bytes) { return MakeBlock(device, bytes); }
void* AllocatePinned(size_t bytes) { return MakeBlock(-1, bytes); }

BlockOfMemory FindMemory(const void* data) {
  Blocks& all = AllBlocks();
  std::lock_guard lock(all.mutex);
  auto it = all.by_address.upper_bound(reinterpret_cast<uintptr_t>(data));
  if (it == all.by_address.begin()) return {};
  const BlockOfMemory& block = (--it)->second;
  bool inside = static_cast<const char*>(data) < block.data + std::max<size_t>(1, block.bytes);
  return inside ? block : BlockOfMemory{};
}

bool RegisterMemory(void* data, size_t bytes) {
  if (FindMemory(data).data != nullptr || FindMemory(static_cast<char*>(data) + bytes - 1).data != nullptr)
    return false;
  BlockOfMemory block;
  block.data = static_cast<char*>(data);
  block.bytes = bytes;
  Blocks& all = AllBlocks();
  std::lock_guard lock(all.mutex);
  all.by_address[reinterpret_cast<uintptr_t>(data)] = block;
  return true;
}

bool UnregisterMemory(void* data) {
  Blocks& all = AllBlocks();
  std::lock_guard lock(all.mutex);
  auto it = all.by_address.find(reinterpret_cast<uintptr_t>(data));
  if (it == all.by_address.end() || it->second.mapping != nullptr) return false;
  all.by_address.erase(it);
  return true;
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
  const std::string damage = GiveBack(block);
  OpenDevices(before);
  if (!damage.empty()) TellFault(damage + ", which was seen when it was freed");
}

void CheckGuards() {
  Blocks& all = AllBlocks();
  std::vector<std::string> found;
  {
    std::lock_guard lock(all.mutex);
    unsigned before = OpenAllDevices();
    for (const auto& [address, block] : all.by_address) {
      if (block.mapping == nullptr) continue;
      Set(Fence::kOpen, block);
      found.push_back(Damage(block));
      Set(Fence::kAround, block);
    }
    for (const auto& [size, freed] : all.freed) {
      for (const BlockOfMemory& block : freed) {
        found.push_back(DamageOfFreed(block));
        Set(Fence::kClosed, block);
      }
    }
    OpenDevices(before);
  }
  for (const std::string& damage : found) {
    if (!damage.empty()) TellFault(damage);
  }
}

void FreeAllMemory() {
  Blocks& all = AllBlocks();
  std::map<uintptr_t, BlockOfMemory> blocks;
  {
    std::lock_guard lock(all.mutex);
    blocks.swap(all.by_address);
  }
  unsigned before = OpenAllDevices();
  for (const auto& [address, block] : blocks)
    if (block.mapping != nullptr) GiveBack(block);
  OpenDevices(before);
}

}  // namespace cuda_emulator
