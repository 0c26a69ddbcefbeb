// The text of --help: a program's flags and those of Launcher, grouped, each with its default.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oneflow_like {

// A number as people write it: 0.1, not 0.10000000000000001.
std::string ShortNumber(double value);

// `usage` and the flags that are defined so far, in groups: first the program's own (those defined in no
// library), then Launcher's if the program has one. With `all` also those of glog and gflags. Lines of at
// most 110 columns.
std::string HelpText(const std::string& program, const std::string& usage, bool all);

// Name and value of each flag of the program and of Launcher.
std::vector<std::pair<std::string, std::string>> FlagValues();

// Throws Error for the first argument, behind the program's name, that is no flag but is spelled nearly like
// one of these, which it names. Other unknown flags are gflags' to refuse.
void RefuseMisspelt(const std::vector<std::string>& arguments);

}  // namespace oneflow_like
