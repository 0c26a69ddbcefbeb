// Dims: the extents (or starts) of up to eight tensor axes, held inline so that nothing on the path of a
// running step allocates. Box: a rectangular part of a tensor's index space.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

namespace oneflow_like {

class Dims {
 public:
  static constexpr int kMaxRank = 8;

  Dims() = default;
  Dims(std::initializer_list<int64_t> extents) {
    for (int64_t e : extents) push_back(e);
  }
  Dims(int rank, int64_t value) {
    for (int i = 0; i < rank; ++i) push_back(value);
  }
  template <typename It>
  requires(!std::is_arithmetic_v<It>) Dims(It first, It last) {
    for (; first != last; ++first) push_back(*first);
  }

  int rank() const { return rank_; }
  size_t size() const { return rank_; }
  bool empty() const { return rank_ == 0; }
  int64_t operator[](int axis) const { return at_[axis]; }
  int64_t& operator[](int axis) { return at_[axis]; }
  const int64_t* begin() const { return at_.data(); }
  const int64_t* end() const { return at_.data() + rank_; }
  int64_t* begin() { return at_.data(); }
  int64_t* end() { return at_.data() + rank_; }
  int64_t back() const { return at_[rank_ - 1]; }
  int64_t& back() { return at_[rank_ - 1]; }
  void push_back(int64_t extent);  // throws Error past kMaxRank axes
  int64_t elements() const {       // product of the extents; 1 for a scalar
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= at_[i];
    return n;
  }
  bool operator==(const Dims& other) const;
  bool operator!=(const Dims& other) const { return !(*this == other); }
  std::string str() const;  // "[8,64]"

 private:
  std::array<int64_t, kMaxRank> at_{};
  int rank_ = 0;
};

// Half-open box [begin, begin + extent) of a tensor's global index space.
struct Box {
  Dims begin, extent;

  static Box Whole(const Dims& shape) { return {Dims(shape.rank(), 0), shape}; }
  int64_t elements() const { return extent.elements(); }
  bool empty() const { return elements() == 0; }
  bool operator==(const Box& other) const { return begin == other.begin && extent == other.extent; }
  Box Intersect(const Box& other) const;  // an empty box has extent 0 on some axis
  std::string str() const;                // "[0:4,2:6]"
};

// Throws Error, beginning with `who`, for a shape with a negative extent or more than 2^48 elements, more
// than any machine holds: sizes in bytes, and sums of them, then stay far from overflow.
void RequireExtents(const std::string& who, const Dims& shape);

}  // namespace oneflow_like
