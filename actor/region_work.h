// The work of a member of a collective, prepared at load: only the pointers change from act to act.
#pragma once

#include <vector>

#include "actor/collective.h"
#include "core/boxes/copy_box.h"

namespace oneflow_like {

struct RegionWork : Region {
  std::vector<Piece> from, to;  // of the sources and destinations, without data
};

// Divides a region that has a count into the box that an act moves and the box that it sets to 0. `counts`:
// the counts of the act.
inline CountedBox PartsOf(const Region& region, int rows, const void* counts) {
  return CutAtCount(region.box, rows, static_cast<const int32_t*>(counts)[region.count]);
}

// Throws Error if this rank is not a member, or not all members have pieces.
void CheckMembers(const CollectiveSpec& spec, const plan::Collective& collective);
// One list, or one for each micro-batch; without empty regions. Throws Error for a region outside the pieces
// that it names.
std::vector<std::vector<RegionWork>> ReadyWork(const CollectiveSpec& spec,
                                               const plan::Collective& collective);

}  // namespace oneflow_like
