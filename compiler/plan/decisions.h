// Decisions: all that may be chosen about a plan, as one value. Searches compare such values, compilation
// takes one, and its text repeats a plan on any machine.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/graph/offload.h"
#include "compiler/graph/overlap.h"
#include "compiler/graph/pipeline_schedule.h"
#include "compiler/graph/regions.h"
#include "compiler/graph/variable_cuts.h"
#include "core/dtype.h"
#include "sbp/collective_cost.h"
#include "sbp/mesh.h"

namespace oneflow_like {

// The largest numbers of a plan: for flags, for users of the library and for texts.
inline constexpr int kMostMicroBatches = 1 << 16;
inline constexpr int kMostRounds = 1000;  // virtual stages
inline constexpr int kMostChunks = 64;    // Overlap::chunks
inline constexpr int kMostAhead = 1000;   // layers: `prefetch`
inline constexpr int64_t kMostLogitRows = 1 << 20;

// How values of a region that its gradients read wait for them, by the region's path: kNone keeps them,
// kGather keeps what messages made them of and sends these again, kHost lets them wait on the host, and the
// others compute them again. Never kAuto.
using Waits = std::map<std::string, Recompute>;
// Blocks of each stage in each round, by the path of the first block of their stack (nn::layers).
using StageCuts = std::map<std::string, std::vector<int64_t>>;

struct Decisions {
  Mesh mesh;
  int micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  bool exact_groups = false;  // of an interleaved schedule: ScheduleOf
  int virtual_stages = 1;
  int zero = 0;                            // stage of ZeRO; 0: none
  std::string zero_axis = "dp";            // that it cuts variables over, or several (Mesh::FindAxes)
  int64_t zero_small = 4096;               // most elements of a variable that ZeRO leaves whole
  Recompute recompute = Recompute::kNone;  // of regions that `waits` leaves out
  Offload offload = {};                    // what waits in the memory of the host
  bool sequence_parallel = false;          // between products, sequences are cut over tp
  bool context_parallel = false;           // sequences are cut over cp
  bool ulysses = false;                    // and over sp, in attention heads
  int64_t logits_tile = 0;                 // rows of logits that exist at a time; 0: all
  // Of messages. Empty: not decided, as in the plans of older builds; the session's options count.
  std::optional<DType> reduce_dtype = {};  // type of sums of gradients over devices
  std::string reduce_axis = {};            // along which they are of that type, or several; empty: all
  std::optional<Overlap> overlap = {};     // of products with messages
  std::optional<int64_t> bucket = {};      // bytes up to which small messages are joined; 0: none are
  std::optional<int> prefetch = {};        // layers ahead for which weights are gathered, or copied
  std::optional<WantedAlgorithms> algorithms = {};  // of collectives, in place of the cheapest
  StageCuts stages = {};                            // of stacks without a division of their own (nn::layers)
  VariableCuts cuts = {};                           // of weights whose cuts were chosen
  Waits waits = {};

  bool operator==(const Decisions&) const = default;
};
// The mesh axes that ZeRO cuts variables over.
MeshAxes ZeroAxes(const Decisions& decisions);

// The decisions of one session, for whom they were made and on what: a file of --save_plan.
struct SavedPlan {
  Decisions decisions;
  std::string model;    // Model::WeightsMark
  std::string machine;  // MachineText: what is assumed of devices and links
  bool tf32 = false;    // products in fp32 took the time of those that round to TF32
  // The numbers of the lines that were read, for messages. The key is the line's first word ("zero"), and its
  // name, too, if a plan has several such lines ("weight block0/mlp/up").
  std::map<std::string, int> lines = {};
};
std::string ToText(const SavedPlan& plan);
// "tp:S0,dp:S1*", with a '*' after what is only stored so; "whole".
std::string ToText(const Mesh& mesh, const VariableCut& cut);
// Throws Error, with the number of the line, for what is no such text.
SavedPlan ParseSavedPlan(const std::string& text);

}  // namespace oneflow_like
