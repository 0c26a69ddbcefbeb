// Restores the order of numbered messages: those of one sender may overtake one another in UCX, when small
// ones are sent while a large one waits for room.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>

namespace oneflow_like {

template <typename T>
class InOrder {
 public:
  // Whether `number` is the next one. If so, the caller handles it and calls Advance; otherwise it holds it.
  bool Due(uint32_t number) const { return number == next_; }
  void Advance() { ++next_; }
  void Hold(uint32_t number, T thing) { early_.emplace(number, std::move(thing)); }

  // Takes the next one if it has arrived early.
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
