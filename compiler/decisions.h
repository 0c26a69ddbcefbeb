// Decisions: all that may be chosen about a plan, as one value. Searches compare such values, compilation
// takes one, and its text repeats a plan on any machine.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compiler/graph/pipeline_schedule.h"
#include "compiler/graph/regions.h"
#include "compiler/graph/variable_cuts.h"
#include "sbp/mesh.h"

namespace oneflow_like {

// How values of a region that its gradients read wait for them, by the region's path: kNone keeps them, and
// the others compute them again. Never kAuto.
using Waits = std::map<std::string, Recompute>;
// Blocks of each stage in each round, by the path of the first block of their stack (nn::layers).
using StageCuts = std::map<std::string, std::vector<int64_t>>;

struct Decisions {
  Mesh mesh;
  int micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int virtual_stages = 1;
  int zero = 0;                            // stage of ZeRO; 0: none
  Recompute recompute = Recompute::kNone;  // of regions that `waits` leaves out
  bool sequence_parallel = false;          // between products, sequences are cut over tp
  StageCuts stages = {};                   // of stacks that are not divided by hand
  VariableCuts cuts = {};                  // of weights whose cuts were chosen
  Waits waits = {};

  bool operator==(const Decisions&) const = default;
};

// The decisions of one session, for whom they were made and on what: a file of --save_plan.
struct SavedPlan {
  Decisions decisions;
  std::string model;    // ModelMark of its weights
  std::string machine;  // Hexadecimal of what is assumed of devices and links
};
std::string ToText(const SavedPlan& plan);
// Throws Error, with the number of the line, for what is no such text.
SavedPlan ParseSavedPlan(const std::string& text);

}  // namespace oneflow_like
