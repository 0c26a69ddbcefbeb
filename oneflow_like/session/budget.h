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
  bool cuts = false;  // and what weights are cut along
  BytesBeside beside = {};
};

// Throws Error if recomputation is left to the compiler and nothing says in how many bytes. `graph` is one of
// GraphOf.
Budget BudgetOf(const Asked& asked, const Graph& graph);

// What a plan takes.
struct Verdict {
  double seconds = 0;  // of a step
  int64_t bytes = 0;   // of the fullest device
};
// Of plans that differ in what is computed again, the seconds that one between them may hope for: on the line
// between one that fits into `memory` and one that does not. Infinite where none fits.
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
