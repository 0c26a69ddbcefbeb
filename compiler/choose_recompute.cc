// Chooses what is computed again so that the plan fits in memory, at the least estimated time.
// Needs: what recompute needs, and CompileOptions::memory_budget. Leaves: a choice (Regions::Choose) for each
// region with Recompute::kAuto. If none fits, the choice is the one that needs least, and the caller refuses.
//
// Nothing is predicted: a candidate is compiled from here on, one step of it is played (order_acts), and the
// memory of a rank of each stage is placed. Which candidates there are depends on the graph alone and not on
// the budget; of those that fit the fastest is taken. So a larger budget never gives a slower plan, nor a
// smaller peak. The candidates come from two observations:
//   * A budget is of each rank, so each stage takes its own fastest way to fit, whatever the others do. One
//     candidate in which stage s has its j-th way tells the memory of all those ways, one for each stage.
//   * The ways of a stage that are worth a look have the most bytes freed for their seconds. Of layers that
//     are alike it recomputes the first: the last is the first to be needed.
// With interleaved and zero-bubble schedules, time also depends on which chunk's turns become longer, so
// around each candidate that may be taken, a few that differ in two regions are tried as well.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "compiler/explain.h"
#include "core/plan_values.h"

namespace oneflow_like {

namespace {

constexpr std::array kModes = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
using Assignment = std::vector<Recompute>;  // by free region

struct Candidate {
  Assignment assignment;
  double seconds = 0;          // estimated, of a step
  std::vector<int64_t> bytes;  // by stage, of its first rank
  int64_t peak = 0;            // the largest of these
};

// Regions whose recomputation is left to the compiler.
std::vector<std::string> FreeRegions(const Graph& graph, const CompileOptions& options) {
  std::vector<std::string> free;
  if (!options.training) return free;
  const Regions& regions = graph.regions();
  std::set<std::string> used;  // in the order in which the forward pass comes to them
  for (int n : graph.Order()) {
    const std::string region = regions.Of(graph.node(n).name);
    if (region.empty() || regions.SettingOf(region, options.training->recompute) != Recompute::kAuto)
      continue;
    if (used.insert(region).second) free.push_back(region);
  }
  return free;
}

// Candidates that were compiled; each once.
class CandidatePool {
 public:
  CandidatePool(const Graph& graph, const CompileOptions& options, std::vector<std::string> regions)
      : graph_(graph), options_(options), regions_(std::move(regions)) {}

  // Compiles those that are not known yet, side by side.
  void Add(const std::vector<Assignment>& assignments) {
    std::vector<Candidate> fresh;
    for (const Assignment& a : assignments)
      if (index_.try_emplace(a, std::ssize(all_) + std::ssize(fresh)).second) fresh.push_back({a, 0, {}, 0});
    SideBySide(static_cast<int>(fresh.size()), 0,
               [&](int i) { Judge(CompileWith(fresh[i].assignment), &fresh[i]); });
    all_.insert(all_.end(), fresh.begin(), fresh.end());
  }

  // The first, and what it is compiled to.
  Compiled AddFirst(const Assignment& assignment) {
    Compiled compiled = CompileWith(assignment);
    std::set<std::string> stages;
    for (int rank = 0; rank < graph_.mesh().size(); ++rank)
      if (stages.insert(StageOf(compiled, rank)).second) ranks_.push_back(rank);
    index_[assignment] = 0;
    all_.push_back({assignment, 0, {}, 0});
    Judge(compiled, &all_[0]);
    return compiled;
  }

  Compiled CompileWith(const Assignment& assignment) const {
    return CompileAfter("choose_recompute", GraphWith(assignment), options_);
  }
  Graph GraphWith(const Assignment& assignment) const {
    Graph graph = graph_;
    for (size_t r = 0; r < regions_.size(); ++r) graph.regions().Choose(regions_[r], assignment[r]);
    return graph;
  }

  const std::vector<int>& ranks() const { return ranks_; }  // the first of each stage
  const std::vector<Candidate>& all() const { return all_; }
  const Candidate& Of(const Assignment& a) const { return all_[index_.at(a)]; }
  size_t size() const { return all_.size(); }
  bool Knows(const Assignment& a) const { return index_.count(a) != 0; }

  // The most bytes of any rank; of a large mesh, of the first rank of each stage.
  int64_t PeakOfAllRanks(const Candidate& candidate) const {
    constexpr int kManyRanks = 64;
    const int world = graph_.mesh().size();
    if (world > kManyRanks || world == std::ssize(ranks_)) return candidate.peak;
    const Compiled compiled = CompileWith(candidate.assignment);
    std::vector<int64_t> bytes(world, 0);
    SideBySide(world, 0, [&](int rank) { bytes[rank] = BytesOf(PlanOf(compiled, rank).plan); });
    return *std::max_element(bytes.begin(), bytes.end());
  }

