// Controls how long the threads of OpenMP's teams spin while they wait for the next loop.
#pragma once

namespace oneflow_like {

// From the first call on, for the rest of the process: teams spin long (GNU's default, about 15 ms) while
// this process gets the cores that it needs, and only a moment while it has to share them. OMP_WAIT_POLICY
// and GOMP_SPINCOUNT override this. A call allocates nothing; a change of mode creates or ends a team.
// Thread-safe.
void WatchSpinning();
// Whether teams spin only a moment at present. Thread-safe.
bool SpinsBriefly();

}  // namespace oneflow_like
