// What a step keeps for its gradients.
#pragma once

#include <algorithm>
#include <cstdint>

#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

// Bytes of the whole batch that the forward pass makes and gradients read, in a step of micro-batches.
inline int64_t KeptBytes(const Session& session) {
  const LogicalPlan& plan = session.impl()->compiled.logical;
  int64_t bytes = 0;
  for (const LogicalBuffer& buffer : plan.buffers) {
    if (buffer.writer < 0 || !buffer.variable.empty()) continue;
    const Segment& writer = plan.segments[buffer.writer];
    if (writer.stream < 0 || writer.phase != Phase::kForward) continue;
    const Value& value = session.impl()->compiled.graph.value(buffer.value);
    const bool kept = std::any_of(buffer.readers.begin(), buffer.readers.end(), [&](int reader) {
      return plan.segments[reader].phase == Phase::kBackward;
    });
    if (kept && value.sbp[0].is_split())
      bytes += value.shape.elements() * static_cast<int64_t>(SizeOf(value.dtype));
  }
  return bytes;
}

}  // namespace oneflow_like
