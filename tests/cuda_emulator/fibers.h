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
#if defined(OFL_EMULATED_RACES)
void OrderBefore(void* at);
void OrderAfter(void* at);
#else
inline void OrderBefore(void*) {}
inline void OrderAfter(void*) {}
#endif

// Where a suspended fiber goes on. A thread of the host is one too while it is away.
struct Context {
  void* stack_pointer = nullptr;
  void* stack = nullptr;  // lowest address; nullptr: the host's
  void* tool = nullptr;   // what a sanitizer keeps
};

// Makes a context that will call `entry` on a new stack (or its old one) when switched to. `entry` never
// returns. Fibers that take turns have neighbouring numbers: their stacks then lie in different sets of the
// processor's caches.
void Prepare(Context* context, unsigned number, void (*entry)());
void Release(Context* context);
// Goes on with `to`; returns when something switches to `from` again.
#if defined(__SANITIZE_ADDRESS__) || defined(OFL_EMULATED_RACES)
void Switch(Context* from, Context* to);
#else
extern "C" void ofl_emulator_switch(void** from, void* to);
inline void Switch(Context* from, Context* to) {
  ofl_emulator_switch(&from->stack_pointer, to->stack_pointer);
}
#endif
// To be called first by `entry`.
void Entered();

}  // namespace cuda_emulator
