// Divides a kernel's scratch. One function of a kernel takes the pieces; run without memory, it counts what
// the kernel states (ScratchFn).
#pragma once

#include <cstdint>

namespace oneflow_like {

class Scratch {
 public:
  explicit Scratch(void* begin = nullptr) : begin_(static_cast<char*>(begin)) {}

  // n elements, on a multiple of 64 bytes; nullptr where there is no memory.
  template <typename T>
  T* Take(int64_t n) {
    char* piece = begin_ == nullptr ? nullptr : begin_ + bytes_;
    bytes_ += (n * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return reinterpret_cast<T*>(piece);
  }
  int64_t bytes() const { return bytes_; }  // taken so far

 private:
  char* begin_;
  int64_t bytes_ = 0;
};

}  // namespace oneflow_like
