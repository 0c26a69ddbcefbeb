// Shared by embedding_bag's kernels on the host: the ids of a bag that count, and the error for invalid ones.
#pragma once

#include "core/device/kernel.h"
#include "ops/reference.h"

namespace oneflow_like {

// ids[b l] and lengths[b], of which this rank may hold a part.
struct Bags {
  const TensorArg &ids, &lengths;

  int64_t count() const { return ids.extent[0]; }
  int64_t room() const { return ids.extent[1]; }
  // The number of the bag's ids that are held here and count.
  int64_t Used(int64_t bag) const {
    int64_t used = LoadInt(lengths, bag) - ids.begin[1];
    return used < 0 ? 0 : used < room() ? used : room();
  }

  // Fails with the first length outside [0, l] or id outside a table of `rows` rows.
  Status Check(int64_t rows) const {
    for (int64_t bag = 0; bag < count(); ++bag) {
      int64_t length = LoadInt(lengths, bag);
      if (length < 0 || length > ids.global[1])
        return Status(Cat("a bag has length ", length, " but ids has room for ", ids.global[1]));
    }
    for (int64_t bag = 0; bag < count(); ++bag) {
      for (int64_t j = 0, used = Used(bag); j < used; ++j) {
        int64_t id = LoadInt(ids, bag * room() + j);
        if (id < 0 || id >= rows) return Status(Cat("id ", id, " is outside the table of ", rows, " rows"));
      }
    }
    return Status();
  }
};

}  // namespace oneflow_like
