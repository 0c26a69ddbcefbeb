// Simulate: predicts the time and memory of a session's steps on a machine that is only described. The
// runtime's own actors execute the session's plans on a virtual clock (actor/virtual_time.h), so acts,
// credits and orders are those of a real run. No device, no data and no memory for tensors is needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/cost/machine.h"
#include "oneflow_like/model/topology_file.h"
#include "oneflow_like/session.h"

namespace oneflow_like {

struct SimulateOptions {
  // Number of steps to simulate (at least 2); the result is that of the last one.
  int steps = 3;
  // Steps with more acts than this, over all stages, are long: of such steps only two are simulated, if the
  // second takes as long as the first.
  int64_t many_acts = 1 << 18;
  // Trace of all simulated steps, in the format of ModelOptions::trace_file. Empty: none is written.
  std::string trace_file;
  // Number of steps that overlap. 0: that of the session.
  int steps_in_flight = 0;
  // Largest number of ranks that are simulated one by one. On a larger mesh the first rank of each pipeline
  // stage stands for all ranks of the stage: it has the largest parts of tensors.
  int most_ranks = 16;
  // Processes that share the host and the mesh equally, each with as many threads as Session would start
  // there. Used on a machine with `threads` only.
  int processes = 1;
};

// The rank of a stage that uses most memory, in the last simulated step.
struct SimulatedStage {
  std::string stage;  // "pp=1"; empty without stages
  int rank = 0;
  // Seconds in which a kernel runs, in which only messages are under way, and in which neither is. Their sum
  // is the step.
  double compute = 0, communication = 0, bubble = 0;
  RankSummary memory;
};

struct Simulated {
  double seconds = 0;        // duration of the last step
  double first_seconds = 0;  // duration of the first step
  int devices = 0;
  double model_flops = 0;   // floating-point operations of a step, each product counted once
  double flops = 0;         // operations that all devices execute, including what is recomputed
  double plain_flops = -1;  // part of `flops` on plain cores of cuda devices; -1: there are no such devices
  double mfu = 0;           // model_flops as a share of what the devices could do in that time
  int64_t acts = 0;         // acts of a step; ranks that do the same part of it count once
  uint64_t plan_hash = 0;   // hash of what the simulated ranks execute; equal for equal plans
  std::vector<SimulatedStage> stages;
  // Sentences about stages that do not fit into the device's memory, and about operators that execute more
  // than 1 % of the operations on plain cores.
  std::vector<std::string> warnings;

  // Returns the result as text for one screen. `per_step` is the number of units that a step processes, for
  // rates, and `unit` their name: 2048, "tokens". 0: no rates.
  std::string Text(double per_step, const std::string& unit) const;
};

// Simulates steps of the session on the machine. Throws Error if the machine has fewer devices than the mesh,
// if the processes cannot share it equally, if the steps together take longer than 26 days, or if the trace
// cannot be written.
Simulated Simulate(const Session& session, const Machine& machine, const SimulateOptions& options = {});

}  // namespace oneflow_like
