// Estimates order all candidates; those that promise most are compiled and simulated, a few at a time, and
// what they were found to take corrects the estimates of those that resemble them.
#include "oneflow_like/plan_search.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "actor/net/talk/job.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/planner/plan_estimate.h"
#include "oneflow_like/planner/plan_share.h"
#include "oneflow_like/planner/trial_pool.h"
#include "oneflow_like/session/summary.h"
#include "oneflow_like/simulate.h"

namespace oneflow_like {
namespace {

constexpr size_t kWave = 4;                // candidates compiled at a time, on however many cores
constexpr size_t kBest = 10;               // that are shown
constexpr size_t kOpened = 4;              // in which what is left open is searched for, at least
constexpr double kHopeless = 1.2;          // times the best: estimates are not off by more
constexpr int64_t kManyActs = 12'000'000;  // in steps of plans that were tried: few more are, for their time
constexpr double kTooFar = 2;              // times the best: nor are those of larger tp ever
constexpr double kTightest = 1.02;         // times the memory: estimates above are believed

// Drops candidates that are the same plan as others. Returns how many are left.
int64_t DropRepeated(const PlanEstimator& estimator, std::vector<PlanCandidate>* some) {
  std::erase_if(*some, [&](const PlanCandidate& c) { return estimator.IsRepeated(c); });
  return std::ssize(*some);
}

// Adds all candidates to the pool. Returns how many there are, each plan once.
int64_t EstimateAll(const PlanSpace& space, PlanEstimator& estimator, TrialPool* pool_of) {
  TrialPool& pool = *pool_of;
  int64_t number = 0;
  const size_t first = pool.entries().size();
  // The number of blocks is the model's, on any mesh.
  PlanCandidate any;
  const auto tp = space.extents.find("tp");
  any.mesh = Mesh(space.kind, {{"dp", 1}, {"tp", tp == space.extents.end() ? 1 : tp->second}, {"pp", 1}});
  any.recompute = space.recompute.value_or(Recompute::kNone);
  any.sequence_parallel = space.sequence_parallel.value_or(false);
  estimator.Prepare({any});
  if (!estimator.why_not().empty()) Fail("no plan can be built: ", estimator.why_not());
  std::vector<PlanCandidate> candidates = CandidatesOf(space, estimator.blocks());
  std::map<int, std::vector<PlanCandidate>> by_tp;
  for (PlanCandidate& c : candidates) by_tp[c.extent("tp")].push_back(std::move(c));
  estimator.Prepare(by_tp.begin()->second);
  for (auto& [extent, some] : by_tp) number += DropRepeated(estimator, &some);
  double best = 0;  // of those that fit
  for (auto& [extent, some] : by_tp) {
    // Where a larger tp leaves as much to each rank, it still leaves less for dp to exchange if all of it is
    // whole, which is a choice where cuts are open.
    if (pool.entries().size() > first && !space.cuts && estimator.Exhausted()) break;
    estimator.Prepare(some);
    number -= std::ssize(some);
    number += DropRepeated(estimator, &some);
    double fastest = 0;
    for (PlanCandidate& c : some) {
      c.open_cuts = space.cuts;
      std::vector<PlanTrial> estimates = estimator.Estimate(c);
      if (estimates.empty()) continue;
      const TrialEntry& entry = pool.Add(std::move(estimates));
      const double seconds = entry.estimated_seconds;
      fastest = fastest == 0 ? seconds : std::min(fastest, seconds);
      if (pool.Fits(entry.estimated_bytes)) best = best == 0 ? seconds : std::min(best, seconds);
    }
    if (best > 0 && fastest > kTooFar * best) break;  // and more so with a larger tp
  }
  if (pool.entries().size() == first) Fail("no plan can be built: ", estimator.why_not());
  pool.SortByEstimate(first);
  VLOG(1) << "plans: " << pool.entries().size() << " candidates are estimated";
  return number;
}

// Of those that are estimated to fit the fastest, each of another shape of the mesh.
std::vector<int> NextWave(TrialPool* pool_of, size_t compiled) {
  TrialPool& pool = *pool_of;
  std::vector<int> order;
  for (size_t i = 0; i < pool.entries().size(); ++i) {
    if (pool.entries()[i].tried) continue;
    pool.Correct(&pool.entries()[i]);
    if (pool.Fits(static_cast<double>(pool.entries()[i].trial.bytes) / kTightest))
      order.push_back(static_cast<int>(i));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return pool.entries()[a].better(pool.entries()[b]); });
  const double best = pool.BestSeconds();
  const double hopeless = (pool.acts() > kManyActs ? 1 : kHopeless) * best;
  const size_t most = std::min<size_t>(kWave, compiled - pool.tried().size());
  std::vector<int> wave;
  std::set<MeshShape> shapes;
  for (int i : order) {
    if (wave.size() == most) break;
    if (best > 0 && pool.Fitting() >= kBest && pool.entries()[i].trial.seconds > hopeless) break;
    if (shapes.insert(pool.entries()[i].shape).second) wave.push_back(i);
  }
  return wave;
}

// Where nothing has fitted, those that need least tell by how much, if they do not fit after all.
void TrySmallest(TrialPool* pool_of, size_t compiled) {
  TrialPool& pool = *pool_of;
  while (pool.tried().size() < compiled && pool.BestSeconds() == 0) {
    std::vector<int> order;
    for (size_t i = 0; i < pool.entries().size(); ++i) {
      if (pool.entries()[i].tried) continue;
      pool.Correct(&pool.entries()[i]);
      order.push_back(static_cast<int>(i));
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return pool.entries()[a].trial.bytes < pool.entries()[b].trial.bytes;
    });
    const TrialEntry* least = pool.Smallest();
    if (order.empty() || (least && static_cast<double>(pool.entries()[order[0]].trial.bytes) >
                                       kHopeless * static_cast<double>(least->trial.bytes)))
      return;
    order.resize(std::min<size_t>({order.size(), kWave, compiled - pool.tried().size()}));
    pool.Try(order);
  }
}

