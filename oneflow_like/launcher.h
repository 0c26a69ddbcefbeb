// Launcher: main() begins by creating one. It owns the flags that every program of this library has, finds
// the other processes of the program when there are several, and turns mistakes into one sentence and a
// non-zero exit code.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "oneflow_like/flags.h"
#include "oneflow_like/model.h"
#include "oneflow_like/session.h"

namespace oneflow_like {

class LabelledOutput;  // actor/net/launch/local_launcher.h
class RunFolder;       // oneflow_like/launch/run_folder.h
class StallWatch;      // oneflow_like/job/stalls.h

// What a program tells its Launcher of the program's own flags, once they are parsed.
struct ProgramFlags {
  bool simulates = false;  // plans run on a virtual clock: no process is started
  int64_t chosen_mesh_devices =
      0;                      // the program chooses a mesh of that many; 0: it has the one that is given
  std::string chosen_by;      // the flag and its value that say so
  bool saves = false;         // it can save checkpoints and continue from them
  std::string save_folder;    // where to; empty: the user did not ask for it
  bool local = false;         // a checkpoint's parts are on several hosts
  int64_t batch = 0;          // global; 0: unknown
  int64_t micro_batches = 0;  // 0: the program has no flag --micro_batches
  // Further files that are read, and folders of models, checkpoints or pictures: flag, path.
  std::vector<std::pair<std::string, std::string>> inputs;
  std::vector<std::pair<std::string, std::string>> outputs;  // and that the main process writes
};

// Its flags are the first three groups of docs/flags.md. A program adds groups of its own entries
// (oneflow_like/flags.h), and may define flags by gflags' macros; where such a flag has the name of one of
// Launcher's, the program's counts and Launcher's keeps its default.
//
// SIGQUIT prints which part waits for what, and so does --stall_seconds when nothing moves
// (oneflow_like/job/stalls.h).
//
// A program runs unchanged as several processes, each with an equal share of the mesh: started by
// --processes=N on this machine, or by mpirun, srun, torchrun or Kubernetes, whose environment variables
// number the processes (actor/net/rendezvous/identity.h). Nothing else of the library reads the environment.
class Launcher {
 public:
  // Registers `groups` and parses all flags, also the program's own. An unknown flag, or one of the wrong
  // type or outside its range, ends the program with a message and kUsageError (core/system/exit_codes.h);
  // --help, --help=GROUP, --helpfull (also glog's and gflags' flags) and --version end it with 0. With
  // --processes or --restarts the constructor starts the copies and ends with their exit code; in a copy it
  // returns once all copies have found one another. --restarts is refused in a program that saves nothing;
  // --elastic overrides --mesh, --processes and, if the program has it, --micro_batches
  // (oneflow_like/job/elastic.h). A number of processes that cannot share --mesh equally is refused before
  // any is started; `default_mesh` is the default that the program passes to mesh(). `flags` is called after
  // parsing, and again after --out has set flags.
  Launcher(int* argc, char*** argv, const std::string& usage, const std::string& default_mesh = "",
           const std::function<ProgramFlags()>& flags = {}, const std::vector<FlagGroup>& groups = {});
  ~Launcher();
  Launcher(const Launcher&) = delete;
  // The mesh of --mesh (default: `otherwise`) with the given axes, in this order unless the flag has another
  // one: devices are numbered so that neighbours differ along the last axis. Axes that the flag leaves out
  // have extent 1. `optional` axes follow if the flag has them. A group of the flag may stand for any of
  // these; its axes then follow in its place. Any other axis is an Error.
  Mesh mesh(const std::vector<std::string>& axes, const std::string& otherwise,
            const std::vector<std::string>& optional = {}) const;
  ModelOptions model_options() const;
  // Checks files that the program reads and writes by its flags (flag, path), before the first is opened for
  // writing: an output that is the same file as an input, one that is read from a folder among the inputs,
  // another output, --trace, --report, or the target of standard output, or that cannot be written, is an
  // Error. Nothing is created or emptied. On processes other than the main one, `outputs` are ignored.
  using FlagFile = std::pair<std::string, std::string>;
  void CheckFiles(const std::vector<FlagFile>& inputs, const std::vector<FlagFile>& outputs) const;
  // Collective. Throws Error if processes were given different values of a flag, the program's or Launcher's;
  // the message names the flag and both values. The exceptions are those in `own` and those whose entries
  // have kPerProcess.
  void RequireSameFlags(const std::vector<std::string>& own = {}) const;
  // --data_threads: threads of a DataPipeline (oneflow_like/data/pipeline.h). Default: the cores that kernels
  // leave, at least one; on a mesh of GPUs all but one for each GPU of this process.
  int data_threads() const;
  // The same on a mesh that is not --mesh's: a plan's, or a program's own.
  int data_threads(const Mesh& mesh) const;
  bool dry_run() const;
  bool explain() const;
  // Whether this process prints and writes results: the only process, or number 0.
  bool main_process() const;
  // printf on the main process only.
  void Print(const char* format, ...) const __attribute__((format(printf, 2, 3)));
  // Whether --restarts has started this program again: it continues from its newest checkpoint, if it has
  // saved one.
  bool restarted() const;
  // Whether --processes or --restarts has started this process: another one is its parent and prints for it.
  bool copy() const { return one_output_; }
  // Whether the main process prints to a terminal, also through --processes.
  bool terminal() const { return terminal_; }
  // Runs the program's body and returns the exit code; with --calibrate measures the machine (calibrate.h)
  // instead. An Error (or std::exception), or a failure to write
  // standard output, is printed as "error: ..." after the other processes have been told of it. The code is
  // then kUsageError if no session of a model with model_options() has been compiled yet, because up to there
  // the program checks flags and files and builds what they ask for, and for a UsageError, and else
  // kRunError. All processes end with the code of the first to fail, or with kLostPeer if one is lost. At the
  // end the processes' traces are joined.
  int Main(const std::function<int()>& body) const;

 private:
  void StartLog(const std::string& program, int process, bool alone);
  // `config` is for --out; empty: there is none, or nothing is run.
  void Join(const std::vector<std::string>& argv, const std::string& mesh, const std::string& config);
  void JoinTraces() const;
  int CalibrateHere() const;
  int EndWith(const std::exception& error, int code) const;

  const std::function<ProgramFlags()> program_;
  const std::vector<std::string> given_;   // the command line
  std::unique_ptr<RunFolder> folder_;      // of --out, in one process of the job
  std::unique_ptr<LabelledOutput> label_;  // of a process > 0 whose launcher adds no labels
  std::shared_ptr<Job> job_;
  std::shared_ptr<StallWatch> stalls_;
  std::string log_file_;  // of glog, with --log_dir
  bool terminal_ = false;
  bool one_output_ = false;  // the output of all processes is read together
  const std::shared_ptr<std::atomic<bool>> begun_ = std::make_shared<std::atomic<bool>>(false);
};

// host[i] as tensors: copies `values` (row-major).
template <typename T>
HostTensor ToHost(const std::vector<T>& values, const Dims& shape);

// One line on the terminal that rewrites itself (occasional lines when standard output is not a terminal).
// Prints on the main process only.
class ProgressLine {
 public:
  // `launcher` must outlive this object.
  explicit ProgressLine(const Launcher& launcher) : launcher_(launcher) {}
  void Update(const std::string& text);
  void End();

 private:
  const Launcher& launcher_;
  size_t width_ = 0;
  double last_ = 0;
};

}  // namespace oneflow_like
