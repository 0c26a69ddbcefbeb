// Attention, grouped products and norms of bf16 by what they are asked for, forward and backward, beside the
// plain ones and a copy.
#pragma once

#include "oneflow_like/simulate/device_timing.h"

namespace oneflow_like::gpu {

// Print a table each. `small`: of sizes that say nothing of a card but take the emulator seconds.
void PrintAttention(MeasuredDevice* on, bool small);
void PrintGroupedProducts(MeasuredDevice* on, bool small);
void PrintNorms(MeasuredDevice* on, bool small, double copy);  // copy: bytes a second, read and written

}  // namespace oneflow_like::gpu