// A candidate, whatever is computed again and cut.
std::string KeyOf(PlanCandidate candidate) {
  candidate.logits_tile = 0;
  candidate.recompute = Recompute::kNone;
  candidate.cuts = {};
  return candidate.str();
}

// Where nothing fits, parts of some plans wait on the host, more of them until one fits: of those that need
// least, and of the fastest, whatever is computed again.
void TryOnHost(TrialPool* pool_of) {
  constexpr size_t kMost = 3;  // of either
  TrialPool& pool = *pool_of;
  std::map<std::string, PlanTrial> least;  // by KeyOf
  for (int t : pool.tried()) {
    const PlanTrial& trial = pool.entries()[t].trial;
    if (!trial.compiled) continue;
    const auto [known, fresh] = least.try_emplace(KeyOf(trial.plan), trial);
    if (!fresh && trial.bytes < known->second.bytes) known->second = trial;
  }
  std::vector<PlanTrial> order;
  for (const auto& [key, trial] : least) order.push_back(trial);
  std::stable_sort(order.begin(), order.end(),
                   [](const PlanTrial& a, const PlanTrial& b) { return a.bytes < b.bytes; });
  const auto rest = order.begin() + static_cast<ptrdiff_t>(std::min(kMost, order.size()));
  std::stable_sort(rest, order.end(),
                   [](const PlanTrial& a, const PlanTrial& b) { return a.seconds < b.seconds; });
  if (order.size() > 2 * kMost) order.resize(2 * kMost);
  for (const char* parts : {"activations", "activations,optimizer", "activations,optimizer,weights"}) {
    for (const PlanTrial& trial : order)
      for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        PlanCandidate candidate = trial.plan;
        candidate.recompute = mode;
        candidate.waits = {};
        candidate.offload = ParseOffload(parts, "a search for a plan");
        pool.TryAlso(std::move(candidate));
      }
    if (pool.BestSeconds() > 0) return;
  }
}

