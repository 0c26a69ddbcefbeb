// Lets code compiled for AMX run on processors without. They answer its instructions with SIGILL; the handler
// reads the instruction, computes it by PlainTiles (ops/cpu/amx_tiles.h) on tiles of the thread, and
// continues behind it. So tests see the very bytes that are shipped: encodings, configurations and strides,
// on any threads. For one file of a program.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "ops/cpu/amx_tiles.h"

#if defined(__x86_64__) && defined(__linux__)
#include <ucontext.h>
#endif

namespace oneflow_like {

// As long as an object of the class lives, at most one. Any other illegal instruction ends the program as
// before.
class TileEmulator {
 public:
  TileEmulator();
  ~TileEmulator();  // restores the handler that there was
  TileEmulator(const TileEmulator&) = delete;
  TileEmulator& operator=(const TileEmulator&) = delete;

  // Whether this machine can emulate: x86-64 Linux.
  static bool Works();
  // Products of tiles so far, of all threads of the process.
  static int64_t products() { return products_; }

 private:
#if defined(__x86_64__) && defined(__linux__)
  struct Instruction;
  struct Memory;
  static int64_t Register(const ucontext_t* context, int number);
  static Memory MemoryOf(const Instruction& i, const ucontext_t* context);
  static const uint8_t* Emulate(const Instruction& i, const ucontext_t* context);
  static void Handle(int, siginfo_t*, void* machine);

  static inline constinit thread_local cpu::PlainTiles tiles_;
  static inline struct sigaction before_;
#endif
  static inline std::atomic<int64_t> products_{0};
};

#if defined(__x86_64__) && defined(__linux__)

inline int64_t TileEmulator::Register(const ucontext_t* context, int number) {
  constexpr int kPlaces[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                               REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return context->uc_mcontext.gregs[kPlaces[number]];
}

// An instruction of three VEX bytes in the map 0F38, from its first byte on.
struct TileEmulator::Instruction {
  const uint8_t* bytes;

  bool HasForm() const {
    return bytes[0] == 0xC4 && (bytes[1] & 0x1F) == 2 && (bytes[2] & 0x84) == 0;  // W and L are 0
  }
  int prefix() const { return bytes[2] & 3; }  // 0: none, 1: 66, 2: F3, 3: F2
  int third() const { return ~(bytes[2] >> 3) & 15; }
  int code() const { return bytes[3]; }
  int mode() const { return bytes[4] >> 6; }
  int reg() const { return (bytes[4] >> 3 & 7) | (bytes[1] & 0x80 ? 0 : 8); }
  int rm() const { return (bytes[4] & 7) | (bytes[1] & 0x20 ? 0 : 8); }
};

// What an instruction names in memory, and where the next one begins.
struct TileEmulator::Memory {
  char* base;
  int64_t step;  // the index register, scaled
  const uint8_t* next;
};

inline TileEmulator::Memory TileEmulator::MemoryOf(const Instruction& i, const ucontext_t* context) {
  const uint8_t* at = i.bytes + 5;
  int base = i.rm();
  int64_t step = 0;
  bool no_base = (i.bytes[4] & 7) == 5 && i.mode() == 0;  // relative to the next instruction
  const bool relative = no_base;
  if ((i.bytes[4] & 7) == 4) {
    const int sib = *at++;
    const int index = (sib >> 3 & 7) | (i.bytes[1] & 0x40 ? 0 : 8);
    base = (sib & 7) | (i.bytes[1] & 0x20 ? 0 : 8);
    if (index != 4) step = Register(context, index) << (sib >> 6);
    no_base = (sib & 7) == 5 && i.mode() == 0;
  }
  int64_t offset = 0;
  if (i.mode() == 1) {
    offset = static_cast<int8_t>(*at++);
  } else if (i.mode() == 2 || no_base) {
    int32_t wide;
    std::memcpy(&wide, at, sizeof wide);
    offset = wide;
    at += sizeof wide;
  }
  if (relative) offset += reinterpret_cast<int64_t>(at);
  if (!no_base) offset += Register(context, base);
  return {reinterpret_cast<char*>(offset), step, at};
}

// The address behind the instruction, or null where it is none of AMX's.
inline const uint8_t* TileEmulator::Emulate(const Instruction& i, const ucontext_t* context) {
  if (!i.HasForm()) return nullptr;
  const bool in_memory = i.mode() != 3;
  if (i.code() == 0x49 && i.prefix() == 0 && in_memory) {  // ldtilecfg
    const Memory memory = MemoryOf(i, context);
    cpu::TileShapes shapes;
    std::memcpy(&shapes, memory.base, sizeof shapes);
    tiles_.Configure(shapes);
    return memory.next;
  }
  if (i.code() == 0x49 && i.prefix() == 0 && i.bytes[4] == 0xC0) {  // tilerelease
    tiles_.Release();
    return i.bytes + 5;
  }
  if (i.code() == 0x49 && i.prefix() == 3 && !in_memory && (i.bytes[4] & 7) == 0) {  // tilezero
    tiles_.ZeroAt(i.reg());
    return i.bytes + 5;
  }
  if (i.code() == 0x4B && i.prefix() >= 1 && in_memory && (i.bytes[4] & 7) == 4) {
    const Memory memory = MemoryOf(i, context);
    if (i.prefix() == 2) {
      tiles_.StoreAt(i.reg(), memory.base, memory.step);  // tilestored
    } else {
      tiles_.LoadAt(i.reg(), memory.base, memory.step);  // tileloadd, tileloaddt1
    }
    return memory.next;
  }
  if (i.code() == 0x5C && i.prefix() == 2 && !in_memory) {  // tdpbf16ps
    tiles_.AddProductAt(i.reg(), i.rm(), i.third());
    products_.fetch_add(1, std::memory_order_relaxed);
    return i.bytes + 5;
  }
  return nullptr;
}

inline void TileEmulator::Handle(int, siginfo_t*, void* machine) {
  ucontext_t* context = static_cast<ucontext_t*>(machine);
  const uint8_t* at = reinterpret_cast<const uint8_t*>(context->uc_mcontext.gregs[REG_RIP]);
  const uint8_t* next = Emulate({at}, context);
  if (next == nullptr) {
    sigaction(SIGILL, &before_, nullptr);  // the instruction is run once more
    return;
  }
  context->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(next);
}

inline TileEmulator::TileEmulator() {
  struct sigaction action = {};
  action.sa_sigaction = Handle;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGILL, &action, &before_);
}
inline TileEmulator::~TileEmulator() { sigaction(SIGILL, &before_, nullptr); }
inline bool TileEmulator::Works() { return true; }

#else

inline TileEmulator::TileEmulator() = default;
inline TileEmulator::~TileEmulator() = default;
inline bool TileEmulator::Works() { return false; }

#endif

}  // namespace oneflow_like
