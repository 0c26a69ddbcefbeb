// The kernels of the CPU backend, reference and fast, made once.
#pragma once

#include "core/device/kernel.h"
#include "ops/cpu/manifest.h"
#include "ops/manifest.h"
#include "ops/op.h"

namespace oneflow_like {

inline const KernelRegistry& CpuRegistry() {
  static const KernelRegistry* const registry = [] {
    auto* all = new KernelRegistry;
    AddReferenceKernels(BuiltinCatalog(), all);
    AddCpuKernels(all);
    return all;
  }();
  return *registry;
}

}  // namespace oneflow_like
