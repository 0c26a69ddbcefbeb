// Checks on files before anything is written.
#pragma once

#include <string>
#include <vector>

namespace oneflow_like {

// The reason why `path` cannot be written, in the system's words; empty when it can. The check creates and
// empties nothing.
std::string WhyNotWritable(const std::string& path);

// An identity of the regular file at `path`, which need not exist yet: equal for two paths to one file
// (another spelling, a link). Empty for a path without contents to destroy: a terminal, a pipe, /dev/null, a
// folder.
std::string FileIdentity(const std::string& path);

struct NamedFile {
  std::string what;  // "--text=a.txt", for error messages
  std::string path;
};

// Throws Error when an output is the same file as an input or another output; it names both.
void RequireDistinct(const std::vector<NamedFile>& inputs, const std::vector<NamedFile>& outputs);

}  // namespace oneflow_like
