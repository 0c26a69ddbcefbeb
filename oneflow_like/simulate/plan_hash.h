// Whether plans are the same.
#pragma once

#include <cstdint>
#include <string>

#include "core/plan.pb.h"
#include "core/random.h"

namespace oneflow_like {

// Of all that a plan says and, to have one of several plans, the hash of those before it.
inline uint64_t HashOf(const plan::Plan& plan, uint64_t before = 0) {
  return HashName(std::to_string(before) + plan.SerializeAsString());
}

}  // namespace oneflow_like
