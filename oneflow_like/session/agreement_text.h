// What the processes of a job must have alike of a session, as text.
#pragma once

#include <string>

#include "compiler/graph/graph.h"
#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

// The nodes of a graph, one line each: "h0/up = ... f32[64,256] at gpt.cc:31".
std::string GraphLines(const Graph& graph);

// The machine that plans are made for, whatever its file is called here; one line.
std::string MachineText(const Machine& machine);

// One line for each thing that must be equal: library, options, the graph before compilation, the result of
// compiling it. REQUIRES: the session's model has a job.
std::string AgreementText(const Session::Impl& session);

}  // namespace oneflow_like
