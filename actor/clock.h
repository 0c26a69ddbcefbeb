// The clock of profiles and traces: cheap enough to be read twice for every kernel. On x86 it is the
// processor's counter if that runs at one rate for all cores, else the steady clock.
#pragma once

#include <chrono>
#include <cstdint>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace oneflow_like {

inline int64_t SteadyNanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

#if defined(__x86_64__)
inline bool HasInvariantCounter() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
}
inline const bool kInvariantCounter = HasInvariantCounter();
#endif

// Monotonic, also between threads. A TickScale knows its unit.
inline int64_t Ticks() {
#if defined(__x86_64__)
  if (kInvariantCounter) return static_cast<int64_t>(__rdtsc());
#endif
  return SteadyNanoseconds();
}

// One moment on both clocks.
struct ClockPoint {
  int64_t ticks = 0;
  int64_t nanoseconds = 0;  // of the steady clock

  static ClockPoint Now() { return {Ticks(), SteadyNanoseconds()}; }
};

// Converts ticks between two moments, using their average rate.
class TickScale {
 public:
  TickScale(const ClockPoint& from, const ClockPoint& to)
      : from_(from),
        nanoseconds_per_tick_(to.ticks > from.ticks ? static_cast<double>(to.nanoseconds - from.nanoseconds) /
                                                          (to.ticks - from.ticks)
                                                    : 1) {}
  double Seconds(int64_t ticks) const { return 1e-9 * nanoseconds_per_tick_ * ticks; }
  // On the steady clock.
  int64_t Nanoseconds(int64_t at) const {
    return from_.nanoseconds + static_cast<int64_t>(nanoseconds_per_tick_ * (at - from_.ticks));
  }

 private:
  ClockPoint from_;
  double nanoseconds_per_tick_;
};

}  // namespace oneflow_like
