// The SBP algebra: text form, cuts, local boxes.
#include "sbp/sbp.h"

#include <glog/logging.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include "core/error.h"

namespace oneflow_like {
namespace {

// Reads all of [begin, end) as a number that is not negative.
template <typename T>
bool ReadNumber(const char* begin, const char* end, T* value) {
  auto [after, error] = std::from_chars(begin, end, *value);
  return error == std::errc() && after == end && *value >= 0;
}

}  // namespace

bool Sbp::operator<(const Sbp& o) const {
  return std::tie(kind, fold, axis, grain) < std::tie(o.kind, o.fold, o.axis, o.grain);
}

std::string Sbp::str() const {
  switch (kind) {
    case Kind::kBroadcast:
      return "B";
    case Kind::kSplit:
      return "S" + std::to_string(axis) + (grain == 1 ? "" : "/" + std::to_string(grain));
    case Kind::kPartial:
      return fold == Reduce::kSum ? "P" : std::string("P") + Name(fold);
  }
  return "";
}

Sbp ParseSbp(const std::string& text) {
  if (text == "B") return B();
  for (Reduce fold : {Reduce::kSum, Reduce::kMax, Reduce::kMin}) {
    if (text == P(fold).str()) return P(fold);
  }
  if (!text.empty() && text[0] == 'S') {
    const char *begin = text.data(), *end = begin + text.size();
    const char* slash = std::find(begin, end, '/');
    Sbp split = S(0);
    bool good = ReadNumber(begin + 1, slash, &split.axis) && split.axis < Dims::kMaxRank;
    if (slash != end) good = good && ReadNumber(slash + 1, end, &split.grain) && split.grain >= 1;
    if (good) return split;
  }
  Fail("\"", text,
       "\" is no SBP: write B, S and an axis (S0), S, an axis and a grain (S0/64), P, Pmax or Pmin");
}

Interval Cut(Interval whole, int64_t parts, int64_t index, int64_t grain) {
  CHECK(parts >= 1 && index >= 0 && index < parts && grain >= 1)
      << "part " << index << " of " << parts << " in grains of " << grain;
  int64_t grains = (whole.extent + grain - 1) / grain;
  int64_t each = grains / parts, longer = grains % parts;  // the first `longer` parts have one grain more
  auto point = [&](int64_t part) {
    return std::min(whole.extent, grain * (part * each + std::min(part, longer)));
  };
  return {whole.begin + point(index), point(index + 1) - point(index)};
}

Box LocalBox(const Dims& shape, const NdSbp& sbp, const std::vector<int>& sizes,
             const std::vector<int>& coords) {
  CHECK(sbp.size() == sizes.size() && sbp.size() == coords.size());
  Box box = Box::Whole(shape);
  for (size_t i = 0; i < sbp.size(); ++i) {
    if (!sbp[i].is_split()) continue;
    int axis = sbp[i].axis;
    CHECK(axis >= 0 && axis < shape.rank()) << sbp[i].str() << " of a tensor of shape " << shape.str();
    Interval part = Cut({box.begin[axis], box.extent[axis]}, sizes[i], coords[i], sbp[i].grain);
    box.begin[axis] = part.begin;
    box.extent[axis] = part.extent;
  }
  return box;
}

Dims LargestPiece(const Dims& shape, const NdSbp& sbp, const std::vector<int>& sizes) {
  return LocalBox(shape, sbp, sizes, std::vector<int>(sizes.size(), 0)).extent;
}

Sbp Canonical(const Sbp& sbp, const Dims& shape, int64_t parts) {
  if (!sbp.is_split() || sbp.grain == 1) return sbp;
  CHECK_LT(sbp.axis, shape.rank()) << sbp.str() << " of a tensor of shape " << shape.str();
  int64_t extent = shape[sbp.axis];
  // Every nesting of cuts into at most `parts` parts is then even, in whole grains.
  if (extent <= 1 || (extent % parts == 0 && extent / parts % sbp.grain == 0)) return S(sbp.axis);
  // A grain past the extent leaves all to the first part, like a grain of the extent.
  return S(sbp.axis, std::min(sbp.grain, extent));
}

NdSbp Plain(const Dims& shape, NdSbp sbp, const std::vector<int>& sizes) {
  CHECK_EQ(sbp.size(), sizes.size());
  Dims left = shape;
  std::vector<bool> even(shape.rank(), true);  // so far, from the outer entries in
  for (size_t e = 0; e < sbp.size(); ++e) {
    if (!sbp[e].is_split()) continue;
    const int axis = sbp[e].axis;
    const int64_t each = left[axis] / sizes[e];
    const bool alike = left[axis] % sizes[e] == 0 && each % sbp[e].grain == 0;
    even[axis] = even[axis] && (sizes[e] == 1 || alike);
    if (!even[axis]) continue;
    sbp[e].grain = 1;
    left[axis] = each;
  }
  return sbp;
}

}  // namespace oneflow_like