// Before anything is tried: entries are in the order of their seconds.
[[noreturn]] void RefuseAll(const PlanSpace& space, const TrialPool& pool, double variables) {
  const auto smallest = std::min_element(
      pool.entries().begin(), pool.entries().end(),
      [](const TrialEntry& a, const TrialEntry& b) { return a.estimated_bytes < b.estimated_bytes; });
  Fail("no plan of ", space.devices, " devices fits: weights and optimizer state take ", BytesText(variables),
       " of a device on average, and the smallest plan, ", smallest->trial.plan.str(), ", about ",
       BytesText(smallest->estimated_bytes), ", more than the ",
       BytesText(static_cast<double>(pool.memory())), " there are; take more devices or a smaller model");
}

[[noreturn]] void Refuse(const PlanSpace& space, const TrialPool& pool) {
  const TrialEntry* least = pool.Smallest();
  if (!least) {
    const auto built = std::find_if(pool.tried().begin(), pool.tried().end(),
                                    [&](int t) { return pool.entries()[t].estimated_seconds > 0; });
    Fail("no plan can be built: ", pool.entries()[*built].trial.why);
  }
  Fail("no plan of ", space.devices, " devices fits: the smallest found, ", least->trial.plan.str(),
       ", needs ", BytesText(static_cast<double>(least->trial.bytes)), " of a device, ",
       BytesText(static_cast<double>(least->trial.bytes - pool.memory())), " more than the ",
       BytesText(static_cast<double>(pool.memory())), " there are; take more devices or a smaller batch");
}

// Of candidates that differ in what is computed again, the seconds that one between them may hope for: on the
// line between one that fits and one that does not. Where none fits other cuts of weights may, for a price.
double HopeOf(const TrialPool& pool, bool cuts, const std::vector<const TrialEntry*>& alike) {
  const auto memory = static_cast<double>(pool.memory());
  double hope = std::numeric_limits<double>::infinity();
  for (const TrialEntry* fits : alike) {
    const auto bytes = static_cast<double>(fits->trial.bytes);
    if (!pool.Fits(bytes)) {
      if (cuts) hope = std::min(hope, fits->trial.seconds * bytes / memory);
      continue;
    }
    hope = std::min(hope, fits->trial.seconds);
    for (const TrialEntry* not_fits : alike)
      if (const auto more = static_cast<double>(not_fits->trial.bytes); !pool.Fits(more))
        hope = std::min(hope, not_fits->trial.seconds + (more - memory) / (more - bytes) *
                                                            (fits->trial.seconds - not_fits->trial.seconds));
  }
  return hope;
}

// How many plans more are tried where a step has few acts.
size_t MostOfFewActs(const TrialPool& pool) {
  constexpr int64_t kActs = 1000, kMany = 24;
  const int64_t acts = pool.acts() / std::max<int64_t>(1, std::ssize(pool.tried()));
  return static_cast<size_t>(std::min(kMany, kActs / std::max<int64_t>(1, acts)));
}

// What is left open in each candidate is searched for in those that may hope for most: in few, or in many of
// which a step has few acts.
void SearchOpen(const PlanSpace& space, TrialPool* pool) {
  constexpr double kNoHope = 1.2;  // times the best, of what fits without a search
  // Where any memory will do, nothing needs to be computed again, and cuts have been chosen already.
  if (pool->memory() == 0 || !(space.cuts || space.waits)) return;
  std::map<std::string, std::vector<const TrialEntry*>> alike;
  for (TrialEntry& entry : pool->entries()) {
    if (!entry.tried) pool->Correct(&entry);
    if (entry.trial.why.empty() && HasOpenCuts(entry.trial.plan) == space.cuts)
      alike[KeyOf(entry.trial.plan)].push_back(&entry);
  }
  std::vector<std::tuple<double, int64_t, PlanCandidate>> order;
  for (const auto& [key, entries] : alike) {
    const TrialEntry* least = *std::min_element(
        entries.begin(), entries.end(),
        [](const TrialEntry* a, const TrialEntry* b) { return a->trial.bytes < b->trial.bytes; });
    order.push_back({HopeOf(*pool, space.cuts, entries), least->trial.bytes, least->trial.plan});
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a)) < std::tie(std::get<0>(b), std::get<1>(b));
  });
  const size_t most = std::max(kOpened, MostOfFewActs(*pool));
  for (size_t i = 0; i < std::min(most, order.size()); ++i) {
    const auto& [hope, least, plan] = order[i];
    const double best = pool->BestSeconds();
    if (best > 0 && pool->Fits(static_cast<double>(least)) && hope > kNoHope * best) continue;
    PlanCandidate candidate = plan;
    candidate.stages = {};
    candidate.cuts = {};
    candidate.logits_tile = 0;
    candidate.open_cuts = space.cuts;
    candidate.open_waits = space.waits;
    candidate.memory = pool->memory();
    if (space.waits) candidate.recompute = Recompute::kNone;
    pool->TryAlso(std::move(candidate));
  }
}

