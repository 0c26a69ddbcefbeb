// Buffers for chunks in flight that cannot be sent from or received into a piece directly: a fixed number,
// given out in the order of requests. Each runtime keeps a few more for its oldest unfinished chunk: because
// all processes agree on which one is the oldest, it always finds room everywhere, so no set of processes can
// wait for each other's buffers.
#pragma once

#include <memory>
#include <vector>

#include "core/device/device.h"

namespace oneflow_like {

class Staging {
 public:
  static constexpr int kKept = 3;  // most buffers of one chunk: a sum, a term, and one being sent

  Staging(std::unique_ptr<Memory> memory, int64_t buffer_bytes) : memory_(std::move(memory)) {
    buffers_ = static_cast<int>(memory_->bytes() / buffer_bytes);
    for (int i = 0; i < buffers_; ++i)
      free_.push_back(static_cast<char*>(memory_->data()) + i * buffer_bytes);
  }

  char* Take() {  // nullptr when there is none now
    if (free_.empty()) return nullptr;
    char* buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  void Give(char* buffer) { free_.push_back(buffer); }
  bool Owns(const char* buffer) const {
    const char* first = static_cast<const char*>(memory_->data());
    return buffer >= first && buffer < first + memory_->bytes();
  }
  int64_t bytes() const { return static_cast<int64_t>(memory_->bytes()); }
  int buffers() const { return buffers_; }  // in all
  int taken() const { return buffers_ - static_cast<int>(free_.size()); }

 private:
  std::unique_ptr<Memory> memory_;
  std::vector<char*> free_;
  int buffers_ = 0;
};

}  // namespace oneflow_like
