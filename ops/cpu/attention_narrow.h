// attention and its gradient multiplied in bf16, where the build has the instructions for it (AVX-512 BF16).
// Sums, maxima, exponentials and the log-sum-exp stay fp32; probabilities and slopes are rounded to bf16
// before they are multiplied, as attention on GPUs does.
#pragma once

#include "core/device/kernel.h"

namespace oneflow_like::cpu {

// Whether these kernels take a use of attention (q is operand 0) or attention_grad (1): bf16, heads of an
// even width, and a build that has them. Other requirements of attention are checked elsewhere.
bool NarrowFits(const KernelSpec& spec, int q);
// Bytes of scratch of each thread where these kernels run, whether or not they do on this machine; 0 for
// other types.
int64_t NarrowAttentionBytes(const KernelSpec& spec);
int64_t NarrowAttentionGradBytes(const KernelSpec& spec);
// REQUIRES: NarrowFits. The second leaves the gradient of a bias to others.
Status NarrowAttention(const KernelContext& context);
Status NarrowAttentionGrad(const KernelContext& context);
// The same on AMX's tiles, which those above call at the level that has them. In a build for one machine
// without AMX tiles in plain C++, for tests.
Status TiledAttention(const KernelContext& context);
Status TiledAttentionGrad(const KernelContext& context);

}  // namespace oneflow_like::cpu
