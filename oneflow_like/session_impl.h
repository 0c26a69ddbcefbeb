// What a Session holds: the compiled graph, and the runtime once a step has been asked for.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "compiler/compile.h"
#include "oneflow_like/model_impl.h"
#include "oneflow_like/session.h"

namespace oneflow_like {

struct Session::Impl {
  std::shared_ptr<ModelImpl> model;  // first, so that it goes last
  Compiled compiled;
  SessionOptions options;
  std::set<std::string> outputs;
  std::string finite;       // output that must be finite, empty for none
  std::string input_graph;  // with a job: GraphLines before compilation, which all processes must have alike
  std::unique_ptr<Runtime> runtime;
  bool closed = false;

  ~Impl();  // Close(); an Error is logged
  // Ends steps in flight and writes the trace, the first time. Throws Error when that file cannot be written.
  void Close();
  // Plans of the ranks hosted here, their memory, kernels and actors; the first time.
  void Load();
  void DumpPlan(const plan::Plan& plan) const;
};

// What ProfileText gives.
std::string ToText(const StepProfile& profile, const std::string& session);

}  // namespace oneflow_like
