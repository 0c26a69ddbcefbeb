// The ways in which values of a stage's regions may wait, and candidates beside a candidate.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "compiler/search/candidate_pool.h"

namespace oneflow_like {

// Returns `few` evenly spaced numbers below `all`, including the first and the last; all if there are fewer.
std::vector<size_t> Evenly(size_t all, size_t few);

// One way to recompute the regions of a stage.
struct RecomputeWay {
  std::vector<Recompute> modes;  // of the stage's regions
  int64_t freed = 0, picoseconds = 0;
};

class RecomputeWays {
 public:
  // Of the candidates of `pool`, which must outlive it; adds the first of them.
  explicit RecomputeWays(CandidatePool* pool);

  size_t stages() const { return by_stage_.size(); }
  // Of a stage, by seconds.
  const std::vector<RecomputeWay>& Of(size_t stage) const { return ways_[stage]; }
  // Puts a way of a stage into an assignment.
  void Set(size_t stage, const RecomputeWay& way, Assignment* assignment) const;
  // What a stage does in an assignment.
  std::vector<Recompute> ModesOf(const Assignment& a, size_t stage) const;
  // Compiles candidates, and remembers what stages need in them.
  void Try(const std::vector<Assignment>& all);

  // Half way between two in all stages, then in one; then neighbours of both, by one way of one stage or by
  // one mode of one region.
  std::vector<Assignment> Between(const Candidate& faster, const Candidate& smaller) const;
  // Both with two regions changed, those that compute less again first; without those of which a stage is
  // known to need as much as the faster one does.
  std::vector<Assignment> WithTwoChanges(const Candidate& fast, const Candidate& small) const;

 private:
  // A region, and what each mode saves and costs there, about, more than the first mode of the pool. By mode.
  struct Region {
    int stage = 0;
    std::array<int64_t, kRecomputeModes.size()> freed = {};  // bytes, of all micro-batches that are under way
    std::array<int64_t, kRecomputeModes.size()> picoseconds = {};  // of a micro-batch
  };
  std::vector<RecomputeWay> WaysOf(const std::vector<const Region*>& regions) const;
  void FindStages(const Compiled& base);
  int64_t Picoseconds(const Assignment& a) const;
  // The most that stages need, of those that had the same ways in other candidates.
  int64_t KnownBytes(const Assignment& a) const;
  // The number of each stage's way; -1 where it is none of them.
  std::vector<int> WaysIn(const Assignment& assignment) const;

  CandidatePool& pool_;
  std::vector<Region> regions_;                                           // as those of the pool
  std::vector<std::vector<int>> by_stage_;                                // regions
  std::vector<std::vector<RecomputeWay>> ways_;                           // by stage
  std::map<std::pair<size_t, std::vector<Recompute>>, int64_t> of_ways_;  // bytes, by stage and its modes
};

}  // namespace oneflow_like
