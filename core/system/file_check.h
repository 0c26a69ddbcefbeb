// Checks on files before anything is written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oneflow_like {

// The reason why `path` cannot be written, in the system's words; empty when it can. The check creates and
// empties nothing.
std::string WhyNotWritable(const std::string& path);

// The reason why `path` is no regular file of at most `most` bytes that can be read; empty when it is one. A
// pipe is none: nobody may ever write it, and a file that is read several times must not be empty afterwards.
std::string WhyNotReadable(const std::string& path, int64_t most);

// An identity of the regular file at `path`, which need not exist yet: equal for two paths to one file
// (another spelling, a link). Empty for a path without contents to destroy: a terminal, a pipe, /dev/null, a
// folder.
std::string FileIdentity(const std::string& path);

// From here on a write beyond the limit of a file's size (ulimit -f) fails with "File too large" instead of
// ending the program by SIGXFSZ, unless the program handles that signal itself.
void ReportFileSizeLimit();

struct NamedFile {
  std::string what;  // "--text=a.txt", for error messages
  std::string path;
};

// Throws Error when an output is the same file as an input or another output; it names both. An input may be
// a folder: an output may then not be one of the files that programs read from folders, by its name (tensors,
// configs and words of models, pictures), whether it is there yet or not, nor what links in the folder and in
// those directly below it point to.
void RequireDistinct(const std::vector<NamedFile>& inputs, const std::vector<NamedFile>& outputs);

// Makes `text` the contents of `path`: writes it beside, syncs it and renames it, so that a full disk, a
// limit or a kill leaves the former file, or none. A link stays and its target is replaced; what has no
// contents to keep (a pipe, /dev/stdout) is written as it is, and so is a file in a folder that we may not
// write. Throws WriteError with the system's reason, beginning with `what`.
void ReplaceFile(const std::string& path, const std::string& text, const std::string& what);

}  // namespace oneflow_like
