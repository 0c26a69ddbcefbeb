// The memory of a session's fullest rank.
#pragma once

#include <algorithm>
#include <cstdint>

#include "oneflow_like/session.h"

namespace oneflow_like {

inline int64_t FullestRank(const Session& session) {
  int64_t bytes = 0;
  for (const RankSummary& rank : session.Summaries()) bytes = std::max(bytes, rank.peak_bytes);
  return bytes;
}

}  // namespace oneflow_like