 private:
  int64_t BytesOf(const plan::Plan& plan) const {
    int64_t bytes = ArenaBytes(plan);
    for (const plan::Variable& variable : plan.variable()) bytes += variable.bytes();
    return bytes + (options_.bytes_beside_plan ? options_.bytes_beside_plan(plan) : 0);
  }

  void Judge(const Compiled& compiled, Candidate* candidate) const {
    candidate->seconds = compiled.logical.makespan;
    for (int rank : ranks_) candidate->bytes.push_back(BytesOf(PlanOf(compiled, rank).plan));
    candidate->peak = *std::max_element(candidate->bytes.begin(), candidate->bytes.end());
  }

  const Graph& graph_;
  const CompileOptions& options_;
  const std::vector<std::string> regions_;
  std::vector<int> ranks_;  // the first of each stage
  std::vector<Candidate> all_;
  std::map<Assignment, int64_t> index_;
};

// A region, and what each of kModes saves and costs there, about.
struct Region {
  int stage = 0, chunk = 0;
  std::array<double, 3> freed = {};    // bytes, of all micro-batches that are under way at once
  std::array<double, 3> seconds = {};  // more, of a micro-batch
};

// What a region keeps for its gradients, and how long its repeated nodes take, if all regions have one mode.
struct Kept {
  std::map<std::string, double> bytes, seconds;  // by region
};

Kept KeptWith(Graph graph, const CompileOptions& options) {
  const int before = graph.num_nodes();
  RepeatForward(&graph, options);
  CostModel cost(graph, options.machine);
  const std::vector<int> sizes = graph.Sizes();
  std::vector<bool> counted(graph.num_values(), false);
  Kept kept;
  for (int n : graph.Order()) {
    const Node& node = graph.node(n);
    if (n >= before) kept.seconds[graph.regions().Of(node.name)] += cost.Seconds(n);
    if (!IsGradient(node.phase)) continue;
    for (int v : node.in) {
      while (graph.IsView(graph.value(v).producer)) v = graph.producer(v).in[0];
      const Node& maker = graph.producer(v);
      if (counted[v] || maker.phase != Phase::kForward || IsEnd(maker)) continue;
      counted[v] = true;
      const Value& value = graph.value(v);
      kept.bytes[graph.regions().Of(maker.name)] +=
          static_cast<double>(
              LocalBox(value.shape, value.sbp, sizes, std::vector<int>(sizes.size(), 0)).elements()) *
          SizeOf(value.dtype);
    }
  }
  return kept;
}

// So many of them, from the first to the last.
template <typename T>
std::vector<T> Thinned(std::vector<T> all, size_t most) {
  if (all.size() <= most || most < 2) return all;
  std::vector<T> few;
  for (size_t i = 0; i < most; ++i) few.push_back(std::move(all[i * (all.size() - 1) / (most - 1)]));
  return few;
}

// One way to recompute the regions of a stage.
struct Way {
  std::vector<Recompute> modes;  // of the stage's regions
  double freed = 0, seconds = 0;
};

// The ways of a stage with the most bytes freed for their seconds, by seconds (Nemhauser and Ullmann 1969).
// Of equal ones the one that recomputes earlier regions.
std::vector<Way> WaysOf(const std::vector<const Region*>& regions, size_t most) {
  std::vector<Way> ways(1);
  for (const Region* region : regions) {
    std::vector<Way> longer;
    for (const Way& way : ways)
      for (size_t m = 0; m < kModes.size(); ++m) {
        Way next = way;
        next.modes.push_back(kModes[m]);
        next.freed += region->freed[m];
        next.seconds += region->seconds[m];
        longer.push_back(std::move(next));
      }
    std::sort(longer.begin(), longer.end(), [](const Way& a, const Way& b) {
      const double second = 1e-9 * std::max(a.seconds, b.seconds), byte = 1e-9 * std::max(a.freed, b.freed);
      if (std::abs(a.seconds - b.seconds) > second) return a.seconds < b.seconds;
      if (std::abs(a.freed - b.freed) > byte) return a.freed > b.freed;
      return a.modes > b.modes;
    });
    ways.clear();
    for (Way& way : longer)
      if (ways.empty() || way.freed > ways.back().freed * (1 + 1e-9)) ways.push_back(std::move(way));
  }
  return Thinned(std::move(ways), most);
}

// How many candidates are compiled: a limit on work, and not on time, so that all processes choose the same.
size_t MostCandidates(const Graph& graph) {
  constexpr int64_t kNodes = 400'000;
  return std::clamp<int64_t>(kNodes / std::max(1, graph.num_nodes()), 24, 300);
}

class RecomputeSearch {
 public:
  RecomputeSearch(const Graph& graph, const CompileOptions& options, std::vector<std::string> free)
      : graph_(graph),
        options_(options),
        free_(std::move(free)),
        pool_(graph, options, free_),
        most_(MostCandidates(graph)) {}

