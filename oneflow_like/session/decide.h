// Decides what a session leaves open about its plan. Alternatives are compiled from copies of its graph; the
// session itself is compiled once all is decided.
#pragma once

#include <functional>
#include <string>

#include "compiler/plan/decisions.h"
#include "oneflow_like/session/budget.h"

namespace oneflow_like {

struct Decided {
  Decisions decisions;
  int tried = 0;                // choices of cuts of weights that were compared; 0: there was no choice
  std::string next_waits = {};  // what the next best ways to wait lose by; empty: there was no choice
  std::string cuts_text = {};   // Model::CutsText
  std::function<std::string()> cut_reasons = {};  // on process 0
};

// Returns the fastest plan found that fits, or the smallest if none does. Changes nothing of the model.
// Collective if something is open: process 0 decides, and the others receive its result or its Error.
Decided Decide(const Asked& asked, const Budget& budget);

}  // namespace oneflow_like
