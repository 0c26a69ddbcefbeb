// The one search for a plan of a session: what is left open is decided on copies, and compiled once decided.
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

// The fastest plan that was found to fit, or the smallest where none was. Nothing of the model changes.
// Collective where something is open: process 0 decides, and all get what it has found, or its Error.
Decided Decide(const Asked& asked, const Budget& budget);

}  // namespace oneflow_like
