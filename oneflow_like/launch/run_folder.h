// --config and --out: flags read from a file, and a folder with the flags and the outputs of a run.
#pragma once

#include <memory>
#include <string>

#include "oneflow_like/checkpoint/safetensors.h"

namespace oneflow_like {

// Sets the flags that `file` names and the command line does not. Lines are --name=value, empty, or begin
// with #. A value in double quotes may hold anything: line breaks, tabs, quotes and backslashes stand there
// as in C, other characters as a backslash, x and two hexadecimal digits. Throws Error, which names the line,
// for anything else, for a flag that the program lacks, that is given twice or that takes flags from
// elsewhere
// (--flagfile, --fromenv), and for a value that the flag does not accept.
void ReadConfig(const std::string& file);

// All flags of the program and of Launcher with their values, except --config and --out, in ReadConfig's
// format: defaults, too, because another build may have others.
std::string ConfigText();

// Sets flags for outputs that the command line leaves unset: --log_dir=folder/log, and, in a program that has
// them, --log_json=folder/metrics.jsonl, --tensorboard=folder/tensorboard and --save=folder/checkpoints.
// Unless --load or --load_hf says what to begin with, --resume is the same, so that the command given again
// goes on.
void SendOutputsTo(const std::string& folder);

// The folder of --out while a run uses it.
class RunFolder {
 public:
  // Creates `folder` and writes folder/config, with which --config repeats the run, and folder/build, the
  // output of --version. Throws Error, and leaves the folder unchanged, if a program that has not ended uses
  // it, if it has the config of another run (the message names the flags that differ), or if it has no config
  // but files or checkpoints of the names that a run writes over or goes on from: somebody else's. A write
  // that fails leaves the former config, or none.
  RunFolder(const std::string& folder, const std::string& config, const std::string& build);
  // For a run that was refused before it began: removes what the constructor wrote, so that the corrected
  // command can use the folder. If the folder had the config already, nothing is removed.
  void Withdraw();

 private:
  const std::string folder_;
  std::unique_ptr<FolderLock> lock_;
  bool created_ = false;
};

}  // namespace oneflow_like
