// The identity of this process in its job: its number, the number of processes, and the address of the first
// one. Read once, by Launcher, from the environment that mpirun, srun, torchrun, Kubernetes or --processes
// sets.
#pragma once

#include <functional>
#include <string>

namespace oneflow_like {

struct ProcessIdentity {
  int process = 0, processes = 1;  // this one's number, and how many there are
  int local = 0, locals = 1;       // the same among those on its host, if the launcher tells
  std::string launcher;  // "--processes", "torchrun", "Kubernetes", "mpirun", "srun", "PMIx"; empty: none
  std::string master_host = "127.0.0.1";  // several, separated by commas, are tried in turn
  int master_port = 0;                    // port of process 0; 0: it picks one (PMIx publishes it)
  int listen_fd = -1;                     // process 0 under --processes: an already listening socket
  // The job's name, from the launcher or ONEFLOW_LIKE_JOB; equal in all its processes. Empty: it has none.
  std::string job;
  std::string token;  // secret of the job; empty only if the launcher set none and all is on loopback

  bool alone() const { return processes == 1; }
  bool loopback() const;  // master_host is this machine's loopback
};

// `variable` looks up an environment variable (nullptr: not set). In this order: ONEFLOW_LIKE_PROCESS and
// friends (set by --processes), RANK/WORLD_SIZE/LOCAL_RANK/MASTER_ADDR/MASTER_PORT (torchrun, Kubernetes),
// PMIX_RANK (mpirun, srun --mpi=pmix; a missing MASTER_ADDR is exchanged through PMIx), SLURM_PROCID/
// SLURM_NTASKS (srun). None: a single process. ONEFLOW_LIKE_TOKEN is the secret, which processes beyond
// loopback need, except under PMIx; ONEFLOW_LIKE_JOB names the job, and ONEFLOW_LIKE_PORT overrides a
// launcher's port. If the launcher says that all processes are on one host, they meet on its loopback. Throws
// Error naming the variable that is missing or invalid and what it should be.
ProcessIdentity ReadIdentity(const std::function<const char*(const char*)>& variable);
// Whether ReadIdentity asks PMIx, which waits for the other processes and can be asked once.
bool AsksPmix(const std::function<const char*(const char*)>& variable);

}  // namespace oneflow_like
