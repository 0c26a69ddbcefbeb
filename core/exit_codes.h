// How programs of this library end, for whoever starts them (docs/many_processes.md). The numbers from 64 on
// are those of sysexits.h.
#pragma once

namespace oneflow_like {

inline constexpr int kRunError = 1;      // it has begun and failed: a number that is not finite, a full disk
inline constexpr int kUsageError = 64;   // refused before it began: a flag, a file that it names (EX_USAGE)
inline constexpr int kLostPeer = 69;     // another process is lost or has not come (EX_UNAVAILABLE)
inline constexpr int kInterrupted = 75;  // interrupted, and saved: start it again (EX_TEMPFAIL)

}  // namespace oneflow_like