  Assignment Run() {
    Describe();
    TryWays();
    TryThresholds();
    CloseGaps();
    return Pick();
  }

 private:
  void Describe() {
    const Assignment none(free_.size(), Recompute::kNone);
    const Compiled base = pool_.AddFirst(none);
    std::array<Kept, 3> kept;
    SideBySide(3, 0, [&](int m) {
      kept[m] = KeptWith(pool_.GraphWith(Assignment(free_.size(), kModes[m])), options_);
    });
    const PipelineShape shape = ShapeOf(base.logical, graph_.times());
    const std::map<Slice, int> stages = StagesOf(base.logical);
    std::map<std::string, int> where;  // segment, by region
    for (size_t s = 0; s < base.logical.segments.size(); ++s) {
      const Segment& segment = base.logical.segments[s];
      if (segment.phase != Phase::kForward || !base.logical.On(segment, StreamKind::kCompute)) continue;
      for (int n : segment.nodes)
        where[base.graph.regions().Of(base.graph.node(n).name)] = static_cast<int>(s);
    }
    regions_.resize(free_.size());
    by_stage_.resize(pool_.ranks().size());
    for (size_t r = 0; r < free_.size(); ++r) {
      Region& region = regions_[r];
      double stashes = 1;
      if (auto at = where.find(free_[r]); at != where.end()) {
        const Segment& segment = base.logical.segments[at->second];
        region.chunk = segment.chunk;
        for (size_t s = 0; s < pool_.ranks().size(); ++s)
          if (segment.slice.Contains(graph_.mesh().Coords(pool_.ranks()[s])))
            region.stage = static_cast<int>(s);
        if (auto stage = stages.find(segment.slice); stage != stages.end())
          stashes = ScheduleOf(options_.schedule, shape, stage->second, options_.exact_groups)
                        .Stashes(segment.chunk);
      }
      for (int m = 1; m < 3; ++m) {
        region.freed[m] = stashes * (kept[0].bytes[free_[r]] - kept[m].bytes[free_[r]]);
        region.seconds[m] = kept[m].seconds[free_[r]];
      }
      by_stage_[region.stage].push_back(static_cast<int>(r));
    }
  }

  // Puts a way of a stage into an assignment.
  void Set(int stage, const Way& way, Assignment* assignment) const {
    for (size_t i = 0; i < way.modes.size(); ++i) (*assignment)[by_stage_[stage][i]] = way.modes[i];
  }

  void TryWays() {
    size_t longest = 1;
    for (const std::vector<int>& mine : by_stage_) {
      std::vector<const Region*> regions;
      for (int r : mine) regions.push_back(&regions_[r]);
      ways_.push_back(WaysOf(regions, most_ / 3));
      longest = std::max(longest, ways_.back().size());
    }
    std::vector<Assignment> all;
    for (size_t j = 0; j < longest; ++j) {
      Assignment a(free_.size(), Recompute::kNone);
      for (size_t s = 0; s < ways_.size(); ++s) Set(s, ways_[s][j * ways_[s].size() / longest], &a);
      all.push_back(a);
    }
    pool_.Add(all);
    bytes_.resize(ways_.size());
    for (size_t s = 0; s < ways_.size(); ++s) {
      bytes_[s].resize(ways_[s].size());
      for (size_t j = 0; j < longest; ++j)
        bytes_[s][j * ways_[s].size() / longest] = pool_.Of(all[j]).bytes[s];
    }
  }

  void TryThresholds() {
    std::set<int64_t> thresholds;
    for (const auto& of_stage : bytes_) thresholds.insert(of_stage.begin(), of_stage.end());
    std::vector<Assignment> all;
    for (int64_t bytes : thresholds) {
      Assignment a(free_.size(), Recompute::kNone);
      bool fits = true;
      for (size_t s = 0; s < ways_.size(); ++s) {
        size_t w = 0;
        while (w < ways_[s].size() && bytes_[s][w] > bytes) ++w;
        fits = fits && w < ways_[s].size();
        if (fits) Set(s, ways_[s][w], &a);
      }
      if (fits) all.push_back(a);
    }
    pool_.Add(Thinned(std::move(all), most_ / 3));
  }

