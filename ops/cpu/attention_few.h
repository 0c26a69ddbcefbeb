// Attention of few queries over many keys, for instance one token at a time with a cache: it takes as long as
// reading keys and values once for all queries that share them.
#pragma once

#include "core/device/kernel.h"

namespace oneflow_like::cpu {

// Whether this kernel supports a use of attention: few queries for a head of keys, heads whose widths are
// multiples of 16, neither dropout nor a bias.
bool FewQueriesFit(const KernelSpec& spec);
// Bytes of scratch of each thread, and the kernel. REQUIRES: FewQueriesFit.
int64_t FewQueriesBytes(const KernelSpec& spec);
Status FewQueriesAttention(const KernelContext& context);

}  // namespace oneflow_like::cpu