// Beside the fastest plan with choices of its own for regions, as long as one is faster: each region
// otherwise. What was decided comes from estimates of a step, which simulation tells apart. Few, as kActs
// says.
void WaitOtherwise(TrialPool* pool) {
  for (double before = 0; before != pool->BestSeconds();) {
    before = pool->BestSeconds();
    const TrialEntry* best = pool->Best();
    if (!best || best->trial.plan.waits.empty()) return;
    const PlanCandidate plan = best->trial.plan;
    if (2 * plan.waits.size() > MostOfFewActs(*pool)) return;
    const bool gathers = std::any_of(plan.waits.begin(), plan.waits.end(),
                                     [](const auto& wait) { return GathersAgain(wait.second); });
    for (const auto& [region, mode] : plan.waits)
      for (const Recompute other : kRecomputeModes) {
        if (GathersAgain(other) && !gathers) continue;  // most likely there is nothing to send again
        if (other == Recompute::kHost) continue;
        PlanCandidate candidate = plan;
        candidate.waits[region] = other;
        if (other != mode) pool->TryAlso(std::move(candidate));
      }
  }
}

bool MayWaitOnHost(const PlanSpace& space, const Machine& machine) {
  return space.waits && space.host && machine.host.known;
}

// Tries the most promising candidates of a space, at most until so many have been tried. Returns how many
// candidates there are.
int64_t SearchIn(const PlanSpace& space, const Machine& machine, const BuildPlan& build, size_t most,
                 TrialPool* pool) {
  const bool on_host = MayWaitOnHost(space, machine);
  PlanEstimator estimator(space, machine, build);
  const int64_t candidates = EstimateAll(space, estimator, pool);
  if (const double least = estimator.LeastVariables(); !on_host && !pool->Fits(least))
    RefuseAll(space, *pool, least);
  for (std::vector<int> wave; pool->tried().size() < most && !(wave = NextWave(pool, most)).empty();)
    pool->Try(wave);
  SearchOpen(space, pool);
  if (space.waits) WaitOtherwise(pool);
  return candidates;
}

}  // namespace

PlanSearchResult SearchPlans(const PlanSpace& space, const Machine& machine, const BuildPlan& build,
                             const PlanSearchOptions& options) {
  CheckRange("PlanSearchOptions::compiled", options.compiled, 1, 1 << 20);
  CheckRange<int64_t>("PlanSearchOptions::memory", options.memory, 0, int64_t{1} << 60);
  const auto search = [&] {
    RequireDevices(machine, space.devices);
    TrialPool pool(
        machine, build,
        options.memory > 0 ? options.memory : static_cast<int64_t>(std::min(machine.memory_bytes, 0x1p60)));
    const auto most = static_cast<size_t>(options.compiled);
    // First with the cuts that the model is annotated with, so that what is open never makes a plan slower.
    const bool on_host = MayWaitOnHost(space, machine);
    PlanSpace annotated = space;
    annotated.cuts = false;
    int64_t candidates = SearchIn(annotated, machine, build, most, &pool);
    if (space.cuts) candidates += SearchIn(space, machine, build, pool.tried().size() + most, &pool);
    if (pool.BestSeconds() == 0) TrySmallest(&pool, pool.tried().size() + most);
    if (pool.BestSeconds() == 0 && on_host) TryOnHost(&pool);
    if (pool.BestSeconds() == 0) Refuse(space, pool);
    PlanSearchResult result = ResultOf(&pool);
    result.candidates = candidates;
    return result;
  };
  return options.job ? SearchForAll(options.job.get(), search) : search();
}

}  // namespace oneflow_like
