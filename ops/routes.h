// Tables of a router as kernels of all devices read them. A choice is one of a token's k experts, number
// token * k + j; a place is one of an expert's, number expert * room + slot; both count within a pool. slots
// says which choice fills a place, places where a choice went, -1: none. A choice and a place belong together
// where both tables say so: then each direction is the transpose of the other, whatever the tables hold.
#pragma once

#include "core/device/kernel.h"
#include "core/host_device.h"

namespace oneflow_like {

struct RouteTables {
  const int32_t* slots;   // [pools experts room] held here
  const int32_t* places;  // [pools tokens k]
  int64_t pools, experts, room, tokens, k;
  int64_t first_expert, first_slot, first_token;  // of those held here
  int64_t whole_room;                             // of an expert, wherever it is held

  OFL_HOST_DEVICE int64_t rows() const { return experts * pools * room; }  // of y[e p c w], of take_rows

  // The choice that fills row `row` of y, counted from the first token held here; -1: none of these.
  OFL_HOST_DEVICE int64_t ChoiceOf(int64_t row) const {
    const int64_t slot = row % room, pool = row / room % pools, expert = row / room / pools;
    const int64_t choice = slots[(pool * experts + expert) * room + slot];
    if (choice < 0) return -1;
    const int64_t local = choice - first_token * k;
    if (local < 0 || local >= tokens * k) return -1;
    const int64_t place = (first_expert + expert) * whole_room + first_slot + slot;
    return places[pool * tokens * k + local] == place ? pool * tokens * k + local : -1;
  }
  // The row of y to which choice `choice` (of all pools held here) went; -1: to none of these.
  OFL_HOST_DEVICE int64_t RowOf(int64_t choice) const {
    const int64_t place = places[choice];
    if (place < 0 || room == 0) return -1;
    const int64_t pool = choice / (tokens * k), expert = place / whole_room - first_expert,
                  slot = place % whole_room - first_slot;
    if (expert < 0 || expert >= experts || slot < 0 || slot >= room) return -1;
    const int64_t own = choice - pool * tokens * k + first_token * k;
    return slots[(pool * experts + expert) * room + slot] == own ? (expert * pools + pool) * room + slot : -1;
  }
};

// Which of rank `rank`'s `experts` the number in `kept` of route_ranks names, from 0 on; -1: none of them.
OFL_HOST_DEVICE int64_t ExpertAt(double kept, int64_t rank, int64_t experts) {
  const int64_t expert = static_cast<int64_t>(kept) - 1 - rank * experts;
  return kept >= 1 && expert >= 0 && expert < experts ? expert : -1;
}

// Tables [r p c], [r p n k] are of pools r and p with the places of one expert.
inline RouteTables TablesOf(const TensorArg& slots, const TensorArg& places) {
  if (places.extent.rank() == 4)
    return {slots.as<int32_t>(),
            places.as<int32_t>(),
            slots.extent[0] * slots.extent[1],
            1,
            slots.extent[2],
            places.extent[2],
            places.extent[3],
            0,
            slots.begin[2],
            places.begin[2],
            slots.global[2]};
  return {slots.as<int32_t>(), places.as<int32_t>(), slots.extent[0],  slots.extent[1],
          slots.extent[2],     places.extent[1],     places.extent[2], slots.begin[1],
          slots.begin[2],      places.begin[1],      slots.global[2]};
}

// The step's error where an expert's room does not suffice and nothing may be dropped.
inline Status NoRoom(int64_t expert, int64_t pool, int64_t wanted, int64_t room) {
  return Status(Cat("expert ", expert, " is chosen ", wanted, " times in pool ", pool, " but has room for ",
                    room, "; give more capacity, or let it drop"));
}

// The same where the room is that of a rank with experts [first, last].
inline Status NoRoomAtRank(int64_t first, int64_t last, int64_t pool, int64_t wanted, int64_t room) {
  return Status(Cat("experts ", first, " to ", last, " are chosen ", wanted, " times in pool ", pool,
                    " but their rank has room for ", room,
                    "; give more room (where steps run again: retry_room), or let it drop"));
}

}  // namespace oneflow_like
