// Checks that the processes of a job agree before a session runs: each was started by a command of its own,
// so options and models may differ by mistake. A text has a line for each thing that must be equal;
// session/agreement_text.h makes that of a session.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/hash_bytes.h"

namespace oneflow_like {

class Job;

std::vector<std::string> Lines(const std::string& text);
// The line of an option, "option --seed=1". `value` has no line break.
std::string OptionLine(const std::string& name, const std::string& value);

// Empty when all texts (by process) are equal, else the first line that differs, with the values of process 0
// and of the first process that differs from it: "option --seed: process 0 has 1, process 2 has 7".
std::string FirstDifference(const std::vector<std::string>& texts);

// Compares the flags of Launcher that must be the same on all processes (name and value), without those that
// sessions compare (--mesh, --seed). Collective. Throws Error, on all processes, naming the first flag that
// differs, both values and both processes.
void RequireSameFlags(Job* job, const std::vector<std::pair<std::string, std::string>>& flags);

// Collective. Throws Error, on all processes, naming `what` ("session train") and the first difference,
// unless `text` is the same on all.
void RequireAgreement(Job* job, const std::string& what, const std::string& text);

}  // namespace oneflow_like
