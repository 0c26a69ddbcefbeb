// Errors at the start of a program, before its processes have met.
#pragma once

#include <string>
#include <vector>

namespace oneflow_like {

// `message` as it may be printed: what it repeats of a user's word is on one line, and nothing commands a
// terminal. The lines of a message of our own, such as a table of memory, stay. `given`: the command line.
std::string Plain(std::string message, const std::vector<std::string>& given);

// "error: ..." behind what standard output has.
void PrintError(const std::string& message);

// This process of a job ends before it has met the others: they learn why instead of waiting for it. Not
// where PMIx would have to be asked who the others are: its launchers end them.
void TellOthers(const std::string& why);

// gflags prints what is wrong with a flag, and ends the program. While this lives, what is printed to
// standard error is kept for TellOthers, then printed.
class FlagErrors {
 public:
  FlagErrors();
  ~FlagErrors();
  FlagErrors(const FlagErrors&) = delete;
};

}  // namespace oneflow_like
