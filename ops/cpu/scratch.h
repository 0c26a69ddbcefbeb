// Working memory of kernels that is too large for a stack: one object of each type for each thread.
#pragma once

#include <memory>

namespace oneflow_like::cpu {

// This thread's T, made when it is first asked for. It is on the heap: thread-local objects themselves lie on
// the stack of every thread of the program, and libraries whose threads have small ones (oneTBB's 4 MB)
// cannot start them beside what all kernels of all levels need.
template <typename T>
T* OfThread() {
  static thread_local const std::unique_ptr<T> own = std::make_unique<T>();
  return own.get();
}

}  // namespace oneflow_like::cpu
