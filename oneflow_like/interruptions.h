// Interruptions: a scheduler's warning before the end (SIGTERM of Kubernetes and Slurm, SIGUSR1 of sbatch
// --signal), on which a program saves and stops.
#pragma once

#include <memory>

#include "core/exit_codes.h"  // kInterrupted, what a program returns that was interrupted and has saved

namespace oneflow_like {

class Job;
class Launcher;

// While it lives, SIGTERM and SIGUSR1 do not end the program but are noted. Handlers installed before run
// too; one that is installed later replaces ours; a signal that is ignored stays so. A second SIGTERM ends
// the program at once. (To a copy of --processes it may come twice, from the launcher and from whoever
// signals all processes: there a second one to the launcher ends all.) One object at a time.
class Interruptions {
 public:
  // `launcher` must outlive this object.
  explicit Interruptions(const Launcher& launcher);
  // Unless Agreed() was true, after which the program is to end, signals do again what they did before: also
  // one that has come since the last Agreed().
  ~Interruptions();
  Interruptions(const Interruptions&) = delete;
  Interruptions& operator=(const Interruptions&) = delete;

  // Whether a process of the job was interrupted: the same answer on all of them. In a job it is collective
  // and costs an exchange through process 0; to be called between steps. Throws Error when the job has
  // failed.
  bool Agreed();

 private:
  std::shared_ptr<Job> job_;
  bool agreed_ = false;
};

}  // namespace oneflow_like
