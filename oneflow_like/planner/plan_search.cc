// Candidates come from several sources, one after another, and are tried: compiled and simulated. First come
// those that are estimated to be best; each trial corrects the estimates of similar candidates. Then open
// choices are decided in the most hopeful candidates. Last come the neighbours of the fastest plans.
#include "oneflow_like/plan_search.h"

#include <glog/logging.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "actor/net/talk/job.h"
#include "oneflow_like/job/together.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/planner/neighbours.h"
#include "oneflow_like/planner/plan_estimate.h"
#include "oneflow_like/planner/trial_pool.h"
#include "oneflow_like/session/budget.h"
#include "oneflow_like/session/summary.h"
#include "oneflow_like/simulate.h"

namespace oneflow_like {
namespace {

constexpr size_t kWave = 4;    // candidates compiled at a time, whatever the number of cores
constexpr size_t kBest = 10;   // plans that are shown
constexpr size_t kOpened = 4;  // least number of candidates in which open choices are decided
// Times the best time: candidates that are estimated slower than the first are not tried. If the fastest of
// one tp is slower than the second, larger ones are not estimated.
constexpr double kHopeless = 1.2, kTooFar = 2;
// Acts of a step of all plans tried, together; beyond it only candidates estimated faster than the best are
// tried, as simulations take long.
constexpr int64_t kManyActs = 12'000'000;
// Times the memory: candidates estimated up to the first are tried first, and estimates above the second are
// believed; above the third if a tried candidate of Likeness kAlike has corrected them.
constexpr double kTightest = 1.02, kDoubtful = 1.6, kDoubtfulNear = 1.25;
constexpr int kAlike = 18;
constexpr double kNear = 1.1;  // times the best time: neighbours of slower plans are not tried
// Acts of a step of all plans tried, together: of neighbours, and of those that are estimated not to fit (or
// of neighbours if only flags are searched for).
constexpr int64_t kActsBeside = 3000, kActsMore = 12'000;

constexpr std::string_view kNoneFits = "none fits: ";  // between processes, in place of a result

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
  VLOG(1) << "plans: " << pool.entries().size() << " candidates are estimated";
  return number;
}

// Entries of the pool that are tried next.
using Wave = std::vector<int>;

enum class Estimated {
  kFits,      // the fastest of those that are estimated to fit
  kDoubtful,  // of those that are estimated to need little more memory than there is, and to be faster
  kSmallest,  // where nothing fits, those that need least, whatever they need
};

bool IsNext(const TrialPool& pool, const TrialEntry& entry, Estimated which) {
  const auto bytes = static_cast<double>(entry.trial.bytes);
  if (which == Estimated::kSmallest) return true;
  const bool fits = pool.Fits(bytes / kTightest);
  if (which == Estimated::kFits) return fits;
  const bool faster = !pool.Best() || entry.trial.seconds < pool.BestSeconds();
  return !fits && faster && pool.Fits(bytes / (entry.alike >= kAlike ? kDoubtfulNear : kDoubtful));
}

// Returns candidates that were only estimated, each of another shape of the mesh unless the smallest are
// asked for. No more once `end` were tried.
Wave NextEstimated(TrialPool* pool_of, size_t end, Estimated which) {
  TrialPool& pool = *pool_of;
  const bool smallest = which == Estimated::kSmallest;
  Wave order, wave;
  if (pool.tried().size() >= end || (smallest && pool.Best())) return wave;
  for (size_t i = 0; i < pool.entries().size(); ++i) {
    TrialEntry& entry = pool.entries()[i];
    if (entry.tried) continue;
    pool.Correct(&entry);
    if (IsNext(pool, entry, which)) order.push_back(static_cast<int>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int i, int j) {
    const TrialEntry &a = pool.entries()[i], &b = pool.entries()[j];
    return smallest ? a.trial.bytes < b.trial.bytes : a.better(b);
  });
  const TrialEntry* least = pool.Smallest();
  const double best = pool.BestSeconds();
  const double hopeless = (pool.acts() > kManyActs ? 1 : kHopeless) * best;
  const size_t most = std::min(kWave, end - pool.tried().size());
  const bool enough = best > 0 && pool.Fitting().size() >= kBest;
  std::set<MeshShape> shapes;
  for (int i : order) {
    const TrialEntry& entry = pool.entries()[i];
    if (wave.size() == most) break;
    if (smallest ? least && static_cast<double>(entry.trial.bytes) >
                                kHopeless * static_cast<double>(least->trial.bytes)
                 : enough && entry.trial.seconds > hopeless)
      break;
    if (smallest || shapes.insert(entry.shape).second) wave.push_back(i);
  }
  return wave;
}

// Returns a text of the candidate without its recomputation and cuts.
std::string KeyOf(PlanCandidate candidate) {
  candidate.logits_tile = 0;
  candidate.recompute = Recompute::kNone;
  candidate.cuts = {};
  candidate.waits = {};
  return candidate.str();
}

// Returns plans whose `parts` wait on the host: those that need least memory and the fastest ones, each with
// every kind of recomputation.
Wave NextOnHost(TrialPool* pool_of, const PlanSpace& space, const char* parts) {
  constexpr size_t kMost = 3;  // of either
  TrialPool& pool = *pool_of;
  std::map<std::string, PlanTrial> least;  // by KeyOf
  for (int t : pool.tried()) {
    const PlanTrial& trial = pool.entries()[t].trial;
    if (!trial.compiled || trial.plan.offload.any()) continue;
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
  Wave wave;
  for (const PlanTrial& trial : order)
    for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      PlanCandidate candidate = trial.plan;
      candidate.recompute = space.gather_again ? WithGather(mode) : mode;
      candidate.waits = {};
      candidate.offload = ParseOffload(parts, "a search for a plan");
      wave.push_back(pool.Also(std::move(candidate)));
    }
  return wave;
}

// "no plan of 4 devices fits: WHY; take more devices or a smaller batch", and what else was not searched.
template <typename... Why>
[[noreturn]] void RefuseAll(const PlanSpace& space, const TrialPool& pool, const char* smaller,
                            const Why&... why) {
  std::string hint;
  if (!space.waits)
    hint = Cat(", or let each layer recompute what makes a plan fit (--recompute=auto)",
               space.host && pool.machine().host.known ? ", which also tries --offload" : "");
  throw NoPlanFits(Cat("no plan of ", space.devices, space.devices == 1 ? " device" : " devices",
                       " fits: ", why..., "; take more devices or a smaller ", smaller, hint));
}

// Before anything is tried.
[[noreturn]] void RefuseByEstimate(const PlanSpace& space, const TrialPool& pool, double variables) {
  const auto smallest = std::min_element(
      pool.entries().begin(), pool.entries().end(),
      [](const TrialEntry& a, const TrialEntry& b) { return a.estimated_bytes < b.estimated_bytes; });
  RefuseAll(space, pool, "model", "weights and optimizer state take ", BytesText(variables),
            " of a device on average, and the smallest plan, ", smallest->trial.plan.str(), ", about ",
            BytesText(smallest->estimated_bytes), ", more than the ",
            BytesText(static_cast<double>(pool.memory())), " there are");
}

[[noreturn]] void Refuse(const PlanSpace& space, const TrialPool& pool) {
  const TrialEntry* least = pool.Smallest();
  if (!least) {
    const auto built = std::find_if(pool.tried().begin(), pool.tried().end(),
                                    [&](int t) { return pool.entries()[t].estimated_seconds > 0; });
    Fail("no plan can be built: ", pool.entries()[*built].trial.why);
  }
  RefuseAll(space, pool, "batch", "the smallest found, ", least->trial.plan.str(), ", needs ",
            BytesText(static_cast<double>(least->trial.bytes)), " of a device, ",
            BytesText(static_cast<double>(least->trial.bytes - pool.memory())), " more than the ",
            BytesText(static_cast<double>(pool.memory())), " there are");
}

// Returns an optimistic estimate of the seconds of a plan between candidates that differ in recomputation. A
// candidate that does not fit may do so with other cuts of weights, in proportionally more time.
double HopeOf(const TrialPool& pool, bool cuts, const std::vector<const TrialEntry*>& alike) {
  double hope = std::numeric_limits<double>::infinity();
  std::vector<Verdict> verdicts;
  for (const TrialEntry* entry : alike) {
    const Verdict& v = verdicts.emplace_back(Verdict{entry->trial.seconds, entry->trial.bytes});
    if (cuts && v.bytes > pool.memory())
      hope = std::min(hope, v.seconds * static_cast<double>(v.bytes) / static_cast<double>(pool.memory()));
  }
  return std::min(hope, HopeBetween(verdicts, pool.memory()));
}

// Returns the most hopeful candidate in which nothing was decided yet, with the choices that the space leaves
// open. If steps have few acts, more candidates have their turn, also some that are estimated not to fit.
Wave NextOpened(TrialPool* pool_of, const PlanSpace& space, std::set<std::string>* opened) {
  constexpr size_t kActs = 1000, kMany = 24;
  TrialPool& pool = *pool_of;
  // Where any memory will do, nothing needs to be computed again, and cuts have been chosen already.
  if (pool.memory() == 0 || !(space.cuts || space.waits)) return {};
  const size_t acts = std::max<size_t>(1, pool.acts() / std::max<size_t>(1, pool.tried().size()));
  const size_t number = std::min(kMany, kActs / acts);
  if (opened->size() >= std::max(kOpened, number)) return {};
  std::map<std::string, std::vector<const TrialEntry*>> alike;
  for (TrialEntry& entry : pool.entries()) {
    if (!entry.tried) pool.Correct(&entry);
    if (entry.trial.why.empty() && HasOpenCuts(entry.trial.plan) == space.cuts)
      alike[KeyOf(entry.trial.plan)].push_back(&entry);
  }
  const std::string* which = nullptr;
  std::pair<double, int64_t> most;  // hope, and bytes of the smallest
  const TrialEntry* like = nullptr;
  for (const auto& [key, entries] : alike) {
    if (opened->count(key)) continue;
    const TrialEntry* least = *std::min_element(
        entries.begin(), entries.end(),
        [](const TrialEntry* a, const TrialEntry* b) { return a->trial.bytes < b->trial.bytes; });
    const std::pair hope(HopeOf(pool, space.cuts, entries), least->trial.bytes);
    const bool believed = number <= kOpened || pool.Fits(least->trial);
    if (pool.Best() && believed && hope.first > kHopeless * pool.BestSeconds()) continue;
    if (!which || hope < most) which = &key, most = hope, like = least;
  }
  if (!which) return {};
  opened->insert(*which);
  PlanCandidate candidate = like->trial.plan;
  candidate.stages = {};
  candidate.cuts = {};
  candidate.logits_tile = 0;
  candidate.open_cuts = space.cuts;
  candidate.open_waits = space.waits;
  candidate.memory = pool.memory();
  if (space.waits) candidate.recompute = Recompute::kNone;
  return {pool.Also(std::move(candidate))};
}

// Messages are sent again wherever values wait, as PlanSpace::gather_again says.
void SendAgain(PlanCandidate* candidate) {
  for (auto& [region, mode] : candidate->waits) mode = WithGather(mode);
  candidate->recompute = candidate->waits.empty() ? WithGather(candidate->recompute) : Recompute::kGather;
}

// Returns plans that differ by one decision from the fastest verdict whose neighbours were not all tried, to
// be simulated: the verdict itself was found by estimates. `acts`: how many acts may still be simulated.
Wave NextBeside(TrialPool* pool_of, const PlanSpace& space, const BuildPlan& build, int64_t* acts) {
  std::vector<Neighbourhood*> all;
  const bool waits = space.waits && pool_of->memory() > 0;  // else any memory will do
  if (waits) all.push_back(WaitOtherwise);
  if (waits && space.host && pool_of->machine().host.known) all.push_back(WaitOnHost);
  if (space.cuts) all.push_back(CutOtherwise);
  if (space.cuts || waits) all.insert(all.end(), {OrderOtherwise, FlagOtherwise, DivideOtherwise});
  if (all.empty()) all = {FlagOtherwise};
  // Where only flags are searched for, also beside a faster one that needs little more than there is.
  const double slack = space.cuts || waits ? 1 : kDoubtfulNear;
  TrialPool& pool = *pool_of;
  while (true) {
    const auto is_next = [&](const TrialEntry& e, const TrialEntry* before) {
      return e.trial.compiled && !e.twin && e.beside < all.size() &&
             pool.Fits(static_cast<double>(e.trial.bytes) / slack) && (!before || e.better(*before));
    };
    TrialEntry* from = nullptr;
    for (int t : pool.tried())
      if (TrialEntry& e = pool.entries()[t]; is_next(e, from)) from = &e;
    if (!from || from->trial.seconds > kNear * pool.BestSeconds() || from->acts > *acts) return {};
    Neighbourhood* const beside = all[from->beside++];
    const PlanCandidate plan = from->trial.plan;
    const int64_t acts_of_each = std::max<int64_t>(1, from->acts);
    Wave wave;
    for (PlanCandidate& candidate : beside(plan, build(plan), pool)) {
      if (space.gather_again) SendAgain(&candidate);
      if (acts_of_each <= *acts && !pool.Knows(candidate)) {
        wave.push_back(pool.Also(std::move(candidate)));
        *acts -= acts_of_each;
      }
    }
    if (!wave.empty()) return wave;
  }
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
    const auto try_all = [&](const std::function<Wave()>& next) {
      for (Wave wave; !(wave = next()).empty();) pool.Try(wave);
    };
    const bool on_host = space.waits && space.host && machine.host.known;
    int64_t candidates = 0;
    // First with the cuts that the model is annotated with, so that what is open never makes a plan slower.
    PlanSpace some = space;
    for (const bool cuts : {false, true}) {
      if (cuts && !space.cuts) continue;
      some.cuts = cuts;
      PlanEstimator estimator(some, machine, build);
      candidates += EstimateAll(some, estimator, &pool);
      if (const double least = estimator.LeastVariables(); !on_host && !pool.Fits(least))
        RefuseByEstimate(space, pool, least);
      const size_t end = pool.tried().size() + most;
      std::set<std::string> opened;
      try_all([&] { return NextEstimated(&pool, end, Estimated::kFits); });
      const int64_t enough = pool.acts() + kActsMore;
      try_all([&] {
        const size_t more = pool.acts() < enough ? end + most : 0;
        return NextEstimated(&pool, more, Estimated::kDoubtful);
      });
      try_all([&] { return NextOpened(&pool, some, &opened); });
    }
    const size_t end = pool.tried().size() + most;
    try_all([&] { return NextEstimated(&pool, end, Estimated::kSmallest); });
    for (const char* parts : {"activations", "activations,optimizer", "activations,optimizer,weights"})
      if (on_host && !pool.Best()) pool.Try(NextOnHost(&pool, space, parts));
    if (!pool.Best()) Refuse(space, pool);
    int64_t acts = space.cuts || space.waits ? kActsBeside : kActsMore;
    try_all([&] { return NextBeside(&pool, space, build, &acts); });
    PlanSearchResult result = ResultOf(&pool);
    result.candidates = candidates;
    return result;
  };
  if (!options.job) return search();
  PlanSearchResult result;
  const std::string of_zero =
      FromProcessZero(options.job.get(), "the search for a plan", [&]() -> std::string {
        try {
          result = search();
        } catch (const NoPlanFits& error) {
          return Cat(kNoneFits, error.what());
        }
        return ToText(result);
      });
  if (of_zero.starts_with(kNoneFits)) throw NoPlanFits(of_zero.substr(kNoneFits.size()));
  return options.job->process() == 0 ? result : PlanSearchResultFromText(of_zero);
}

}  // namespace oneflow_like
