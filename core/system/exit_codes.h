// Exit codes of programs that use this library (docs/many_processes.md). The numbers from 64 on are those of
// sysexits.h.
#pragma once

namespace oneflow_like {

inline constexpr int kRunError = 1;      // the run began and failed: a number that is not finite, a full
                                         // disk
inline constexpr int kUsageError = 64;   // refused before it began: a flag, a file named by one (EX_USAGE)
inline constexpr int kLostPeer = 69;     // another process is lost or did not connect (EX_UNAVAILABLE)
inline constexpr int kInterrupted = 75;  // interrupted, and saved: start it again (EX_TEMPFAIL)

}  // namespace oneflow_like
