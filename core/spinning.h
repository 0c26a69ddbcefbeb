// How long the threads of OpenMP's teams spin while they wait for the next loop.
#pragma once

namespace oneflow_like {

// From the first call on, for the rest of the process: teams spin long (GNU's default, about 15 ms) while
// this process gets the cores that it wants, and a moment only while it has to share them. OMP_WAIT_POLICY
// and GOMP_SPINCOUNT, where the user sets one, stand instead. Looking allocates nothing; a change from one
// way to the other makes or ends a team. Any thread.
void WatchSpinning();

}  // namespace oneflow_like
