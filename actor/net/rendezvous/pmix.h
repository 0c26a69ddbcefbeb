// PMIx, what mpirun and srun --mpi=pmix speak with the processes they start: tells who a process is, and
// carries process 0's address to the others. The library is opened when needed, never linked.
#pragma once

#include <functional>
#include <string>

namespace oneflow_like {

struct PmixJob {
  int process = 0, processes = 1;
  int local = 0, locals = 1;
  std::string published;  // by process 0
};

// `publish` is called on process 0 of several, and what it returns reaches all of them; it is told whether
// all are on this host. Blocks until all processes have called this. Throws Error when the library or its
// server is not there.
PmixJob AskPmix(const std::function<std::string(bool one_host)>& publish);

}  // namespace oneflow_like
