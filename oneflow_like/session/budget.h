// The bytes that a session may take of each device, and the refusal of a plan that takes more.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/search/candidate_pool.h"
#include "oneflow_like/session/asked.h"

namespace oneflow_like {

struct Budget {
  int64_t bytes = 0;  // of a device; 0: any
  // Whether recomputation of some region is left to the compiler: the budget is then
  // ModelOptions::memory_budget, or else the memory that a topology file gives a device. Otherwise it is the
  // first alone.
  bool waits = false;
  bool cuts = false;  // whether the cuts of weights are left to the compiler
  BytesBeside beside = {};
};

// Throws Error if recomputation is left to the compiler and nothing says in how many bytes. `graph` is one of
// GraphOf.
Budget BudgetOf(const Asked& asked, const Graph& graph);

// Time and memory of a plan.
struct Verdict {
  double seconds = 0;  // of a step
  int64_t bytes = 0;   // of the fullest device
};
// Returns a hopeful estimate of the seconds of a plan that fits into `memory` and lies between these plans,
// which differ in what is recomputed: a point on the line between one that fits and one that does not.
// Infinite if none fits.
double HopeBetween(const std::vector<Verdict>& alike, int64_t memory);

// Throws Error if a search for what fits (recomputation, cuts of weights) would be in vain: what devices keep
// of variables is on average more than the budget. `placed` has come through place_stages. For large graphs:
// a search through smaller ones tells the least there is.
void CheckVariables(const Asked& asked, const Budget& budget, const Graph& placed,
                    const CompileOptions& options);
// Whether searches that compile many plans of such a graph are long.
bool IsLarge(const Graph& placed);

// Throws Error with what the fullest rank holds if that is more than the budget. `tried`: choices of cuts of
// weights of which this is the smallest; 0: there was no choice.
void CheckBudget(const Asked& asked, const Budget& budget, int tried, const Session& session);

}  // namespace oneflow_like
