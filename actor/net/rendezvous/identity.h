// Who this process is among the processes of its job: its number, how many there are, and where the first one
// listens. Read once, by Launcher, from the environment that mpirun, srun, torchrun, Kubernetes or our own
// --processes sets.
#pragma once

#include <functional>
#include <string>

namespace oneflow_like {

struct ProcessIdentity {
  int process = 0, processes = 1;  // this one, of so many
  int local = 0, locals = 1;       // this one of those on its host, as far as the launcher tells
  std::string launcher;  // "--processes", "torchrun", "Kubernetes", "mpirun", "srun", "PMIx"; empty: none
  std::string master_host = "127.0.0.1";  // several, separated by commas, are tried in turn
  int master_port = 0;                    // where process 0 listens; 0: it picks one (PMIx publishes it)
  int listen_fd = -1;                     // process 0 under --processes: a socket that listens already
  // Of the job, as the launcher names it or ONEFLOW_LIKE_JOB does; equal in all its processes. Empty: it has
  // none.
  std::string job;
  std::string token;  // secret of the job; empty only where the launcher gave none and all is on loopback

  bool alone() const { return processes == 1; }
  bool loopback() const;  // master_host is this machine's loopback
};

// `variable` looks up an environment variable (nullptr: not set). In this order: ONEFLOW_LIKE_PROCESS and
// friends (set by --processes), RANK/WORLD_SIZE/LOCAL_RANK/MASTER_ADDR/MASTER_PORT (torchrun, Kubernetes),
// PMIX_RANK (mpirun, srun --mpi=pmix; a missing MASTER_ADDR is exchanged through PMIx), SLURM_PROCID/
// SLURM_NTASKS (srun). None: alone. ONEFLOW_LIKE_TOKEN is the secret; peers beyond loopback, but for PMIx's,
// need it, ONEFLOW_LIKE_JOB names the job, and ONEFLOW_LIKE_PORT goes before a launcher's port. A launcher
// that says all its processes are on one host makes them meet on its loopback. Throws Error naming the
// variable that is missing or senseless and what it should be.
ProcessIdentity ReadIdentity(const std::function<const char*(const char*)>& variable);

}  // namespace oneflow_like
