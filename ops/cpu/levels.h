// The levels of instructions that the CPU kernels of this program were compiled for. A build for the building
// machine's processor alone (OFL_NATIVE) has one; others have those of cmake/cpu_kernels.cmake.
#pragma once

#include <string>
#include <vector>

#include "core/device/kernel.h"

namespace oneflow_like {

struct CpuLevel {
  std::string name;                       // "x86-64-v3"
  bool supported;                         // by this processor
  void (*add)(KernelRegistry* registry);  // its kernels, under device kind "cpu"
};

// From the lowest level to the highest.
std::vector<CpuLevel> CpuLevels();

// Whether this process may use AMX: the processor has it for bf16, and Linux (5.16 or newer), which is asked
// at the first call, gives each thread the memory for its registers.
bool MayUseTiles();

// The one whose kernels AddCpuKernels adds: the highest that the processor supports. Throws Error when it
// supports none.
CpuLevel ChosenCpuLevel();

}  // namespace oneflow_like
