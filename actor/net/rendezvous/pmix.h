// PMIx, the protocol of mpirun and srun --mpi=pmix with the processes that they start: provides a process's
// number, and carries process 0's address to the others. The library is opened when needed, never linked.
#pragma once

#include <functional>
#include <string>

namespace oneflow_like {

struct PmixJob {
  int process = 0, processes = 1;
  int local = 0, locals = 1;
  std::string published;  // by process 0
};

// If there are several processes, `publish` is called on process 0, and its result is sent to all; its
// argument says whether all are on this host. Blocks until all processes have called this. Throws Error when
// the library or its server is missing.
PmixJob AskPmix(const std::function<std::string(bool one_host)>& publish);

}  // namespace oneflow_like
