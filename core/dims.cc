// Dims and Box: comparison, intersection, printing.
#include "core/dims.h"

#include <glog/logging.h>

#include <algorithm>

#include "core/error.h"

namespace oneflow_like {

void Dims::push_back(int64_t extent) {
  if (rank_ == kMaxRank) Fail("a tensor has at most ", kMaxRank, " axes, but ", rank_ + 1, " were given");
  at_[rank_++] = extent;
}

bool Dims::operator==(const Dims& other) const {
  return rank_ == other.rank_ && std::equal(begin(), end(), other.begin());
}

std::string Dims::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) text += ",";
    text += std::to_string(at_[i]);
  }
  return text + "]";
}

Box Box::Intersect(const Box& other) const {
  CHECK_EQ(begin.rank(), other.begin.rank());
  Box result = *this;
  for (int i = 0; i < begin.rank(); ++i) {
    int64_t from = std::max(begin[i], other.begin[i]);
    int64_t to = std::min(begin[i] + extent[i], other.begin[i] + other.extent[i]);
    result.begin[i] = from;
    result.extent[i] = std::max<int64_t>(0, to - from);
  }
  return result;
}

std::string Box::str() const {
  std::string text = "[";
  for (int i = 0; i < begin.rank(); ++i) {
    if (i > 0) text += ",";
    text += std::to_string(begin[i]) + ":" + std::to_string(begin[i] + extent[i]);
  }
  return text + "]";
}

void RequireExtents(const std::string& who, const Dims& shape) {
  constexpr int64_t kMost = int64_t{1} << 48;
  int64_t elements = 1;
  bool large = false;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    int64_t extent = shape[axis];
    if (extent < 0)
      Fail(who, ": axis ", axis, " has extent ", extent, " in ", shape.str(), ", must be 0 or more");
    large = large || extent > kMost;
    if (extent > 1 && !large) {
      large = elements > kMost / extent;
      elements *= large ? 1 : extent;
    }
  }
  if (large) Fail(who, ": ", shape.str(), " has more than 2^48 elements, the most a tensor may have");
}

}  // namespace oneflow_like
