// The bytes that a session may take of each device: what the compiler is told of them, and the refusal of a
// plan that takes more.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

// For regions whose recomputation the compiler chooses: ModelOptions::memory_budget, or else the memory that
// a topology file gives a device. Other sessions are compiled without a budget. Throws Error, beginning with
// `who`, if there is such a region and neither says a number.
void SetBudget(const std::string& who, const ModelImpl& model, const Graph& graph, CompileOptions* options);

struct OverBudget : Error {
  OverBudget(const std::string& message, std::vector<int> ranks, int64_t bytes, bool least)
      : Error(message), ranks(std::move(ranks)), bytes(bytes), least(least) {}
  std::vector<int> ranks;  // that take more than the budget; where `least` is known, the fullest
  int64_t bytes;           // that the fullest takes
  bool least;              // no choice of what is computed again takes less on the fullest of them
};

// Throws OverBudget, beginning with `who`, if a search for what fits (recomputation, cuts of weights) would
// be in vain: what devices keep of variables is on average more than the budget. `placed` has come through
// place_stages. For large graphs: a search through smaller ones tells the least there is.
void CheckVariables(const std::string& who, ModelImpl* model, const Graph& placed,
                    const CompileOptions& options);
// Whether searches that compile many plans of such a graph are long.
bool IsLarge(const Graph& placed);

// Throws OverBudget, beginning with `who`, with what the fullest rank holds if that is more than the budget.
void CheckBudget(const std::string& who, const Session& session);

}  // namespace oneflow_like
