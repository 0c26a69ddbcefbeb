// Puts numbered things back in order: messages of one sender may overtake one another on their way through
// UCX, when small ones go out while a large one waits for room.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>

namespace oneflow_like {

template <typename T>
class InOrder {
 public:
  // Is `number` the one that is due? The caller then handles it and calls Advance; else it is held.
  bool Due(uint32_t number) const { return number == next_; }
  void Advance() { ++next_; }
  void Hold(uint32_t number, T thing) { early_.emplace(number, std::move(thing)); }

  // Takes what is due if it came early.
  bool Take(T* thing) {
    if (early_.empty()) return false;
    auto it = early_.find(next_);
    if (it == early_.end()) return false;
    *thing = std::move(it->second);
    early_.erase(it);
    return true;
  }

  void Clear() { early_.clear(); }
  size_t held() const { return early_.size(); }

 private:
  uint32_t next_ = 0;  // wraps around
  std::unordered_map<uint32_t, T> early_;
};

}  // namespace oneflow_like
