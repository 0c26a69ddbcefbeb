#include "tests/cuda_emulator/fibers.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(OFL_EMULATED_RACES)
#include <sanitizer/tsan_interface.h>
#endif

// The registers that a function must keep for its caller, and the stack: saved on the old stack, read from
// the new one.
#if defined(__x86_64__)
asm(R"(
.text
.globl ofl_emulator_switch
.hidden ofl_emulator_switch
.type ofl_emulator_switch, @function
ofl_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ofl_emulator_switch, .-ofl_emulator_switch
)");
constexpr int kReturnWord = 6;  // after the six registers
#elif defined(__aarch64__)
asm(R"(
.text
.globl ofl_emulator_switch
.hidden ofl_emulator_switch
.type ofl_emulator_switch, %function
ofl_emulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size ofl_emulator_switch, .-ofl_emulator_switch
)");
constexpr int kReturnWord = 11, kFrameWords = 20;
#else
#error "The emulator of CUDA switches stacks on x86-64 and aarch64 only"
#endif

namespace cuda_emulator {
#if defined(__SANITIZE_ADDRESS__) || defined(OFL_EMULATED_RACES)
extern "C" void ofl_emulator_switch(void** from, void* to);
#endif
namespace {
#if defined(__SANITIZE_ADDRESS__)
// Of the thread's own stack, as the sanitizer tells it when a fiber is entered.
thread_local const void* host_stack;
thread_local size_t host_stack_bytes;
#endif

// Stacks that all begin at the same offset of a page share a few sets of the first cache, which holds twelve
// of a warp's 32. An odd number of lines apart, a warp's use all of them.
constexpr size_t kLine = 64, kLinesApart = 11, kLinesOfPage = 64;
}  // namespace

void Prepare(Context* context, unsigned number, void (*entry)()) {
  if (context->stack == nullptr) {
    // The lowest page stays closed: a stack that is too small ends the program there.
    void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, 4096, PROT_NONE) != 0) {
      std::fprintf(stderr, "CUDA emulator: no memory for the stack of a thread of a block\n");
      std::abort();
    }
    context->stack = memory;
  }
#if defined(__SANITIZE_ADDRESS__)
  // What was given up on it had marked its variables' surroundings.
  __asan_unpoison_memory_region(context->stack, kStackBytes);
#endif
  uintptr_t top = reinterpret_cast<uintptr_t>(context->stack) + kStackBytes - kLine -
                  number * kLinesApart % kLinesOfPage * kLine;
#if defined(__x86_64__)
  top = (top & ~uintptr_t{15}) - 8;  // a function is entered with the stack 8 below a multiple of 16
  void** frame = reinterpret_cast<void**>(top) - (kReturnWord + 1);
#else
  top &= ~uintptr_t{15};
  void** frame = reinterpret_cast<void**>(top) - kFrameWords;
#endif
  for (int i = 0; i <= kReturnWord; ++i) frame[i] = nullptr;
  frame[kReturnWord] = reinterpret_cast<void*>(entry);
  context->stack_pointer = frame;
#if defined(OFL_EMULATED_RACES)
  if (context->tool != nullptr) {
    // What it did, and gave up, comes before what its caller does from here on.
    void* caller = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(context->tool, __tsan_switch_to_fiber_no_sync);
    __tsan_switch_to_fiber(caller, 0);
    __tsan_destroy_fiber(context->tool);
  }
  context->tool = __tsan_create_fiber(0);
#else
  context->tool = nullptr;
#endif
}

void Release(Context* context) {
  if (context->stack == nullptr) return;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(context->stack, kStackBytes);
#endif
  munmap(context->stack, kStackBytes);
#if defined(OFL_EMULATED_RACES)
  __tsan_destroy_fiber(context->tool);
#endif
  *context = {};
}

#if defined(__SANITIZE_ADDRESS__) || defined(OFL_EMULATED_RACES)
void Switch(Context* from, Context* to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from->tool, to->stack != nullptr ? to->stack : host_stack,
                                 to->stack != nullptr ? kStackBytes : host_stack_bytes);
#elif defined(OFL_EMULATED_RACES)
  if (from->stack == nullptr) from->tool = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to->tool, __tsan_switch_to_fiber_no_sync);
#endif
  ofl_emulator_switch(&from->stack_pointer, to->stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from->tool, nullptr, nullptr);
#endif
}
#endif

#if defined(OFL_EMULATED_RACES)
void OrderBefore(void* at) { __tsan_release(at); }
void OrderAfter(void* at) { __tsan_acquire(at); }
#endif

void Entered() {
#if defined(__SANITIZE_ADDRESS__)
  const void* stack;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (host_stack == nullptr) host_stack = stack, host_stack_bytes = bytes;
#endif
}

}  // namespace cuda_emulator
