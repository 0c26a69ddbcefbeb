#include "core/boxes/runs.h"

#include <algorithm>

namespace oneflow_like {

void ForEachRun(const Box& box, const Box& piece, int64_t most, const std::function<void(const Box&)>& use,
                int axis) {
  if (box.empty()) return;
  if (axis == box.extent.rank()) return use(box);
  int64_t row = 1;
  bool whole = true;
  for (int a = axis + 1; a < box.extent.rank(); ++a) {
    row *= box.extent[a];
    whole = whole && box.extent[a] == piece.extent[a];
  }
  const bool rows = whole && row <= most;
  const int64_t step = rows ? std::max<int64_t>(1, most / row) : 1;
  for (int64_t at = 0; at < box.extent[axis]; at += step) {
    Box part = box;
    part.begin[axis] += at;
    part.extent[axis] = std::min(step, box.extent[axis] - at);
    rows ? use(part) : ForEachRun(part, piece, most, use, axis + 1);
  }
}

int64_t OffsetIn(const Box& piece, const Box& run, DType dtype) {
  int64_t index = 0;
  for (int a = 0; a < piece.extent.rank(); ++a)
    index = index * piece.extent[a] + run.begin[a] - piece.begin[a];
  return index * static_cast<int64_t>(SizeOf(dtype));
}

}  // namespace oneflow_like
