// --processes=N: starts N copies of this program on this machine and stays as their parent: labels what they
// print, ends the others when one fails, starts all again when one is lost (--restarts), and gives one exit
// code. And the label itself, for other launchers.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace oneflow_like {

struct LocalJob {
  int processes = 2;
  std::vector<std::string> argv;  // of the copies; argv[0] is the program
  double grace = 10;              // seconds that the others get to end by themselves after one has failed
  std::string log_dir;            // not empty: what process k prints also goes to <log_dir>/process<k>.log
  int restarts = 0;               // how often all copies start again after some were lost
  // Makes `job` one for what is left after `lost` of its processes were lost, before they start again, and
  // returns how the line that announces it ends. May throw Error: there is too little left. Empty: all start
  // again.
  std::function<std::string(int lost, LocalJob* job)> shrink;
};

// Returns the job's exit code: 0 when all gave 0, else that of the first to fail (128 + signal when killed),
// or 1 when what they printed could not be written. 75 (EX_TEMPFAIL: an interrupted program has saved) counts
// only when none has failed in another way. Lines of the children come out whole, those of process k
// > 0 as "[k] line"; a terminal's \r progress of process 0 passes through. Signals are passed on (INT, TERM,
// HUP, QUIT, USR1, USR2, ALRM, XCPU, CONT, and TSTP, which stops this process too): they do to all copies
// what they do to a program alone, handlers included. A second one of the first four kills. No child outlives
// this process (PR_SET_PDEATHSIG), and no port or file is left. Throws Error when a process cannot be started
// or a log cannot be written. To be called before this process makes threads.
//
// A copy is lost when it is killed by a signal that this process has not passed on, or has not ended `grace`
// after another's failure. One that exits with an error is not: it would do so again. When the last has ended
// after a loss, all start again, as new processes of a new job with a new secret, whose logs are appended to.
// Not after INT, TERM, HUP or QUIT.
int RunLocalJob(const LocalJob& job);

// From here to its end (or exit), what this process writes to standard output and error comes out as whole
// lines that begin with "[process] ". Does nothing under --processes, whose parent labels. A copy of this
// process (fork) relays, so text written before a crash comes out as well: to be made before other threads
// are. One at a time.
class LabelledOutput {
 public:
  explicit LabelledOutput(int process);
  ~LabelledOutput();  // relays the rest, restores both
  // Past the labelling copy, straight to the real standard error, as one write. Async-signal-safe.
  void WriteDirectly(const std::string& line) const;

 private:
  struct Impl;
  Impl* impl_ = nullptr;
};

}  // namespace oneflow_like
