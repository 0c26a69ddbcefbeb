// What a compiled graph comes to, for people: estimated times, each boxing with its price and its reason, the
// work of each rank, and what memory is for. Nothing is run.
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
  std::string value;      // what is changed: "h0/up"
  std::string from, to;   // "{dp:S0,tp:B}"
  std::string why;        // who wants it
  std::string gathered;   // of a weight that is annotated and gathered all the same: why
  double bytes = 0;       // between ranks, of one step of training, over the whole mesh
  double seconds = 0;     // estimated, of all its acts in a step
};
// All, dearest first; or those of gathered weights alone.
std::vector<BoxingPrice> PricesOfBoxing(const Compiled& compiled, bool gathered_alone = false);

// Estimated time of a step, and how much of it a stage's ranks compute.
struct StageTime {
  std::string stage;   // "pp=1", empty without stages
  double seconds = 0;  // computing
  double bubble = 0;   // part of the step in which it computes nothing
};
std::vector<StageTime> TimesOfStages(const Compiled& compiled);
// The stage of a rank: its coordinates on the mesh axes that fix a slice; "pp=1", empty without stages.
std::string StageOf(const Compiled& compiled, int rank);

// What a rank computes in a step.
struct RankWork {
  double flops = 0;
  double heavy_flops = 0;  // of products and attention
};
RankWork WorkOfRank(const Compiled& compiled, int rank);
// Flops of a step's products, attention and convolutions on the whole batch, each counted once: neither on
// every device that does it too, nor where it is computed again for gradients.
double ModelFlops(const Compiled& compiled);
// How Node::why of what is computed again begins.
inline constexpr char kComputedAgain[] = "computed again for the gradients of ";
// How Node::why of a product begins that stands beside a collective in chunks, and of a gradient that is
// computed while sums of another product are on their way.
inline constexpr char kInChunks[] = "chunk ", kPutBehind[] = "put behind ";

// Products beside their collectives (chunk_products.cc), those of the first chunk alone, and gradients of
// weights that are computed while others' sums travel.
struct Overlapped {
  std::vector<int> products, behind;
};
Overlapped OverlappedIn(const Compiled& compiled);

// What bytes are for.
enum class Purpose { kWeights, kOptimizerState, kGradients, kNarrowCopies, kGathered, kStash, kOther };
constexpr int kPurposes = 7;
const char* Name(Purpose purpose);  // "optimizer state"
// Of all buffers of the logical plan. A weight's narrow copy is its cast to a narrower type, gathered its
// pieces of several ranks together; a stash is what a forward act keeps for a backward one.
std::vector<Purpose> PurposesOf(const Compiled& compiled);

}  // namespace oneflow_like
