// What the processes of a job must have in common before a session runs: they were started with one command
// each, so options and models may differ by mistake.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compiler/graph.h"
#include "oneflow_like/session_impl.h"

namespace oneflow_like {

// The nodes of a graph, one line each: "h0/up = ... f32[64,256] at gpt.cc:31".
std::string GraphLines(const Graph& graph);

// One line for each thing that must be equal: library, options, the graph before compilation, what came of
// it. REQUIRES: the session's model has a job.
std::string AgreementText(const Session::Impl& session);

// Empty when all texts (by process) are equal, else the first line that differs, of process 0 and of the
// first that has another: "option --seed: process 0 has 1, process 2 has 7".
std::string FirstDifference(const std::vector<std::string>& texts);

// The flags of Launcher that all processes must be given alike, name and value; those that sessions compare
// (--mesh, --seed) are left out. All processes call it. Throws Error, on all of them, naming the first that
// differs, both values and both processes.
void RequireSameFlags(Job* job, const std::vector<std::pair<std::string, std::string>>& flags);

// All processes call it. Throws Error, on all of them, naming the session and the first difference.
void RequireAgreement(const Session::Impl& session);

}  // namespace oneflow_like
