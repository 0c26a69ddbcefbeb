// The text of --help: the flags of a program by group, each with its sentence and its default.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace oneflow_like {

// What gflags is told instead of the file that defines a flag, of every entry (oneflow_like/flags.h).
inline constexpr char kFileOfEntries[] = "entries of oneflow_like";

// A number as people write it: 0.1, not 0.10000000000000001.
std::string ShortNumber(double value);
// The default of a flag as people write it; empty for a flag that the program lacks.
std::string DefaultOf(const std::string& flag);

// What to show: the common flags, all of one group, or all flags, also those of glog and gflags.
struct HelpWanted {
  std::string group;  // "markdown": tables of all groups; empty: not one group
  bool all = false;
};
// `usage` and the flags that are registered so far: groups of entries in the order in which they were
// registered, and first those that the program has defined by gflags' macros. Lines have at most 110 columns.
// Throws Error for a group that the program lacks.
std::string HelpText(const std::string& program, const std::string& usage, const HelpWanted& wanted);

// Throws Error when something that was printed has not come out. `earlier`: the errno of a write before this
// one that failed; 0: unknown.
void FlushOutput(int earlier = 0);
// Prints what --help=GROUP asks for and ends the program; does nothing if no argument is of this form. Call
// it before gflags parses them. Throws as HelpText.
void PrintHelpOfGroup(const std::vector<std::string>& arguments, const std::string& usage);
// The same for --help, --helpfull and --version, after gflags has parsed the arguments.
void PrintHelp(const std::string& program, const std::string& usage);

// Name and value of each flag but those of glog and gflags.
std::vector<std::pair<std::string, std::string>> FlagValues();

// Throws Error for the first argument, behind the program's name, that is no flag but is spelled nearly like
// one of these, which it names. Other unknown flags are gflags' to refuse.
void RefuseMisspelt(const std::vector<std::string>& arguments);

}  // namespace oneflow_like
