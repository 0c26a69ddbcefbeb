#include "compiler/search/candidate_pool.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "compiler/explain.h"
#include "compiler/passes/passes.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {

namespace {

// Regions whose recomputation is left to the compiler.
std::vector<std::string> OpenRegions(const Graph& graph, const CompileOptions& options) {
  std::vector<std::string> open;
  if (!options.asked.training) return open;
  const Regions& regions = graph.regions();
  std::set<std::string> used;
  for (int n : graph.Order()) {
    const std::string region = regions.Of(graph.node(n).name);
    if (region.empty() || regions.SettingOf(region, options.asked.training->recompute) != Recompute::kAuto)
      continue;
    if (used.insert(region).second) open.push_back(region);
  }
  return open;
}

}  // namespace

CandidatePool::CandidatePool(Graph graph, CompileOptions options, BytesBeside beside)
    : graph_(std::move(graph)),
      options_(std::move(options)),
      beside_(std::move(beside)),
      detail_(beside_ ? PlanDetail::kOutline : PlanDetail::kMemory),
      regions_(OpenRegions(graph_, options_)),
      modes_(OpenModes()) {}

std::vector<Recompute> CandidatePool::OpenModes() const {
  std::vector<Recompute> modes = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  if (regions_.empty()) return modes;
  const std::optional<bool>& said = options_.asked.training->gather_again;
  if (said != false && SendsAgain())
    modes = said == true ? std::vector{Recompute::kGather, Recompute::kSelectiveGather, Recompute::kFull}
                         : std::vector{Recompute::kNone, Recompute::kGather, Recompute::kSelective,
                                       Recompute::kSelectiveGather, Recompute::kFull};
  if (options_.machine.host.known && options_.asked.choose_host && !options_.decided.offload.activations)
    modes.push_back(Recompute::kHost);
  return modes;
}

bool CandidatePool::SendsAgain() const {
  Graph gathered = GraphWith(Assignment(regions_.size(), Recompute::kGather));
  RepeatForward(&gathered, options_);
  const std::set<std::string> open(regions_.begin(), regions_.end());
  for (int n = graph_.num_nodes(); n < gathered.num_nodes(); ++n)
    if (const Node& node = gathered.node(n);
        node.why.starts_with(kSentAgain) && open.count(gathered.regions().Of(node.name)) != 0)
      return true;
  return false;
}

void CandidatePool::Add(const std::vector<Assignment>& assignments) {
  std::vector<Candidate> fresh;
  for (const Assignment& a : assignments)
    if (index_.try_emplace(a, std::ssize(all_) + std::ssize(fresh)).second) fresh.push_back({a, 0, {}, 0});
  SideBySide(static_cast<int>(fresh.size()), 0,
             [&](int i) { Judge(CompileWith(fresh[i].assignment), &fresh[i]); });
  all_.insert(all_.end(), fresh.begin(), fresh.end());
}

Compiled CandidatePool::AddFirst() {
  const Assignment most(regions_.size(), modes_.front());
  Compiled compiled = CompileWith(most);
  std::set<std::string> stages;
  for (int rank = 0; rank < graph_.mesh().size(); ++rank)
    if (stages.insert(StageOf(compiled, rank)).second) ranks_.push_back(rank);
  index_[most] = 0;
  all_.push_back({most, 0, {}, 0});
  Judge(compiled, &all_[0]);
  return compiled;
}

Compiled CandidatePool::CompileWith(const Assignment& assignment) const {
  return CompileAfter(kBeforeWaits, GraphWith(assignment), options_);
}

Graph CandidatePool::GraphWith(const Assignment& assignment) const {
  Graph graph = graph_;
  for (const auto& [region, mode] : WaitsOf(assignment)) graph.regions().Choose(region, mode);
  return graph;
}

Waits CandidatePool::WaitsOf(const Assignment& assignment) const {
  Waits waits;
  for (size_t r = 0; r < regions_.size(); ++r) waits[regions_[r]] = assignment[r];
  return waits;
}

const std::map<int, int64_t>& CandidatePool::BytesOfRanks(const Candidate& candidate) const {
  const auto [at, fresh] = of_ranks_.try_emplace(candidate.assignment);
  std::map<int, int64_t>& of = at->second;
  const int world = graph_.mesh().size();
  if (!fresh) return of;
  if (world > kManyRanks || world == std::ssize(ranks_)) {
    for (size_t s = 0; s < ranks_.size(); ++s) of[ranks_[s]] = candidate.bytes[s];
    return of;
  }
  const Compiled compiled = CompileWith(candidate.assignment);
  const std::vector<int> alike = FirstAlike(compiled.graph, compiled.logical);
  std::vector<int> ranks = alike;
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::vector<int64_t> bytes(world, 0);
  SideBySide(static_cast<int>(ranks.size()), 0,
             [&](int i) { bytes[ranks[i]] = BytesOf(PlanOf(compiled, ranks[i], detail_).plan); });
  for (int rank = 0; rank < world; ++rank) of[rank] = bytes[alike[rank]];
  return of;
}

int64_t CandidatePool::PeakOfAllRanks(const Candidate& candidate) const {
  int64_t peak = 0;
  for (const auto& [rank, bytes] : BytesOfRanks(candidate)) peak = std::max(peak, bytes);
  return peak;
}

int64_t CandidatePool::BytesOf(const plan::Plan& plan) const {
  int64_t bytes = ArenaBytes(plan);
  for (const plan::Variable& variable : plan.variable())
    if (!IsOnHost(variable)) bytes += variable.bytes();
  return bytes + (beside_ ? beside_(plan) : 0);
}

void CandidatePool::Judge(const Compiled& compiled, Candidate* candidate) const {
  candidate->seconds = compiled.logical.makespan;
  for (int rank : ranks_) candidate->bytes.push_back(BytesOf(PlanOf(compiled, rank, detail_).plan));
  candidate->peak = *std::max_element(candidate->bytes.begin(), candidate->bytes.end());
}

}  // namespace oneflow_like
