// --processes=N: starts N copies of this program on this machine and remains as their parent: labels their
// output, ends the others when one fails, restarts all when one is lost (--restarts), and returns one exit
// code. Also the label itself, for other launchers.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace oneflow_like {

struct LocalJob {
  int processes = 2;
  std::vector<std::string> argv;  // of the copies; argv[0] is the program
  double grace = 10;              // seconds for the others to end by themselves after one has failed
  std::string log_dir;            // not empty: process k's output also goes to <log_dir>/process<k>.log
  int restarts = 0;               // how often all copies are restarted after some were lost
  // Changes `job` to the processes that remain after `lost` were lost, before the restart, and returns the
  // end of the line that announces it. May throw Error: too few remain. Empty: all are restarted.
  std::function<std::string(int lost, LocalJob* job)> shrink;
};

// Returns the job's exit code: 0 when all returned 0, else that of the first to fail (128 + signal when
// killed), or 1 when their output could not be written. 75 (EX_TEMPFAIL: an interrupted program has saved)
// counts only when none has failed in another way. Lines of the children are printed whole, those of process
// k > 0 as "[k] line"; a terminal's \r progress of process 0 passes through. Signals are passed on (INT,
// TERM, HUP, QUIT, USR1, USR2, ALRM, XCPU, CONT, and TSTP, which stops this process, too): they have the same
// effect on all copies as on a single program, handlers included. A second one of the first four kills. No
// child outlives this process (PR_SET_PDEATHSIG), and no port or file is left. Throws Error when a process
// cannot be started or a log cannot be written. Call it before this process creates threads.
//
// A copy is lost when it is killed by a signal that this process has not passed on, or has not ended `grace`
// after another's failure. One that exits with an error is not, because it would fail again. When the last
// has ended after a loss, all are restarted, as new processes of a new job with a new secret, and their logs
// are appended to. There is no restart after INT, TERM, HUP or QUIT.
int RunLocalJob(const LocalJob& job);

// While it lives (or until exit), the standard output and error of this process are printed as whole lines
// that begin with "[process] ". Does nothing under --processes, whose parent adds labels. A copy of this
// process (fork) relays, so text written before a crash is printed as well: create it before other threads.
// One at a time.
class LabelledOutput {
 public:
  explicit LabelledOutput(int process);
  ~LabelledOutput();  // relays the rest, restores both descriptors
  // Writes directly to the real standard error, bypassing the labelling copy, as one write.
  // Async-signal-safe.
  void WriteDirectly(const std::string& line) const;

 private:
  struct Impl;
  Impl* impl_ = nullptr;
};

}  // namespace oneflow_like
