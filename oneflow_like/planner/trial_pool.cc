#include "oneflow_like/planner/trial_pool.h"

#include <glog/logging.h>

#include <algorithm>

#include "compiler/compile.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/session/summary.h"
#include "oneflow_like/simulate.h"

namespace oneflow_like {

MeshShape ShapeOf(const PlanCandidate& c) { return {c.extent("dp"), c.extent("tp"), c.extent("pp")}; }
bool HasOpenCuts(const PlanCandidate& c) { return c.open_cuts || !c.cuts.empty(); }

namespace {

constexpr int kManyMembers = 128;  // of a collective

// How many decisions two candidates share; those count most by which estimates are off alike.
int Likeness(const TrialEntry& a, const TrialEntry& b) {
  const PlanCandidate &x = a.trial.plan, &y = b.trial.plan;
  const auto [dp, tp, pp] = a.shape;
  const auto [dp2, tp2, pp2] = b.shape;
  return 2 * (tp == tp2) + 2 * (pp == pp2) + (dp == dp2) + 2 * (x.zero == y.zero) +
         2 * (x.zero_axis == y.zero_axis) + 3 * (x.schedule == y.schedule) +
         (x.virtual_stages == y.virtual_stages) + 2 * (x.recompute == y.recompute) +
         (x.sequence_parallel == y.sequence_parallel) + (x.micro_batches == y.micro_batches) +
         2 * (a.order == b.order) + 2 * (HasOpenCuts(x) == HasOpenCuts(y));
}

}  // namespace

const TrialEntry& TrialPool::Add(std::vector<PlanTrial> estimates) {
  const size_t first = entries_.size();
  for (PlanTrial& trial : estimates) {
    TrialEntry entry;
    for (int a = 0; a < trial.plan.mesh.rank(); ++a)
      if (trial.plan.mesh.axis_size(a) > 1) entry.order += trial.plan.mesh.axis_name(a);
    entry.shape = ShapeOf(trial.plan);
    entry.first = entries_.size() == first;
    entry.estimated_seconds = trial.seconds;
    entry.estimated_bytes = static_cast<double>(trial.bytes);
    entry.trial = std::move(trial);
    entries_.push_back(std::move(entry));
  }
  return entries_[first];
}

void TrialPool::Correct(TrialEntry* entry) const {
  int most = -1;
  double seconds = 1, bytes = 1;
  for (int t : tried_) {
    const TrialEntry& other = entries_[t];
    if (!other.trial.compiled || other.estimated_seconds == 0) continue;
    if (const int alike = Likeness(*entry, other); alike > most) {
      most = alike;
      seconds = other.trial.seconds / other.estimated_seconds;
      bytes = static_cast<double>(other.trial.bytes) / other.estimated_bytes;
    }
  }
  entry->alike = most;
  entry->trial.seconds = entry->estimated_seconds * seconds;
  entry->trial.bytes = static_cast<int64_t>(entry->estimated_bytes * bytes);
}

template <typename T>
const TrialEntry* TrialPool::Least(T PlanTrial::*amount, bool fits) const {
  const TrialEntry* least = nullptr;
  for (int t : tried_)
    if (const TrialEntry& e = entries_[t];
        e.trial.compiled && (!fits || Fits(e.trial)) && (!least || e.trial.*amount < least->trial.*amount))
      least = &e;
  return least;
}

const TrialEntry* TrialPool::Best() const { return Least(&PlanTrial::seconds, /*fits=*/true); }
const TrialEntry* TrialPool::Smallest() const { return Least(&PlanTrial::bytes, /*fits=*/false); }

std::vector<int> TrialPool::Fitting() const {
  std::vector<int> fitting;
  for (int t : tried_)
    if (const TrialEntry& e = entries_[t]; e.trial.compiled && !e.twin && Fits(e.trial)) fitting.push_back(t);
  return fitting;
}

void TrialPool::Try(const std::vector<int>& numbers) {
  // A plan names all members of its collectives: with a thousand of them it takes gigabytes.
  const auto large = [&](int i) {
    const auto [dp, tp, pp] = entries_[i].shape;
    return std::max(dp, tp) > kManyMembers;
  };
  if (std::any_of(numbers.begin(), numbers.end(), large))
    for (int i : numbers) TryOne(&entries_[i]);
  else
    SideBySide(static_cast<int>(numbers.size()), 0, [&](int i) { TryOne(&entries_[numbers[i]]); });
  for (int i : numbers) {
    tried_.push_back(i);
    acts_ += entries_[i].acts;
    FindTwin(i);
  }
  for (int i : numbers)
    VLOG(1) << "plans: " << entries_[i].trial.plan.str() << " takes "
            << SecondsText(entries_[i].trial.seconds) << " (estimate "
            << SecondsText(entries_[i].estimated_seconds) << "), "
            << BytesText(static_cast<double>(entries_[i].trial.bytes)) << " (estimate "
            << BytesText(entries_[i].estimated_bytes) << "), " << entries_[i].acts << " acts "
            << entries_[i].trial.why;
}

int TrialPool::Also(PlanCandidate candidate) {
  TrialEntry entry;
  entry.shape = ShapeOf(candidate);
  entry.trial.plan = std::move(candidate);
  entries_.push_back(std::move(entry));
  return static_cast<int>(std::ssize(entries_)) - 1;
}

bool TrialPool::Knows(const PlanCandidate& candidate) const {
  return std::any_of(tried_.begin(), tried_.end(),
                     [&](int t) { return entries_[t].trial.plan == candidate; });
}

// Of entries that are one plan, the one with the shortest flags stands for all.
void TrialPool::FindTwin(int i) {
  TrialEntry& mine = entries_[i];
  for (int t : tried_) {
    TrialEntry& other = entries_[t];
    if (t == i || !mine.trial.compiled || !other.trial.compiled || other.plan_hash != mine.plan_hash)
      continue;
    if (other.twin) continue;
    const bool shorter = mine.trial.plan.str().size() < other.trial.plan.str().size();
    (shorter ? other : mine).twin = true;
  }
}

void TrialPool::TryOne(TrialEntry* entry) const {
  entry->tried = true;
  PlanTrial& trial = entry->trial;
  try {
    const Session session = build_(trial.plan);
    const Simulated simulated = Simulate(session, machine_);
    trial.compiled = true;
    if (trial.plan.open_cuts || trial.plan.open_waits) {
      const Decisions& decided = session.impl()->compiled.options.decided;
      trial.plan.stages = decided.stages;
      trial.plan.cuts = decided.cuts;
      trial.plan.waits = decided.waits;
      trial.plan.recompute = decided.recompute;
      trial.plan.logits_tile = decided.logits_tile;
      trial.plan.open_cuts = trial.plan.open_waits = false;
      trial.plan.memory = 0;
    }
    entry->plan_hash = simulated.plan_hash;
    entry->acts = simulated.acts;
    trial.seconds = simulated.seconds;
    trial.bytes = 0;
    const SimulatedStage* busiest = &simulated.stages.front();
    for (const SimulatedStage& stage : simulated.stages) {
      trial.bytes = std::max(trial.bytes, stage.memory.peak_bytes);
      if (stage.compute > busiest->compute) busiest = &stage;
    }
    trial.compute = busiest->compute;
    trial.messages = busiest->communication;
    trial.bubble = busiest->bubble;
  } catch (const Error& error) {
    trial.why = error.what();
  }
}

}  // namespace oneflow_like
