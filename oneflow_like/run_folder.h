// --config and --out: flags read from a file, and a folder that holds what a run was and what it left.
#pragma once

#include <string>

namespace oneflow_like {

// Sets the flags that `file` names and the command line does not. Lines are --name=value, empty, or begin
// with #. Throws Error, which names the line, for anything else, for a flag that the program has not, that
// stands twice or takes flags from elsewhere (--flagfile, --fromenv), and for a value that the flag does not
// take.
void ReadConfig(const std::string& file);

// All flags of the program and of Launcher with their values, but for --config and --out, as ReadConfig takes
// them: defaults too, as another build may have others.
std::string ConfigText();

// Brings to `folder` what flags have not sent elsewhere: --log_dir=folder/log, and, of a program that has
// them, --log_json=folder/metrics.jsonl, --tensorboard=folder/tensorboard and --save=folder/checkpoints.
// Unless
// --load or --load_hf says what to begin with, --resume is the same, so that the command given again goes on.
void SendOutputsTo(const std::string& folder);

// Makes the folder and writes folder/config, with which --config repeats the run, and folder/build, what
// --version prints. A folder that holds the config of another run is an Error that names the flags that
// differ, and is left as it is.
void WriteRunFolder(const std::string& folder, const std::string& config, const std::string& build);

}  // namespace oneflow_like
