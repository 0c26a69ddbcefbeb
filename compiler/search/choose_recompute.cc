// Chooses what is kept, sent and computed again so that the plan fits in memory, at the least estimated time.
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
#include "compiler/search/choose_recompute.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

namespace oneflow_like {

namespace {

// How many candidates are compiled: a limit on work, and not on time, so that all processes choose the same.
size_t MostCandidates(const Graph& graph) {
  constexpr int64_t kNodes = 300'000;
  return std::clamp<int64_t>(kNodes / std::max(1, graph.num_nodes()), 16, 300);
}

}  // namespace

int64_t WaitChoice::peak() const {
  int64_t peak = 0;
  for (const auto& [rank, of_rank] : bytes) peak = std::max(peak, of_rank);
  return peak;
}

RecomputeSearch::RecomputeSearch(Graph graph, CompileOptions options, BytesBeside beside)
    : pool_(std::move(graph), std::move(options), std::move(beside)),
      ways_(&pool_),
      most_(MostCandidates(pool_.graph())) {}

WaitChoice RecomputeSearch::All(Recompute mode) {
  const Assignment all(regions().size(), mode);
  ways_.Try({all});
  return ChoiceOf(pool_.Of(all));
}

WaitChoice RecomputeSearch::Within(int64_t budget) {
  // More work may let a step end sooner, as it falls to stages in another order, or messages are hidden by
  // it, or less is copied to the host. One device has all its work one after another.
  const bool copies = pool_.options().decided.offload.activations;
  const bool alone = regions().empty() || (pool_.graph().mesh().size() == 1 && !copies);
  if (alone && (regions().empty() || Fits(pool_.all()[0], budget))) return ChoiceOf(pool_.all()[0]);
  if (tried_.empty()) Search();
  const double least = LeastSeconds();
  constexpr double kAlike = 1.0001;  // the same layers in another order
  std::optional<WaitChoice> best;
  for (const Candidate* c : Sorted()) {
    if (c->seconds < least) continue;
    if (!best && Fits(*c, budget)) {
      best = ChoiceOf(*c);
      best->compared = pool_.size();
    } else if (best && c->seconds > kAlike * best->seconds && Fits(*c, budget)) {
      best->next = pool_.WaitsOf(c->assignment);
      best->next_seconds = c->seconds;
      break;
    }
  }
  return best ? *best : ChoiceOf(Smallest());
}

WaitChoice RecomputeSearch::ChoiceOf(const Candidate& candidate) const {
  return {pool_.WaitsOf(candidate.assignment), candidate.seconds, pool_.BytesOfRanks(candidate)};
}

void RecomputeSearch::Search() {
  std::vector<Assignment> alike;
  for (auto mode = modes().rbegin(); mode != modes().rend(); ++mode)
    alike.emplace_back(regions().size(), *mode);
  ways_.Try(alike);
  TryWays();
  TryThresholds();
  Shrink();
  CloseGaps();
}

// In the first candidates each stage takes its j-th way, which tells the bytes of all ways.
void RecomputeSearch::TryWays() {
  size_t longest = 1;
  for (size_t s = 0; s < ways_.stages(); ++s) {
    tried_.push_back(Evenly(ways_.Of(s).size(), most_ / 3));
    longest = std::max(longest, tried_.back().size());
  }
  const auto way_of = [&](size_t stage, size_t j) { return j * tried_[stage].size() / longest; };
  std::vector<Assignment> all;
  for (size_t j = 0; j < longest; ++j) {
    Assignment a(regions().size(), modes().front());
    for (size_t s = 0; s < ways_.stages(); ++s) ways_.Set(s, ways_.Of(s)[tried_[s][way_of(s, j)]], &a);
    all.push_back(a);
  }
  ways_.Try(all);
  for (size_t s = 0; s < ways_.stages(); ++s) {
    bytes_.emplace_back(tried_[s].size());
    for (size_t j = 0; j < longest; ++j) bytes_[s][way_of(s, j)] = pool_.Of(all[j]).bytes[s];
  }
}

// Then each stage takes its fastest way that needs no more than a number, of those that ways need.
void RecomputeSearch::TryThresholds() {
  std::set<int64_t> thresholds;
  for (const auto& of_stage : bytes_) thresholds.insert(of_stage.begin(), of_stage.end());
  std::vector<Assignment> all;
  for (int64_t bytes : thresholds) {
    Assignment a(regions().size(), modes().front());
    bool fits = true;
    for (size_t s = 0; s < ways_.stages(); ++s) {
      size_t w = 0;
      while (w < tried_[s].size() && bytes_[s][w] > bytes) ++w;
      fits = fits && w < tried_[s].size();
      if (fits) ways_.Set(s, ways_.Of(s)[tried_[s][w]], &a);
    }
    if (fits && (all.empty() || all.back() != a)) all.push_back(a);
  }
  std::vector<Assignment> some;
  if (!all.empty())
    for (size_t i : Evenly(all.size(), most_ / 3)) some.push_back(all[i]);
  ways_.Try(some);
}
// Of all candidates that take so long or longer those that nothing beats in both seconds and bytes, by
// seconds.
std::vector<const Candidate*> RecomputeSearch::Front(double least) const {
  std::vector<const Candidate*> front;
  for (const Candidate* c : Sorted())
    if (c->seconds >= least && (front.empty() || c->peak < front.back()->peak)) front.push_back(c);
  return front;
}

// Some candidates may be estimated to be faster than the one without recomputation. They are left out, so
// that nothing is computed again where there is room for all, unless others would then be notably slower
// at some budget. That depends on no budget, so that larger ones never give slower plans.
double RecomputeSearch::LeastSeconds() const {
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

// From the smallest plan to smaller ones beside it, as far as a part of the candidates goes: what a stage
// needs depends a little on the others, too, and the least budget is named to users.
void RecomputeSearch::Shrink() {
  const size_t most = std::min(most_, pool_.size() + most_ / 3);
  for (int64_t before = 0; before != Front(0).back()->peak && pool_.size() < most;) {
    const Candidate smallest = *Front(0).back();
    before = smallest.peak;
    for (const Nearby nearby : {&RecomputeWays::Between, &RecomputeWays::WithTwoChanges}) {
      std::vector<Assignment> beside;
      std::set<Assignment> seen;
      for (Assignment& a : (ways_.*nearby)(smallest, smallest))
        if (pool_.size() + beside.size() < most && !pool_.Knows(a) && seen.insert(a).second)
          beside.push_back(std::move(a));
      ways_.Try(beside);
      if (Front(0).back()->peak < before) break;
    }
  }
}

// Where the next smaller plan takes notably longer, looks for others between the two; for faster ones than
// the fastest; and for smaller ones than the smallest.
void RecomputeSearch::CloseGaps() {
  while (pool_.size() < most_) {
    std::vector<Assignment> batch = InGaps(&RecomputeWays::Between);
    if (batch.empty()) batch = InGaps(&RecomputeWays::WithTwoChanges);
    if (batch.empty()) return;
    ways_.Try(batch);
  }
}

// Candidates that are not known, each from a gap of the front; the first of large gaps first.
std::vector<Assignment> RecomputeSearch::InGaps(Nearby nearby) const {
  constexpr double kNotable = 1.008, kEnd = 1.02;
  const std::vector<const Candidate*> front = Front(LeastSeconds());
  std::vector<std::pair<double, Assignment>> next;
  const auto add = [&](const Candidate& fast, const Candidate& small, double gap) {
    std::vector<Assignment> between = (ways_.*nearby)(fast, small);
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
  std::stable_sort(next.begin(), next.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Assignment> batch;
  std::set<Assignment> seen;
  const size_t most = std::max<size_t>(4, (most_ - pool_.size() + 1) / 2);
  for (auto& [gap, a] : next)
    if (batch.size() < most && seen.insert(a).second) batch.push_back(std::move(a));
  return batch;
}

// By seconds, then bytes.
std::vector<const Candidate*> RecomputeSearch::Sorted() const {
  std::vector<const Candidate*> sorted;
  for (const Candidate& c : pool_.all()) sorted.push_back(&c);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Candidate* a, const Candidate* b) {
    return std::pair(a->seconds, a->peak) < std::pair(b->seconds, b->peak);
  });
  return sorted;
}

bool RecomputeSearch::Fits(const Candidate& c, int64_t budget) const {
  return c.peak <= budget && pool_.PeakOfAllRanks(c) <= budget;
}

// On all ranks, none of which needs less than the first ones of stages say.
const Candidate& RecomputeSearch::Smallest() const {
  std::vector<const Candidate*> by_peak = Sorted();
  std::stable_sort(by_peak.begin(), by_peak.end(),
                   [](const Candidate* a, const Candidate* b) { return a->peak < b->peak; });
  const Candidate* smallest = nullptr;
  int64_t least = 0;
  for (const Candidate* c : by_peak) {
    if (smallest && c->peak >= least) break;
    const int64_t bytes = pool_.PeakOfAllRanks(*c);
    if (!smallest || bytes < least) smallest = c, least = bytes;
  }
  return *smallest;
}

}  // namespace oneflow_like
