// The search for how values wait for their gradients, so that a plan fits in memory at the least estimated
// time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compiler/search/candidate_pool.h"
#include "compiler/search/recompute_ways.h"

namespace oneflow_like {

// A plan, and what compiling it has shown.
struct WaitChoice {
  Waits waits;
  double seconds = 0;              // estimated, of a step
  std::map<int, int64_t> bytes{};  // by rank: of all, or of a large mesh of the first of each stage
  size_t compared = 0;             // number of plans from which it was chosen
  Waits next{};                    // waits of the fastest of the slower plans that fit; empty: none
  double next_seconds = 0;

  int64_t peak() const;
};

class RecomputeSearch {
 public:
  // For regions of `graph`, lowered and fused, with Recompute::kAuto. `beside`: CandidatePool's.
  RecomputeSearch(Graph graph, CompileOptions options, BytesBeside beside = {});
  RecomputeSearch(const RecomputeSearch&) = delete;

  const std::vector<std::string>& regions() const { return pool_.regions(); }
  // The modes that a region may have, as CandidatePool::modes says.
  const std::vector<Recompute>& modes() const { return pool_.modes(); }
  // Returns the plan in which all regions have this mode.
  WaitChoice All(Recompute mode);
  // The fastest plan that fits, or the smallest if none does. The plans that are compared depend on no budget
  // and are compiled once.
  WaitChoice Within(int64_t budget);

 private:
  using Nearby = std::vector<Assignment> (RecomputeWays::*)(const Candidate& fast,
                                                            const Candidate& small) const;
  void Search();
  void TryWays();
  void TryThresholds();
  void Shrink();
  void CloseGaps();
  std::vector<Assignment> InGaps(Nearby nearby) const;
  std::vector<const Candidate*> Sorted() const;
  std::vector<const Candidate*> Front(double least) const;
  double LeastSeconds() const;
  bool Fits(const Candidate& c, int64_t budget) const;
  const Candidate& Smallest() const;
  WaitChoice ChoiceOf(const Candidate& candidate) const;

  CandidatePool pool_;
  RecomputeWays ways_;
  const size_t most_;                        // candidates
  std::vector<std::vector<size_t>> tried_;   // by stage, the ways that the first candidates have
  std::vector<std::vector<int64_t>> bytes_;  // by stage, of these
};

}  // namespace oneflow_like
