// Questions about files that are asked before anything is written.
#pragma once

#include <string>
#include <vector>

namespace oneflow_like {

// Why `path` cannot be written, in the system's words; empty when it can. Nothing is created or emptied by
// asking.
std::string WhyNotWritable(const std::string& path);

// A name of the regular file at `path`, which need not exist yet: two paths to one file (another spelling, a
// link) give the same. Empty for what has no contents to destroy: a terminal, a pipe, /dev/null, a folder.
std::string FileIdentity(const std::string& path);

struct NamedFile {
  std::string what;  // "--text=a.txt", for error messages
  std::string path;
};

// Throws Error when an output is the same file as an input or another output; it names both.
void RequireDistinct(const std::vector<NamedFile>& inputs, const std::vector<NamedFile>& outputs);

}  // namespace oneflow_like
