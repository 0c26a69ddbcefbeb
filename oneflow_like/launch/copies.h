// The copies of a program that --processes and --restarts start on this machine.
#pragma once

#include <string>
#include <vector>

#include "actor/net/rendezvous/identity.h"
#include "oneflow_like/launcher.h"

namespace oneflow_like {

// Logs are opened before the program can tell which files it reads: none of them may be a value of a flag, or
// match one. Throws Error.
void CheckLogs(const std::vector<std::string>& logs);

// Starts the copies. Returns their exit code. Throws Error where another launcher has started this process.
int RunCopies(const ProcessIdentity& identity, const std::vector<std::string>& argv, const std::string& mesh,
              const ProgramFlags& program);

// Messages between processes are measured, too, which takes two of them.
int CalibrateByTwo(const ProcessIdentity& identity, std::vector<std::string> argv);

}  // namespace oneflow_like
