// Interruptions: lets a program save and stop when a scheduler warns it before the end (SIGTERM of Kubernetes
// and Slurm, SIGUSR1 of sbatch --signal).
#pragma once

#include <memory>

#include "core/system/exit_codes.h"  // kInterrupted, what a program returns that was interrupted and has saved

namespace oneflow_like {

class Job;
class Launcher;

// While this object lives, SIGTERM and SIGUSR1 are recorded and do not end the program. Handlers installed
// before run, too; a handler installed later replaces this one; an ignored signal stays ignored. A second
// SIGTERM ends the program at once. (A copy of --processes may receive SIGTERM twice, from the launcher and
// from a scheduler that signals all processes; there a second one to the launcher ends all.) One object at a
// time.
class Interruptions {
 public:
  // `launcher` must outlive this object.
  explicit Interruptions(const Launcher& launcher);
  // Restores the previous handling of the signals, also for one received since the last Agreed(), unless
  // Agreed() was true, after which the program is to end.
  ~Interruptions();
  Interruptions(const Interruptions&) = delete;
  Interruptions& operator=(const Interruptions&) = delete;

  // Whether a process of the job was interrupted: the same answer on all of them. In a job it is collective
  // and costs an exchange through process 0; call it between steps. Throws Error when the job has failed.
  bool Agreed();

 private:
  std::shared_ptr<Job> job_;
  bool agreed_ = false;
};

}  // namespace oneflow_like
