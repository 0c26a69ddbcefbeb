#include "oneflow_like/planner/neighbours.h"

#include <algorithm>
#include <utility>

#include "oneflow_like/session/cut_moves.h"
#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

namespace {

// How each region of the plan waits.
Waits WaitsOf(const PlanCandidate& plan, const Session& session) {
  Waits waits = plan.waits;
  if (waits.empty())
    for (const auto& [region, own] : session.impl()->compiled.graph.regions().all())
      if (!own) waits[region] = plan.recompute;
  return waits;
}

PlanCandidate WithWait(const PlanCandidate& plan, Waits waits, const std::string& region, Recompute mode) {
  PlanCandidate candidate = plan;
  candidate.waits = std::move(waits);
  candidate.waits[region] = mode;
  candidate.recompute = Recompute::kNone;
  return candidate;
}

}  // namespace

std::vector<PlanCandidate> WaitOtherwise(const PlanCandidate& plan, const Session& session,
                                         const TrialPool&) {
  const Waits waits = WaitsOf(plan, session);
  const bool gathers =
      std::any_of(waits.begin(), waits.end(), [](const auto& wait) { return GathersAgain(wait.second); });
  std::vector<PlanCandidate> all;
  for (const auto& [region, mode] : waits)
    for (const Recompute other : kRecomputeModes) {
      if (GathersAgain(other) && !gathers) continue;  // most likely there is nothing to send again
      if (other != mode && other != Recompute::kHost) all.push_back(WithWait(plan, waits, region, other));
    }
  return all;
}

std::vector<PlanCandidate> WaitOnHost(const PlanCandidate& plan, const Session& session, const TrialPool&) {
  const Waits waits = WaitsOf(plan, session);
  std::vector<PlanCandidate> all;
  for (const auto& [region, mode] : waits)
    if (WithoutGather(mode) == Recompute::kSelective || mode == Recompute::kFull)
      all.push_back(WithWait(plan, waits, region, Recompute::kHost));
  return all;
}

std::vector<PlanCandidate> CutOtherwise(const PlanCandidate& plan, const Session& session, const TrialPool&) {
  std::vector<PlanCandidate> all;
  const Session::Impl& impl = *session.impl();
  for (VariableCuts& cuts : CutsBeside(*impl.model, impl.compiled.options, plan.cuts)) {
    all.push_back(plan);
    all.back().cuts = std::move(cuts);
  }
  return all;
}

std::vector<PlanCandidate> DivideOtherwise(const PlanCandidate& plan, const Session& session,
                                           const TrialPool&) {
  std::vector<PlanCandidate> all;
  for (const BlockStack& stack : session.impl()->model->graph.stacks) {
    const auto division = session.impl()->compiled.options.decided.stages.find(stack.name);
    if (stack.by_options || division == session.impl()->compiled.options.decided.stages.end()) continue;
    const std::vector<int64_t>& blocks = division->second;
    for (size_t i = 0; i + 1 < blocks.size(); ++i)
      for (const auto& [from, to] : {std::pair{i, i + 1}, {i + 1, i}}) {
        if (blocks[from] < 2) continue;
        all.push_back(plan);
        all.back().stages[stack.name] = blocks;
        --all.back().stages[stack.name][from];
        ++all.back().stages[stack.name][to];
      }
  }
  return all;
}

std::vector<PlanCandidate> OrderOtherwise(const PlanCandidate& plan, const Session&, const TrialPool& pool) {
  std::vector<PlanCandidate> all;
  // Where all devices are alike no order counts. The axes of a group are those of one link already.
  if (pool.machine().topology.links.size() == 1 || !plan.mesh.groups().empty()) return all;
  all = InOrders(plan);
  all.erase(all.begin());
  return all;
}

std::vector<PlanCandidate> FlagOtherwise(const PlanCandidate& plan, const Session&, const TrialPool& pool) {
  std::vector<PlanCandidate> all;
  for (const TrialEntry& entry : pool.entries()) {
    const PlanCandidate& other = entry.trial.plan;
    if (entry.estimated_seconds == 0 || entry.shape != ShapeOf(plan)) continue;
    if (!(other.mesh == plan.mesh)) continue;
    const bool rounds = other.virtual_stages != plan.virtual_stages;
    // Where regions wait each in their own way, WaitOtherwise changes that.
    const bool waits = plan.waits.empty() && other.recompute != plan.recompute;
    const int differences = waits + (other.zero != plan.zero || other.zero_axis != plan.zero_axis) +
                            (other.micro_batches != plan.micro_batches) +
                            (rounds || other.schedule != plan.schedule) +
                            (other.sequence_parallel != plan.sequence_parallel);
    if (differences != 1) continue;
    PlanCandidate candidate = plan;
    candidate.micro_batches = other.micro_batches;
    candidate.schedule = other.schedule;
    candidate.virtual_stages = other.virtual_stages;
    candidate.zero = other.zero;
    candidate.zero_axis = other.zero_axis;
    candidate.sequence_parallel = other.sequence_parallel;
    if (waits) candidate.recompute = other.recompute;
    if (rounds) candidate.stages = {};
    if (std::find(all.begin(), all.end(), candidate) == all.end()) all.push_back(std::move(candidate));
  }
  return all;
}

}  // namespace oneflow_like
