// Picks the kernels for the processor that runs the program.
#include "ops/cpu/levels.h"

#include "core/error.h"
#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/manifest.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace oneflow_like {

// Each is AddKernels of manifest.cc, compiled for one level.
void AddCpuKernelsHere(KernelRegistry* registry);

#ifdef OFL_CPU_LEVELS

void AddCpuKernelsV3(KernelRegistry* registry);
void AddCpuKernelsV4(KernelRegistry* registry);
void AddCpuKernelsV4Bf16(KernelRegistry* registry);
void AddCpuKernelsV4Amx(KernelRegistry* registry);

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
          {"x86-64-v4 with bf16", bf16, AddCpuKernelsV4Bf16},
          {"x86-64-v4 with bf16 and AMX", bf16 && MayUseTiles(), AddCpuKernelsV4Amx}};
}

#else

std::vector<CpuLevel> CpuLevels() {
#if defined(OFL_AMX_TILES)
  const char* name = MayUseTiles() ? "that of the build, with AMX" : "that of the build, but for AMX";
#else
  const char* name = "that of the build";
#endif
  return {{name, true, AddCpuKernelsHere}};
}

#endif

namespace {

bool AskForTiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || !(d & kBf16) || !(d & kTile)) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

bool MayUseTiles() {
  static const bool may = AskForTiles();
  return may;
}

CpuLevel ChosenCpuLevel() {
  const std::vector<CpuLevel> levels = CpuLevels();
  for (auto level = levels.rbegin(); level != levels.rend(); ++level)
    if (level->supported) return *level;
  Fail("this program needs a processor of level ", levels.front().name, " (SSE 4.2 and POPCNT) or higher");
}

void AddCpuKernels(KernelRegistry* registry) { ChosenCpuLevel().add(registry); }

}  // namespace oneflow_like
