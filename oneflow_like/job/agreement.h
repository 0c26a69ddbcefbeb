// Checks that the processes of a job agree before a session runs: each was started by a command of its own,
// so options and models may differ by mistake.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compiler/graph/graph.h"
#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

// The nodes of a graph, one line each: "h0/up = ... f32[64,256] at gpt.cc:31".
std::string GraphLines(const Graph& graph);

// One line for each thing that must be equal: library, options, the graph before compilation, the result of
// compiling it. REQUIRES: the session's model has a job.
std::string AgreementText(const Session::Impl& session);

// Empty when all texts (by process) are equal, else the first line that differs, with the values of process 0
// and of the first process that differs from it: "option --seed: process 0 has 1, process 2 has 7".
std::string FirstDifference(const std::vector<std::string>& texts);

// Compares the flags of Launcher that must be the same on all processes (name and value), without those that
// sessions compare (--mesh, --seed). Collective. Throws Error, on all processes, naming the first flag that
// differs, both values and both processes.
void RequireSameFlags(Job* job, const std::vector<std::pair<std::string, std::string>>& flags);

// Collective. Throws Error, on all processes, naming the session and the first difference.
void RequireAgreement(const Session::Impl& session);

}  // namespace oneflow_like
