// --elastic: how a job continues with fewer processes, along one mesh axis that shrinks. The global batch
// stays the same: a device works on as much of it at a time as before, in more micro-batches.
#pragma once

#include <cstdint>
#include <string>

namespace oneflow_like {

struct JobShape {
  std::string mesh;
  int processes = 1;
  int64_t micro_batches = 0;  // 0: the program has none
};

// Throws Error when a job of this shape cannot shrink along `axis`.
void CheckElastic(const JobShape& whole, const std::string& axis);

// The new shape of the job of shape `whole` when at most `left` of its processes remain: the largest extent
// of the axis that divides `batch` (0: not known) and that they can hold with no more devices each than
// before. Throws Error when there is none. REQUIRES: CheckElastic(whole, axis).
JobShape Shrink(const JobShape& whole, const std::string& axis, int left, int64_t batch);

}  // namespace oneflow_like
