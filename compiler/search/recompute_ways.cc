#include "compiler/search/recompute_ways.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "compiler/plan/schedule.h"
#include "compiler/search/wait_prices.h"

namespace oneflow_like {

std::vector<size_t> Evenly(size_t all, size_t few) {
  std::vector<size_t> numbers;
  const size_t count = std::min(all, std::max<size_t>(few, 2));
  for (size_t i = 0; i < count; ++i) numbers.push_back(count == 1 ? 0 : i * (all - 1) / (count - 1));
  return numbers;
}

// The ways of a stage, by seconds: all, as estimates are rough, or of more than a few regions those with the
// most bytes freed for their seconds (Nemhauser and Ullmann 1969); of very many some. Of equal ones the one
// that recomputes earlier regions.
std::vector<RecomputeWay> RecomputeWays::WaysOf(const std::vector<const Region*>& regions) const {
  constexpr size_t kMost = 1024;
  constexpr double kFew = 27;
  const std::vector<Recompute>& modes = pool_.modes();
  const bool few = std::pow(static_cast<double>(modes.size()), static_cast<double>(regions.size())) <= kFew;
  std::vector<RecomputeWay> ways(1);
  for (const Region* region : regions) {
    std::vector<RecomputeWay> longer;
    for (size_t i : Evenly(ways.size(), kMost))
      for (const Recompute mode : modes) {
        RecomputeWay next = ways[i];
        next.modes.push_back(mode);
        next.freed += region->freed[static_cast<size_t>(mode)];
        next.picoseconds += region->picoseconds[static_cast<size_t>(mode)];
        longer.push_back(std::move(next));
      }
    std::sort(longer.begin(), longer.end(), [](const RecomputeWay& a, const RecomputeWay& b) {
      return std::tie(a.picoseconds, b.freed, b.modes) < std::tie(b.picoseconds, a.freed, a.modes);
    });
    ways.clear();
    for (RecomputeWay& way : longer)
      if (few || ways.empty() || way.freed > ways.back().freed) ways.push_back(std::move(way));
  }
  return ways;
}

RecomputeWays::RecomputeWays(CandidatePool* pool) : pool_(*pool), regions_(pool->regions().size()) {
  FindStages(pool_.AddFirst());
  for (const std::vector<int>& mine : by_stage_) {
    std::vector<const Region*> regions;
    for (int r : mine) regions.push_back(&regions_[r]);
    ways_.push_back(WaysOf(regions));
  }
}

void RecomputeWays::FindStages(const Compiled& base) {
  const Graph& graph = pool_.graph();
  const CompileOptions& options = pool_.options();
  const Decisions& decided = options.decided;
  const std::vector<std::string>& open = pool_.regions();
  by_stage_.resize(pool_.ranks().size());
  if (open.empty()) return;
  const std::vector<Recompute>& modes = pool_.modes();
  std::vector<KeptOfRegions> kept(modes.size());
  SideBySide(static_cast<int>(modes.size()), 0,
             [&](int m) { kept[m] = KeptWith(pool_.GraphWith(Assignment(open.size(), modes[m])), options); });
  const PipelineShape shape = ShapeOf(base.logical, graph.times());
  const std::map<Slice, int> stages = StagesOf(base.logical);
  std::map<std::string, int> where;  // segment, by region
  for (size_t s = 0; s < base.logical.segments.size(); ++s) {
    const Segment& segment = base.logical.segments[s];
    if (segment.phase != Phase::kForward || !base.logical.On(segment, StreamKind::kCompute)) continue;
    for (int n : segment.nodes) where[base.graph.regions().Of(base.graph.node(n).name)] = static_cast<int>(s);
  }
  for (size_t r = 0; r < open.size(); ++r) {
    Region& region = regions_[r];
    double stashes = 1;
    if (auto at = where.find(open[r]); at != where.end()) {
      const Segment& segment = base.logical.segments[at->second];
      for (size_t s = 0; s < pool_.ranks().size(); ++s)
        if (segment.slice.Contains(graph.mesh().Coords(pool_.ranks()[s]))) region.stage = static_cast<int>(s);
      if (auto stage = stages.find(segment.slice); stage != stages.end())
        stashes =
            ScheduleOf(decided.schedule, shape, stage->second, decided.exact_groups).Stashes(segment.chunk);
    }
    for (size_t m = 1; m < modes.size(); ++m) {
      const auto mode = static_cast<size_t>(modes[m]);
      region.freed[mode] = std::llround(stashes * (kept[0].bytes[open[r]] - kept[m].bytes[open[r]]));
      region.picoseconds[mode] = std::llround(1e12 * (kept[m].seconds[open[r]] - kept[0].seconds[open[r]]));
    }
    by_stage_[region.stage].push_back(static_cast<int>(r));
  }
}

void RecomputeWays::Set(size_t stage, const RecomputeWay& way, Assignment* assignment) const {
  for (size_t i = 0; i < way.modes.size(); ++i) (*assignment)[by_stage_[stage][i]] = way.modes[i];
}

void RecomputeWays::Try(const std::vector<Assignment>& all) {
  pool_.Add(all);
  for (const Assignment& a : all)
    for (size_t s = 0; s < by_stage_.size(); ++s) of_ways_[{s, ModesOf(a, s)}] = pool_.Of(a).bytes[s];
}

std::vector<Assignment> RecomputeWays::Between(const Candidate& faster, const Candidate& smaller) const {
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
      for (const Recompute mode : pool_.modes()) {
        all.push_back(*from);
        all.back()[r] = mode;
      }
  return all;
}

std::vector<Assignment> RecomputeWays::WithTwoChanges(const Candidate& fast, const Candidate& small) const {
  std::vector<std::pair<int64_t, Assignment>> all;
  for (const Assignment* from : {&small.assignment, &fast.assignment})
    for (size_t r = 0; r < from->size(); ++r)
      for (size_t other = r + 1; other < from->size(); ++other)
        for (const Recompute mode : pool_.modes())
          for (const Recompute mode2 : pool_.modes()) {
            Assignment a = *from;
            a[r] = mode, a[other] = mode2;
            if (KnownBytes(a) < fast.peak) all.push_back({Picoseconds(a), std::move(a)});
          }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Assignment> sorted;
  for (auto& [picoseconds, a] : all) sorted.push_back(std::move(a));
  return sorted;
}

int64_t RecomputeWays::Picoseconds(const Assignment& a) const {
  int64_t sum = 0;
  for (size_t r = 0; r < a.size(); ++r) sum += regions_[r].picoseconds[static_cast<size_t>(a[r])];
  return sum;
}

int64_t RecomputeWays::KnownBytes(const Assignment& a) const {
  int64_t bytes = 0;
  for (size_t s = 0; s < by_stage_.size(); ++s)
    if (const auto known = of_ways_.find({s, ModesOf(a, s)}); known != of_ways_.end())
      bytes = std::max(bytes, known->second);
  return bytes;
}

std::vector<Recompute> RecomputeWays::ModesOf(const Assignment& a, size_t stage) const {
  std::vector<Recompute> modes;
  for (int r : by_stage_[stage]) modes.push_back(a[r]);
  return modes;
}

std::vector<int> RecomputeWays::WaysIn(const Assignment& assignment) const {
  std::vector<int> numbers;
  for (size_t s = 0; s < ways_.size(); ++s) {
    const std::vector<Recompute> mine = ModesOf(assignment, s);
    const auto at = std::find_if(ways_[s].begin(), ways_[s].end(),
                                 [&](const RecomputeWay& w) { return w.modes == mine; });
    numbers.push_back(at == ways_[s].end() ? -1 : static_cast<int>(at - ways_[s].begin()));
  }
  return numbers;
}

}  // namespace oneflow_like