  // Of all candidates those that nothing beats in both seconds and bytes, by seconds.
  std::vector<const Candidate*> Front() const {
    std::vector<const Candidate*> front;
    for (const Candidate* c : Sorted())
      if (front.empty() || c->peak < front.back()->peak) front.push_back(c);
    return front;
  }

  // Where the next smaller plan takes notably longer, looks for one in between: like one of the two, but for
  // one stage, or for one region.
  void CloseGaps() {
    constexpr double kNotable = 1.004;
    while (pool_.size() < most_) {
      const std::vector<const Candidate*> front = Front();
      std::vector<std::pair<double, Assignment>> next;  // by the gap, negative
      for (size_t i = 0; i + 1 < front.size(); ++i) {
        const double gap = front[i + 1]->seconds / front[i]->seconds;
        if (gap < kNotable) continue;
        for (const Candidate* end : {front[i + 1], front[i]})
          for (Assignment& a : Neighbours(end->assignment)) next.push_back({-gap, std::move(a)});
      }
      std::stable_sort(next.begin(), next.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      std::vector<Assignment> batch;
      std::set<Assignment> seen;
      const size_t most = std::max<size_t>(4, (most_ - pool_.size() + 1) / 2);
      for (auto& [gap, a] : next)
        if (batch.size() < most && !pool_.Knows(a) && seen.insert(a).second) batch.push_back(std::move(a));
      if (batch.empty()) return;
      pool_.Add(batch);
    }
  }

  // That differ in one stage, by one way, then those that differ in one region, by one mode.
  std::vector<Assignment> Neighbours(const Assignment& from) const {
    std::vector<Assignment> all;
    for (size_t s = 0; s < ways_.size(); ++s) {
      std::vector<Recompute> mine;
      for (int r : by_stage_[s]) mine.push_back(from[r]);
      const auto at =
          std::find_if(ways_[s].begin(), ways_[s].end(), [&](const Way& w) { return w.modes == mine; });
      if (at == ways_[s].end()) continue;
      for (const auto& other : {at - ways_[s].begin() - 1, at - ways_[s].begin() + 1})
        if (other >= 0 && other < std::ssize(ways_[s])) {
          all.push_back(from);
          Set(static_cast<int>(s), ways_[s][other], &all.back());
        }
    }
    for (size_t r = 0; r < from.size(); ++r)
      for (const int step : {-1, 1}) {
        const int mode = static_cast<int>(from[r]) + step;
        if (mode < 0 || mode >= std::ssize(kModes)) continue;
        all.push_back(from);
        all.back()[r] = kModes[mode];
      }
    return all;
  }

  // By seconds, then bytes.
  std::vector<const Candidate*> Sorted() const {
    std::vector<const Candidate*> sorted;
    for (const Candidate& c : pool_.all()) sorted.push_back(&c);
    std::stable_sort(sorted.begin(), sorted.end(), [](const Candidate* a, const Candidate* b) {
      return std::pair(a->seconds, a->peak) < std::pair(b->seconds, b->peak);
    });
    return sorted;
  }

  Assignment Pick() const {
    const std::vector<const Candidate*> sorted = Sorted();
    for (const Candidate* c : sorted)
      if (c->peak <= options_.memory_budget && pool_.PeakOfAllRanks(*c) <= options_.memory_budget)
        return c->assignment;
    return (*std::min_element(sorted.begin(), sorted.end(),
                              [](const Candidate* a, const Candidate* b) { return a->peak < b->peak; }))
        ->assignment;
  }

  const Graph& graph_;
  const CompileOptions& options_;
  const std::vector<std::string> free_;
  CandidatePool pool_;
  const size_t most_;                        // candidates
  std::vector<Region> regions_;              // as free_
  std::vector<std::vector<int>> by_stage_;   // regions
  std::vector<std::vector<Way>> ways_;       // by stage
  std::vector<std::vector<int64_t>> bytes_;  // by stage, of its ways
};

}  // namespace

void ChooseRecompute(Graph* graph, const CompileOptions& options) {
  std::vector<std::string> free = FreeRegions(*graph, options);
  if (free.empty()) return;
  const Assignment chosen = RecomputeSearch(*graph, options, free).Run();
  for (size_t r = 0; r < free.size(); ++r) graph->regions().Choose(free[r], chosen[r]);
}

}  // namespace oneflow_like
