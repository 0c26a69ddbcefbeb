// Lists of rows in parts: the table is as many equal parts by rows, and each part of the list names rows of
// its own. So a rank that holds parts of the table needs no other lists than theirs.
#pragma once

#include "core/device/kernel.h"
#include "core/host_device.h"

namespace oneflow_like {

struct ListParts {
  int64_t places = 0;  // of a part, held here; 0: the list is not in parts, and may name any row
  int64_t rows = 0;    // of a part of the table
  int64_t first = 0;   // the part of the first place held here

  // Whether a place may name a row; if not, it names none.
  OFL_HOST_DEVICE bool Has(int64_t place, int64_t row) const {
    if (places == 0) return true;
    const int64_t begin = (first + place / places) * rows;
    return row >= begin && row < begin + rows;
  }
  // Whether a part begins with a place.
  OFL_HOST_DEVICE bool Begins(int64_t place) const {
    return place == 0 || (places > 0 && place % places == 0);
  }
};

// Of a list [r m], or [(r m)], by attribute `parts`, r, for a table of so many rows.
inline ListParts PartsOf(const Attrs& attrs, const TensorArg& list, int64_t table_rows) {
  const int64_t parts = attrs.Int("parts", 0);
  if (parts == 0) return {};
  if (list.extent.rank() == 2) return {list.extent[1], table_rows / parts, list.begin[0]};
  const int64_t places = list.global[0] / parts;
  return {places, table_rows / parts, places > 0 ? list.begin[0] / places : 0};
}

}  // namespace oneflow_like
