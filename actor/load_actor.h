// Makes one actor of a plan: its kernels and the places of their operands, and what a feed, fetch or
// collective needs. It has no ports yet (actor/loading.cc).
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "actor/loading.h"

namespace oneflow_like {

// Those of a rank.
struct RankStreams {
  std::vector<Stream*> ordered;  // by number in the plan
  DeviceStream *feeds = nullptr, *fetches = nullptr;
};
using BuffersById = std::map<int, const plan::Buffer*>;

std::unique_ptr<Actor> LoadActor(const plan::Plan& plan, const plan::Actor& spec, const BuffersById& buffers,
                                 const LoadContext& context, const RankStreams& streams, Shard* shard);

}  // namespace oneflow_like
