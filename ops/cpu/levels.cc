// Picks the kernels for the processor that runs the program.
#include "ops/cpu/levels.h"

#include "core/error.h"
#include "ops/cpu/manifest.h"

namespace oneflow_like {

// Each is AddKernels of manifest.cc, compiled for one level.
void AddCpuKernelsHere(KernelRegistry* registry);

#ifdef OFL_CPU_LEVELS

void AddCpuKernelsV3(KernelRegistry* registry);
void AddCpuKernelsV4(KernelRegistry* registry);
void AddCpuKernelsV4Bf16(KernelRegistry* registry);

// By feature: not every compiler knows the levels' names. The rest of a level came with these.
std::vector<CpuLevel> CpuLevels() {
  __builtin_cpu_init();
  const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  const bool bf16 = v4 && __builtin_cpu_supports("avx512bf16");
  return {{"x86-64-v2", v2, AddCpuKernelsHere},
          {"x86-64-v3", v3, AddCpuKernelsV3},
          {"x86-64-v4", v4, AddCpuKernelsV4},
          {"x86-64-v4 with bf16", bf16, AddCpuKernelsV4Bf16}};
}

#else

std::vector<CpuLevel> CpuLevels() { return {{"that of the build", true, AddCpuKernelsHere}}; }

#endif

CpuLevel ChosenCpuLevel() {
  const std::vector<CpuLevel> levels = CpuLevels();
  for (auto level = levels.rbegin(); level != levels.rend(); ++level)
    if (level->supported) return *level;
  Fail("this program needs a processor of level ", levels.front().name, " (SSE 4.2 and POPCNT) or higher");
}

void AddCpuKernels(KernelRegistry* registry) { ChosenCpuLevel().add(registry); }

}  // namespace oneflow_like
