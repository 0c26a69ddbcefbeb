// Finds non-finite numbers in memory.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace oneflow_like {

// The index of the first NaN or infinity; -1 when there is none, or when the type has none.
int64_t FirstNotFinite(DType dtype, const void* data, int64_t elements);

// One element as a float. REQUIRES: IsFloating(dtype).
float FloatAt(DType dtype, const void* data, int64_t index);

}  // namespace oneflow_like
