// A stack of its own for each thread of a block, and the switch from one to another.
#pragma once

#include <cstddef>

namespace cuda_emulator {

constexpr size_t kStackBytes = size_t{128} << 10;

// In a build with ThreadSanitizer every thread of a block is a thread to it: what no barrier orders is a data
// race. grid.cc and fibers.cc themselves are built without it (CMakeLists.txt).
#if defined(OFL_EMULATED_RACES)
constexpr bool kRacesTold = true;
#else
constexpr bool kRacesTold = false;
#endif
// For ThreadSanitizer: what was done before OrderBefore(at) comes before what follows OrderAfter(at).
// Switching from fiber to fiber orders nothing.
void OrderBefore(void* at);
void OrderAfter(void* at);

// Where a suspended fiber goes on. A thread of the host is one too while it is away.
struct Context {
  void* stack_pointer = nullptr;
  void* stack = nullptr;  // lowest address; nullptr: the host's
  void* tool = nullptr;   // what a sanitizer keeps
};

// Makes a context that will call `entry` on a new stack (or its old one) when switched to. `entry` never
// returns.
void Prepare(Context* context, void (*entry)());
void Release(Context* context);
// Goes on with `to`; returns when something switches to `from` again.
void Switch(Context* from, Context* to);
// To be called first by `entry`.
void Entered();

}  // namespace cuda_emulator
