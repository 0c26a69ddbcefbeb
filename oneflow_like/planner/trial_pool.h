// Candidates of a search for a plan: those that were only estimated, and those that were compiled and
// simulated, whose results correct the estimates of similar ones.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "oneflow_like/plan_search.h"

namespace oneflow_like {

using MeshShape = std::tuple<int, int, int>;  // dp, tp, pp
MeshShape ShapeOf(const PlanCandidate& candidate);
// Whether cuts of weights are, or were, left to the search.
bool HasOpenCuts(const PlanCandidate& candidate);

struct TrialEntry {
  PlanTrial trial;
  MeshShape shape;
  std::string order;  // of axes of several devices
  double estimated_seconds = 0, estimated_bytes = 0;
  bool first = false;  // of the orders of axes the one that is estimated fastest
  bool tried = false;
  int alike = -1;          // Likeness to the tried one by which it was corrected; -1: by none
  uint64_t plan_hash = 0;  // of what it was compiled to
  int64_t acts = 0;        // of a step of that
  size_t beside = 0;       // neighbourhoods that were looked at
  bool twin = false;       // another that was tried has been compiled to the same plan and needs fewer flags

  bool better(const TrialEntry& other) const {
    return std::make_tuple(trial.seconds, trial.bytes) <
           std::make_tuple(other.trial.seconds, other.trial.bytes);
  }
};

class TrialPool {
 public:
  // `memory`: bytes of a device that a plan may use; 0: any. All others must outlive the pool.
  TrialPool(const Machine& machine, const BuildPlan& build, int64_t memory)
      : machine_(machine), build_(build), memory_(memory) {}

  // Adds a candidate, on several orders of its axes, the fastest first. Returns that one.
  const TrialEntry& Add(std::vector<PlanTrial> estimates);
  // Compiles and simulates entries, side by side unless they are large.
  void Try(const std::vector<int>& numbers);
  // Adds a candidate that was not estimated, and returns its number. Once it was tried, the entry of one that
  // leaves something open says what was decided.
  int Also(PlanCandidate candidate);
  bool Knows(const PlanCandidate& candidate) const;  // whether it was tried
  // Gives an entry that was not tried its estimate times what the tried one that is most like it took of its
  // own.
  void Correct(TrialEntry* entry) const;

  std::vector<TrialEntry>& entries() { return entries_; }
  const std::vector<TrialEntry>& entries() const { return entries_; }
  const std::vector<int>& tried() const { return tried_; }  // in order
  int64_t acts() const { return acts_; }                    // of a step of each of these
  const Machine& machine() const { return machine_; }
  int64_t memory() const { return memory_; }
  bool Fits(double bytes) const { return memory_ == 0 || bytes <= static_cast<double>(memory_); }
  bool Fits(const PlanTrial& trial) const { return Fits(static_cast<double>(trial.bytes)); }
  // The fastest that was compiled and fits, and its seconds; nullptr and 0: none does.
  const TrialEntry* Best() const;
  double BestSeconds() const { return Best() ? Best()->trial.seconds : 0; }
  // All that were compiled and fit, each plan once, in the order in which they were tried.
  std::vector<int> Fitting() const;
  const TrialEntry* Smallest() const;  // of those that were compiled; nullptr: none

 private:
  // Returns the compiled entry with the least amount; with `fits`, among those that fit. nullptr: there is
  // none.
  template <typename T>
  const TrialEntry* Least(T PlanTrial::*amount, bool fits) const;
  void TryOne(TrialEntry* entry) const;
  void FindTwin(int number);

  const Machine& machine_;
  const BuildPlan& build_;
  const int64_t memory_;
  std::vector<TrialEntry> entries_;
  std::vector<int> tried_;
  int64_t acts_ = 0;
};

// What the trials have come to. REQUIRES: one fits.
PlanSearchResult ResultOf(TrialPool* pool);
// That as text, for other processes, and back, without PlanSearchResult::lost.
std::string ToText(const PlanSearchResult& result);
PlanSearchResult PlanSearchResultFromText(const std::string& text);

}  // namespace oneflow_like
