// Chooses what is computed again so that the plan fits in memory, at the least estimated time.
// Needs: what recompute needs, and CompileOptions::memory_budget. Leaves: a choice (Regions::Choose) for each
// region with Recompute::kAuto. If none fits, the choice is the one that needs least, and the caller refuses.
//
// Nothing is predicted: a candidate is compiled from here on, one step of it is played (order_acts), and the
// memory of a rank of each stage is placed. The candidates depend on the graph alone and not on the budget,
// and the fastest that fits is taken: a larger budget never gives a slower plan, nor a smaller peak. They
// come from two observations:
//   * A budget is of each rank, so each stage takes its own fastest way to fit, whatever the others do. One
//     candidate in which stage s has its j-th way tells the memory of all those ways, one for each stage.
//   * The ways of a stage that are worth a look have the most bytes freed for their seconds. Of layers that
//     are alike the first are recomputed: the last one's values are needed as soon as they are made.
// But stages are not quite independent, and under interleaved and zero-bubble schedules time depends on which
// chunk's turns become longer. So where the next smaller plan takes notably longer, others between the two
// are tried.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "compiler/compile.h"
#include "compiler/explain.h"
#include "compiler/plan/schedule.h"
#include "core/plan/plan_values.h"

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
      : graph_(graph),
        options_(options),
        detail_(options.bytes_beside_plan ? PlanDetail::kOutline : PlanDetail::kMemory),
        regions_(std::move(regions)) {}

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
    SideBySide(world, 0, [&](int rank) { bytes[rank] = BytesOf(PlanOf(compiled, rank, detail_).plan); });
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
    for (int rank : ranks_) candidate->bytes.push_back(BytesOf(PlanOf(compiled, rank, detail_).plan));
    candidate->peak = *std::max_element(candidate->bytes.begin(), candidate->bytes.end());
  }

  const Graph& graph_;
  const CompileOptions& options_;
  const PlanDetail detail_;
  const std::vector<std::string> regions_;
  std::vector<int> ranks_;  // the first of each stage
  std::vector<Candidate> all_;
  std::map<Assignment, int64_t> index_;
};

// A region, and what each of kModes saves and costs there, about.
struct Region {
  int stage = 0;
  std::array<int64_t, 3> freed = {};        // bytes, of all micro-batches that are under way at once
  std::array<int64_t, 3> picoseconds = {};  // more, of a micro-batch
};

// The bytes kept for the gradients of each region, and the time of its repeated nodes, if all have one mode.
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
      kept.bytes[graph.regions().Of(node.name)] +=
          static_cast<double>(
              LocalBox(value.shape, value.sbp, sizes, std::vector<int>(sizes.size(), 0)).elements()) *
          SizeOf(value.dtype);
    }
  }
  return kept;
}

// `few` of the numbers below `all`, evenly, the first and the last among them; all of them if they are fewer.
std::vector<size_t> Evenly(size_t all, size_t few) {
  std::vector<size_t> numbers;
  const size_t count = std::min(all, std::max<size_t>(few, 2));
  for (size_t i = 0; i < count; ++i) numbers.push_back(count == 1 ? 0 : i * (all - 1) / (count - 1));
  return numbers;
}

// One way to recompute the regions of a stage.
struct Way {
  std::vector<Recompute> modes;  // of the stage's regions
  int64_t freed = 0, picoseconds = 0;
};

// The ways of a stage, by seconds: all, as estimates are rough, or of more than a few regions those with the
// most bytes freed for their seconds (Nemhauser and Ullmann 1969); of very many some. Of equal ones the one
// that recomputes earlier regions.
std::vector<Way> WaysOf(const std::vector<const Region*>& regions) {
  constexpr size_t kMost = 1024, kFew = 3;
  std::vector<Way> ways(1);
  for (const Region* region : regions) {
    std::vector<Way> longer;
    for (size_t i : Evenly(ways.size(), kMost))
      for (size_t m = 0; m < kModes.size(); ++m) {
        Way next = ways[i];
        next.modes.push_back(kModes[m]);
        next.freed += region->freed[m];
        next.picoseconds += region->picoseconds[m];
        longer.push_back(std::move(next));
      }
    std::sort(longer.begin(), longer.end(), [](const Way& a, const Way& b) {
      return std::tie(a.picoseconds, b.freed, b.modes) < std::tie(b.picoseconds, a.freed, a.modes);
    });
    ways.clear();
    for (Way& way : longer)
      if (regions.size() <= kFew || ways.empty() || way.freed > ways.back().freed)
        ways.push_back(std::move(way));
  }
  return ways;
}

