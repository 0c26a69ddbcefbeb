// --config and --out: flags read from a file, and a folder with the flags and the outputs of a run.
#pragma once

#include <string>

namespace oneflow_like {

// Sets the flags that `file` names and the command line does not. Lines are --name=value, empty, or begin
// with #. Throws Error, which names the line, for anything else, for a flag that the program lacks, that is
// given twice or that takes flags from elsewhere (--flagfile, --fromenv), and for a value that the flag does
// not accept.
void ReadConfig(const std::string& file);

// All flags of the program and of Launcher with their values, except --config and --out, in ReadConfig's
// format: defaults, too, because another build may have others.
std::string ConfigText();

// Sets flags for outputs that the command line leaves unset: --log_dir=folder/log, and, in a program that has
// them, --log_json=folder/metrics.jsonl, --tensorboard=folder/tensorboard and --save=folder/checkpoints.
// Unless --load or --load_hf says what to begin with, --resume is the same, so that the command given again
// goes on.
void SendOutputsTo(const std::string& folder);

// Creates the folder and writes folder/config, with which --config repeats the run, and folder/build, the
// output of --version. A folder with the config of another run is an Error that names the flags that differ;
// it is left unchanged.
void WriteRunFolder(const std::string& folder, const std::string& config, const std::string& build);

}  // namespace oneflow_like
