// Shared by the kernels of ctc_loss on the host: the check of their data.
#pragma once

#include "core/device/kernel.h"
#include "ops/reference.h"

namespace oneflow_like {

// What is wrong with the data of a sample.
inline Status CheckSpelling(const KernelContext& context, int64_t n) {
  const TensorArg &log_probs = context.in[0], &targets = context.in[1];
  const int64_t limits[] = {log_probs.extent[1], targets.extent[1]}, blank = context.spec.attrs.Int("blank");
  for (int i : {0, 1}) {
    const int64_t length = LoadInt(context.in[2 + i], n);
    if (length < 0 || length > limits[i])
      return Status(
          Cat(i == 0 ? "input length " : "target length ", length, " is outside [0, ", limits[i], "]"));
  }
  for (int64_t i = 0; i < LoadInt(context.in[3], n); ++i) {
    const int64_t target = LoadInt(targets, n * targets.extent[1] + i);
    if (target < 0 || target >= log_probs.extent[2])
      return Status(Cat("target ", target, " is outside [0, ", log_probs.extent[2], ")"));
    if (target == blank) return Status(Cat("target ", target, " is the blank, which spells nothing"));
  }
  return Status();
}

// The first thing that is wrong with the data of any sample.
inline Status CheckSpellings(const KernelContext& context) {
  for (int64_t n = 0; n < context.in[0].extent[0]; ++n) {
    if (Status status = CheckSpelling(context, n); !status.ok()) return status;
  }
  return Status();
}

}  // namespace oneflow_like
