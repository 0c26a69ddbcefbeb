// A stack of its own for each thread of a block, and the switch from one to another.
#pragma once

#include <cstddef>

namespace cuda_emulator {

constexpr size_t kStackBytes = size_t{128} << 10;

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