// How many candidates are compiled: a limit on work, and not on time, so that all processes choose the same.
size_t MostCandidates(const Graph& graph) {
  constexpr int64_t kNodes = 300'000;
  return std::clamp<int64_t>(kNodes / std::max(1, graph.num_nodes()), 16, 300);
}

class RecomputeSearch {
 public:
  RecomputeSearch(const Graph& graph, const CompileOptions& options, std::vector<std::string> free)
      : graph_(graph),
        options_(options),
        free_(std::move(free)),
        pool_(graph, options, free_),
        most_(MostCandidates(graph)) {}

  Assignment Within(int64_t budget) {
    if (pool_.size() == 0) Describe();
    // More work may let a step end sooner, as it falls to stages in another order, or messages are hidden by
    // it. One device has all its work one after another.
    if (graph_.mesh().size() == 1 && Fits(pool_.all()[0], budget)) return pool_.all()[0].assignment;
    if (ways_.empty()) Search();
    return Pick(budget);
  }

 private:
  void Search() {
    Try({Assignment(free_.size(), Recompute::kFull), Assignment(free_.size(), Recompute::kSelective)});
    TryWays();
    TryThresholds();
    Shrink();
    CloseGaps();
  }

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
        for (size_t s = 0; s < pool_.ranks().size(); ++s)
          if (segment.slice.Contains(graph_.mesh().Coords(pool_.ranks()[s])))
            region.stage = static_cast<int>(s);
        if (auto stage = stages.find(segment.slice); stage != stages.end())
          stashes = ScheduleOf(options_.schedule, shape, stage->second, options_.exact_groups)
                        .Stashes(segment.chunk);
      }
      for (int m = 1; m < 3; ++m) {
        region.freed[m] = std::llround(stashes * (kept[0].bytes[free_[r]] - kept[m].bytes[free_[r]]));
        region.picoseconds[m] = std::llround(1e12 * kept[m].seconds[free_[r]]);
      }
      by_stage_[region.stage].push_back(static_cast<int>(r));
    }
  }

  void Try(const std::vector<Assignment>& all) {
    pool_.Add(all);
    for (const Assignment& a : all)
      for (size_t s = 0; s < by_stage_.size(); ++s) of_ways_[{s, ModesOf(a, s)}] = pool_.Of(a).bytes[s];
  }

  // Puts a way of a stage into an assignment.
  void Set(size_t stage, const Way& way, Assignment* assignment) const {
    for (size_t i = 0; i < way.modes.size(); ++i) (*assignment)[by_stage_[stage][i]] = way.modes[i];
  }

  // In the first candidates each stage takes its j-th way, which tells the bytes of all ways.
  void TryWays() {
    size_t longest = 1;
    for (const std::vector<int>& mine : by_stage_) {
      std::vector<const Region*> regions;
      for (int r : mine) regions.push_back(&regions_[r]);
      ways_.push_back(WaysOf(regions));
      tried_.push_back(Evenly(ways_.back().size(), most_ / 3));
      longest = std::max(longest, tried_.back().size());
    }
    std::vector<Assignment> all;
    for (size_t j = 0; j < longest; ++j) {
      Assignment a(free_.size(), Recompute::kNone);
      for (size_t s = 0; s < ways_.size(); ++s)
        Set(s, ways_[s][tried_[s][j * tried_[s].size() / longest]], &a);
      all.push_back(a);
    }
    Try(all);
    bytes_.resize(ways_.size());
    for (size_t s = 0; s < ways_.size(); ++s) {
      bytes_[s].resize(tried_[s].size());
      for (size_t j = 0; j < longest; ++j)
        bytes_[s][j * tried_[s].size() / longest] = pool_.Of(all[j]).bytes[s];
    }
  }

  // Then each stage takes its fastest way that needs no more than a number, of those that ways need.
  void TryThresholds() {
    std::set<int64_t> thresholds;
    for (const auto& of_stage : bytes_) thresholds.insert(of_stage.begin(), of_stage.end());
    std::vector<Assignment> all;
    for (int64_t bytes : thresholds) {
      Assignment a(free_.size(), Recompute::kNone);
      bool fits = true;
      for (size_t s = 0; s < ways_.size(); ++s) {
        size_t w = 0;
        while (w < tried_[s].size() && bytes_[s][w] > bytes) ++w;
        fits = fits && w < tried_[s].size();
        if (fits) Set(s, ways_[s][tried_[s][w]], &a);
      }
      if (fits && (all.empty() || all.back() != a)) all.push_back(a);
    }
    std::vector<Assignment> some;
    if (!all.empty())
      for (size_t i : Evenly(all.size(), most_ / 3)) some.push_back(all[i]);
    Try(some);
  }

  // Of all candidates that take so long or longer those that nothing beats in both seconds and bytes, by
  // seconds.
  std::vector<const Candidate*> Front(double least) const {
    std::vector<const Candidate*> front;
    for (const Candidate* c : Sorted())
      if (c->seconds >= least && (front.empty() || c->peak < front.back()->peak)) front.push_back(c);
    return front;
  }

  // Some candidates may be estimated to be faster than the one without recomputation. They are left out, so
  // that nothing is computed again where there is room for all, unless others would then be notably slower
  // at some budget. That depends on no budget, so that larger ones never give slower plans.
  double LeastSeconds() const {
    constexpr double kNotable = 1.01;
    const double none = pool_.all()[0].seconds;
    const std::vector<const Candidate*> all = Front(0), slower = Front(none);
    if (slower.back()->peak > all.back()->peak) return 0;  // the smallest is among them
    for (const Candidate* c : all) {
      const auto instead = std::find_if(slower.begin(), slower.end(),
                                        [&](const Candidate* other) { return other->peak <= c->peak; });
      if ((*instead)->seconds > kNotable * c->seconds) return 0;
    }
    return none;
  }

  using Nearby = std::vector<Assignment> (RecomputeSearch::*)(const Candidate& fast,
                                                              const Candidate& small) const;

  // From the smallest plan to smaller ones beside it, as far as a part of the candidates goes: what a stage
  // needs depends a little on the others, too, and the least budget is named to users.
  void Shrink() {
    const size_t most = std::min(most_, pool_.size() + most_ / 3);
    for (int64_t before = 0; before != Front(0).back()->peak && pool_.size() < most;) {
      const Candidate smallest = *Front(0).back();
      before = smallest.peak;
      for (const Nearby nearby : {&RecomputeSearch::Between, &RecomputeSearch::WithTwoChanges}) {
        std::vector<Assignment> beside;
        std::set<Assignment> seen;
        for (Assignment& a : (this->*nearby)(smallest, smallest))
          if (pool_.size() + beside.size() < most && !pool_.Knows(a) && seen.insert(a).second)
            beside.push_back(std::move(a));
        Try(beside);
        if (Front(0).back()->peak < before) break;
      }
    }
  }

  // Where the next smaller plan takes notably longer, looks for others between the two; for faster ones than
  // the fastest; and for smaller ones than the smallest.
  void CloseGaps() {
    while (pool_.size() < most_) {
      std::vector<Assignment> batch = InGaps(&RecomputeSearch::Between);
      if (batch.empty()) batch = InGaps(&RecomputeSearch::WithTwoChanges);
      if (batch.empty()) return;
      Try(batch);
    }
  }

  // Candidates that are not known, each from a gap of the front; the first of large gaps first.
  std::vector<Assignment> InGaps(Nearby nearby) const {
    constexpr double kNotable = 1.008, kEnd = 1.02;
    const std::vector<const Candidate*> front = Front(LeastSeconds());
    std::vector<std::pair<double, Assignment>> next;
    const auto add = [&](const Candidate& fast, const Candidate& small, double gap) {
      std::vector<Assignment> between = (this->*nearby)(fast, small);
      std::erase_if(between, [&](const Assignment& a) { return pool_.Knows(a); });
      for (size_t k = 0; k < between.size(); ++k)
        next.push_back({(1 - gap) / static_cast<double>(k + 1), std::move(between[k])});
    };
    for (size_t i = 0; i + 1 < front.size(); ++i)
      if (const double gap = front[i + 1]->seconds / front[i]->seconds; gap >= kNotable)
        add(*front[i], *front[i + 1], gap);
    Candidate any = *front.front();
    any.peak = std::numeric_limits<int64_t>::max();
    add(any, any, kEnd);
    add(*front.back(), *front.back(), kEnd);
    std::stable_sort(next.begin(), next.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Assignment> batch;
    std::set<Assignment> seen;
    const size_t most = std::max<size_t>(4, (most_ - pool_.size() + 1) / 2);
    for (auto& [gap, a] : next)
      if (batch.size() < most && seen.insert(a).second) batch.push_back(std::move(a));
    return batch;
  }

  // Half way between two in all stages, then in one; then neighbours of both, by one way of one stage or by
  // one mode of one region.
  std::vector<Assignment> Between(const Candidate& faster, const Candidate& smaller) const {
    const Assignment &fast = faster.assignment, &small = smaller.assignment;
    std::vector<Assignment> all(1, small);
    const std::vector<int> a = WaysIn(fast), b = WaysIn(small);
    auto add = [&](const Assignment& from, size_t stage, int way) {
      if (way < 0 || way >= std::ssize(ways_[stage])) return;
      all.push_back(from);
      Set(stage, ways_[stage][way], &all.back());
    };
    for (size_t s = 0; s < ways_.size(); ++s) {
      if (a[s] < 0 || b[s] < 0) continue;
      const int middle = (a[s] + b[s]) / 2;
      Set(s, ways_[s][middle], &all[0]);
      if (middle != a[s]) add(small, s, middle);
    }
    for (const auto& [from, ways] : {std::pair(&small, &b), {&fast, &a}})
      for (size_t s = 0; s < ways_.size(); ++s)
        for (int step : {-1, 1})
          if ((*ways)[s] >= 0) add(*from, s, (*ways)[s] + step);
    for (const Assignment* from : {&small, &fast})
      for (size_t r = 0; r < from->size(); ++r)
        for (const Recompute mode : kModes) {
          all.push_back(*from);
          all.back()[r] = mode;
        }
    return all;
  }

  // Both with two regions changed, those that compute less again first; without those of which a stage is
  // known to need as much as the faster one does.
  std::vector<Assignment> WithTwoChanges(const Candidate& fast, const Candidate& small) const {
    std::vector<std::pair<int64_t, Assignment>> all;
    for (const Assignment* from : {&small.assignment, &fast.assignment})
      for (size_t r = 0; r < from->size(); ++r)
        for (size_t other = r + 1; other < from->size(); ++other)
          for (const Recompute mode : kModes)
            for (const Recompute mode2 : kModes) {
              Assignment a = *from;
              a[r] = mode, a[other] = mode2;
              if (KnownBytes(a) < fast.peak) all.push_back({Picoseconds(a), std::move(a)});
            }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Assignment> sorted;
    for (auto& [picoseconds, a] : all) sorted.push_back(std::move(a));
    return sorted;
  }

  int64_t Picoseconds(const Assignment& a) const {
    int64_t sum = 0;
    for (size_t r = 0; r < a.size(); ++r) sum += regions_[r].picoseconds[static_cast<size_t>(a[r])];
    return sum;
  }

  // The most that stages need, of those that had the same ways in other candidates.
  int64_t KnownBytes(const Assignment& a) const {
    int64_t bytes = 0;
    for (size_t s = 0; s < by_stage_.size(); ++s)
      if (const auto known = of_ways_.find({s, ModesOf(a, s)}); known != of_ways_.end())
        bytes = std::max(bytes, known->second);
    return bytes;
  }

  std::vector<Recompute> ModesOf(const Assignment& a, size_t stage) const {
    std::vector<Recompute> modes;
    for (int r : by_stage_[stage]) modes.push_back(a[r]);
    return modes;
  }

  // The number of each stage's way; -1 where it is none of them.
  std::vector<int> WaysIn(const Assignment& assignment) const {
    std::vector<int> numbers;
    for (size_t s = 0; s < ways_.size(); ++s) {
      const std::vector<Recompute> mine = ModesOf(assignment, s);
      const auto at =
          std::find_if(ways_[s].begin(), ways_[s].end(), [&](const Way& w) { return w.modes == mine; });
      numbers.push_back(at == ways_[s].end() ? -1 : static_cast<int>(at - ways_[s].begin()));
    }
    return numbers;
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

  bool Fits(const Candidate& c, int64_t budget) const {
    return c.peak <= budget && pool_.PeakOfAllRanks(c) <= budget;
  }

  // The fastest that fits, or the smallest if none does.
  Assignment Pick(int64_t budget) const {
    const std::vector<const Candidate*> sorted = Sorted();
    const double least = LeastSeconds();
    for (const Candidate* c : sorted)
      if (c->seconds >= least && Fits(*c, budget)) return c->assignment;
    return Smallest(sorted)->assignment;
  }

  // On all ranks, none of which needs less than the first ones of stages say.
  const Candidate* Smallest(std::vector<const Candidate*> by_peak) const {
    std::stable_sort(by_peak.begin(), by_peak.end(),
                     [](const Candidate* a, const Candidate* b) { return a->peak < b->peak; });
    const Candidate* smallest = nullptr;
    int64_t least = 0;
    for (const Candidate* c : by_peak) {
      if (smallest && c->peak >= least) break;
      const int64_t bytes = pool_.PeakOfAllRanks(*c);
      if (!smallest || bytes < least) smallest = c, least = bytes;
    }
    return smallest;
  }

  const Graph& graph_;
  const CompileOptions& options_;
  const std::vector<std::string> free_;
  CandidatePool pool_;
  const size_t most_;                        // candidates
  std::vector<Region> regions_;              // as free_
  std::vector<std::vector<int>> by_stage_;   // regions
  std::vector<std::vector<Way>> ways_;       // by stage
  std::vector<std::vector<size_t>> tried_;   // by stage, the ways that the first candidates have
  std::vector<std::vector<int64_t>> bytes_;  // by stage, of these
  std::map<std::pair<size_t, std::vector<Recompute>>, int64_t> of_ways_;  // bytes, by stage and its modes
};

}  // namespace

RecomputeWithin SearchRecompute(const Graph& graph, const CompileOptions& options) {
  std::vector<std::string> free = FreeRegions(graph, options);
  if (free.empty()) return [](int64_t) { return std::map<std::string, Recompute>(); };
  const auto search = std::make_shared<RecomputeSearch>(graph, options, free);
  return [search, free = std::move(free)](int64_t memory_budget) {
    const Assignment chosen = search->Within(memory_budget);
    std::map<std::string, Recompute> choices;
    for (size_t r = 0; r < free.size(); ++r) choices[free[r]] = chosen[r];
    return choices;
  };
}

void ChooseRecompute(Graph* graph, const CompileOptions& options) {
  if (options.recompute_all) {
    for (const std::string& region : FreeRegions(*graph, options))
      graph->regions().Choose(region, Recompute::kFull);
    return;
  }
  for (const auto& [region, mode] : SearchRecompute(*graph, options)(options.memory_budget))
    graph->regions().Choose(region, mode);
}

}  // namespace oneflow_like
