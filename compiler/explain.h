// Describes a compiled graph for people: estimated times, each boxing with its price and its reason, the work
// of each rank, and the purposes of memory. Nothing is run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compiler/compile.h"

namespace oneflow_like {

// One step of boxing: a change of layout, as it is carried out.
struct BoxingPrice {
  int node = -1;
  std::string primitive;  // "all_reduce"
  std::string algorithm;  // "ring", "two_level of 8"; empty: its ranks have no choice
  std::string value;      // the value that is changed: "h0/up"
  std::string from, to;   // "{dp:S0,tp:B}"
  std::string why;        // the reader that needs it
  std::string gathered;   // for a weight that is gathered despite its annotation: the reason
  double bytes = 0;       // between ranks, of one step of training, over the whole mesh
  double seconds = 0;     // estimated, of all its acts in a step
};
// All boxings, most expensive first; or only those of gathered weights.
std::vector<BoxingPrice> PricesOfBoxing(const Compiled& compiled, bool gathered_alone = false);

// Estimated computing time of a stage's ranks in a step, and their idle share.
struct StageTime {
  std::string stage;   // "pp=1", empty without stages
  double seconds = 0;  // computing
  double bubble = 0;   // part of the step in which it computes nothing
};
std::vector<StageTime> TimesOfStages(const Compiled& compiled);
// The stage of a rank: its coordinates on the mesh axes that fix a slice; "pp=1", empty without stages.
std::string StageOf(const Compiled& compiled, int rank);

// The work of a rank in a step.
struct RankWork {
  double flops = 0;
  double heavy_flops = 0;  // of products and attention
};
RankWork WorkOfRank(const Compiled& compiled, int rank);
// Flops of a step's products, attention and convolutions on the whole batch, each counted once: without
// duplicates on other devices and without recomputation.
double ModelFlops(const Compiled& compiled);
// Products overlapped with their collectives (chunk_products.cc), counted by their first chunks, and
// gradients of weights that are computed while other sums are sent.
struct Overlapped {
  std::vector<int> products, behind;
};
Overlapped OverlappedIn(const Compiled& compiled);

// The purpose of bytes.
enum class Purpose { kWeights, kOptimizerState, kGradients, kNarrowCopies, kGathered, kStash, kOther };
constexpr int kPurposes = 7;
const char* Name(Purpose purpose);  // "optimizer state"
// The purposes of all buffers of the logical plan. A weight's narrow copy is its cast to a narrower type; a
// gathered weight has the pieces of several ranks; a stash is a value that a forward act keeps for a backward
// one.
std::vector<Purpose> PurposesOf(const Compiled& compiled);

}  // namespace oneflow_like
