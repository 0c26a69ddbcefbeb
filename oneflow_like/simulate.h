// Prediction: the plans of a session, run by the runtime on a machine that is only described. No device, no
// data and no memory for tensors is needed, and what is predicted is what would be executed: acts, credits
// and orders are those of the real plans, on a virtual clock (actor/virtual_time.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/cost/machine.h"
#include "oneflow_like/model/topology_file.h"
#include "oneflow_like/session.h"

namespace oneflow_like {

struct SimulateOptions {
  int steps = 3;  // simulated, at least 2; the result is that of the last one
  // Of steps of more acts, of all stages, two are simulated where the second takes as long as the first.
  int64_t many_acts = 1 << 18;
  std::string trace_file;   // as ModelOptions::trace_file, of all these steps; empty: none
  int steps_in_flight = 0;  // 0: the session's
  // Of a mesh of more devices one rank of each pipeline stage acts for the others, which do the same: pieces
  // are those of the first, the largest.
  int most_ranks = 16;
  // On a machine with `threads`: processes that share the host and the mesh equally, each with threads of its
  // own, as many as Session would start there.
  int processes = 1;
};

// Of the ranks of a stage the one that holds most, in the last step: it computes, or only messages are under
// way, or neither.
struct SimulatedStage {
  std::string stage;  // "pp=1", empty without stages
  int rank = 0;
  double compute = 0, communication = 0, bubble = 0;  // seconds; together the step
  RankSummary memory;
};

struct Simulated {
  double seconds = 0;        // of a step
  double first_seconds = 0;  // of the first one
  int devices = 0;
  double model_flops = 0;   // of a step, each product counted once
  double flops = 0;         // that all devices do, with what is computed again
  double plain_flops = -1;  // of these, those on plain cores of cuda devices; -1: there are no such devices
  double mfu = 0;           // model_flops of what the devices could do
  int64_t acts = 0;         // of a step, each once for all ranks that do the same part of it
  uint64_t plan_hash = 0;   // of what simulated ranks execute: sessions of one hash are one plan
  std::vector<SimulatedStage> stages;
  // Stages that do not fit the device's memory; and who does more than a hundredth of the operations on plain
  // cores.
  std::vector<std::string> warnings;

  // On one screen. `per_step`: what rates count, of a step, and its name: 2048 "tokens"; 0: none.
  std::string Text(double per_step, const std::string& unit) const;
};

// Throws Error: a machine with fewer devices than the mesh, processes that cannot share it equally, steps
// that together take longer than 26 days, or a file that cannot be written.
Simulated Simulate(const Session& session, const Machine& machine, const SimulateOptions& options = {});

}  // namespace oneflow_like
