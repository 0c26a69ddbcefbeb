// Estimates order all candidates; those that promise most are compiled and simulated, a few at a time, and
// what they were found to take corrects the estimates of those that resemble them.
#include "oneflow_like/plan_search.h"

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "actor/net/talk/job.h"
#include "compiler/compile.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/planner/plan_estimate.h"
#include "oneflow_like/planner/plan_share.h"
#include "oneflow_like/session/summary.h"
#include "oneflow_like/simulate.h"

namespace oneflow_like {
namespace {

constexpr int kManyMembers = 128;          // of a collective
constexpr size_t kWave = 4;                // candidates compiled at a time, on however many cores
constexpr size_t kBest = 10;               // that are shown
constexpr double kHopeless = 1.2;          // times the best: estimates are not off by more
constexpr int64_t kManyActs = 12'000'000;  // in steps of plans that were tried: few more are, for their time
constexpr double kTooFar = 2;              // times the best: nor are those of larger tp ever
constexpr double kTightest = 1.02;         // times the memory: estimates above are believed

using Shape = std::tuple<int, int, int>;
Shape ShapeOf(const PlanCandidate& c) { return {c.extent("dp"), c.extent("tp"), c.extent("pp")}; }

// Of a trial: what its estimate was, and what compiling it has shown.
struct Entry {
  PlanTrial trial;
  Shape shape;
  std::string order;  // of axes of several devices
  double estimated_seconds = 0, estimated_bytes = 0;
  bool first = false;  // of the orders of axes the one that is estimated fastest
  bool tried = false;
  uint64_t plan_hash = 0;  // of what it was compiled to
  int64_t acts = 0;        // of a step of that
  bool twin = false;       // another that was tried has been compiled to the same plan and needs fewer flags

  bool better(const Entry& other) const {
    return std::make_tuple(trial.seconds, trial.bytes) <
           std::make_tuple(other.trial.seconds, other.trial.bytes);
  }
};

// How many decisions two candidates share; those count most by which estimates are off alike.
int Likeness(const Entry& a, const Entry& b) {
  const PlanCandidate &x = a.trial.plan, &y = b.trial.plan;
  const auto [dp, tp, pp] = a.shape;
  const auto [dp2, tp2, pp2] = b.shape;
  return 2 * (tp == tp2) + 2 * (pp == pp2) + (dp == dp2) + 2 * (x.zero == y.zero) +
         3 * (x.schedule == y.schedule) + (x.virtual_stages == y.virtual_stages) +
         2 * (x.recompute == y.recompute) + (x.sequence_parallel == y.sequence_parallel) +
         (x.micro_batches == y.micro_batches) + 2 * (a.order == b.order);
}

class Search {
 public:
  Search(const PlanSpace& space, const Machine& machine, const BuildPlan& build,
         const PlanSearchOptions& options)
      : space_(space),
        machine_(machine),
        build_(build),
        options_(options),
        estimator_(space, machine, build) {
    result_.memory =
        options.memory > 0 ? options.memory : static_cast<int64_t>(std::min(machine.memory_bytes, 0x1p60));
  }

  PlanSearchResult Run() {
    EstimateAll();
    if (const double least = estimator_.LeastVariables(); !Fits(least)) RefuseAll(least);
    while (result_.compiled < options_.compiled) {
      const std::vector<int> wave = NextWave();
      if (wave.empty()) break;
      Try(wave);
    }
    if (!AnyFits()) TrySmallest();
    if (!AnyFits()) Refuse();
    Collect();
    return std::move(result_);
  }

 private:
  void EstimateAll() {
    // The number of blocks is the model's, on any mesh.
    PlanCandidate any;
    const auto tp = space_.extents.find("tp");
    any.mesh = Mesh(space_.kind, {{"dp", 1}, {"tp", tp == space_.extents.end() ? 1 : tp->second}, {"pp", 1}});
    any.recompute = space_.recompute.value_or(Recompute::kNone);
    any.sequence_parallel = space_.sequence_parallel.value_or(false);
    estimator_.Prepare({any});
    if (!estimator_.why_not().empty()) Fail("no plan can be built: ", estimator_.why_not());
    std::vector<PlanCandidate> candidates = CandidatesOf(space_, estimator_.blocks());
    std::map<int, std::vector<PlanCandidate>> by_tp;
    for (PlanCandidate& c : candidates) by_tp[c.extent("tp")].push_back(std::move(c));
    estimator_.Prepare(by_tp.begin()->second);
    for (auto& [extent, some] : by_tp) result_.candidates += DropRepeated(&some);
    double best = 0;  // of those that fit
    for (auto& [extent, some] : by_tp) {
      if (estimator_.Exhausted()) break;
      estimator_.Prepare(some);
      result_.candidates -= std::ssize(some);
      result_.candidates += DropRepeated(&some);
      double fastest = 0;
      for (const PlanCandidate& c : some) {
        const Entry* entry = Estimate(c);
        if (!entry) continue;
        const double seconds = entry->estimated_seconds;
        fastest = fastest == 0 ? seconds : std::min(fastest, seconds);
        if (Fits(entry->estimated_bytes)) best = best == 0 ? seconds : std::min(best, seconds);
      }
      if (best > 0 && fastest > kTooFar * best) break;  // and more so with a larger tp
    }
    if (entries_.empty()) Fail("no plan can be built: ", estimator_.why_not());
    std::stable_sort(entries_.begin(), entries_.end(),
                     [](const Entry& a, const Entry& b) { return a.better(b); });
    VLOG(1) << "plans: " << entries_.size() << " candidates are estimated";
  }

  // Drops candidates that are the same plan as others. Returns how many are left.
  int64_t DropRepeated(std::vector<PlanCandidate>* some) const {
    std::erase_if(*some, [&](const PlanCandidate& c) { return estimator_.IsRepeated(c); });
    return std::ssize(*some);
  }

  // Of its fastest order of axes; the others are entries, too.
  const Entry* Estimate(const PlanCandidate& c) {
    const size_t first = entries_.size();
    for (PlanTrial& trial : estimator_.Estimate(c)) {
      Entry entry;
      for (int a = 0; a < trial.plan.mesh.rank(); ++a)
        if (trial.plan.mesh.axis_size(a) > 1) entry.order += trial.plan.mesh.axis_name(a);
      entry.shape = ShapeOf(c);
      entry.first = entries_.size() == first;
      entry.estimated_seconds = trial.seconds;
      entry.estimated_bytes = static_cast<double>(trial.bytes);
      entry.trial = std::move(trial);
      entries_.push_back(std::move(entry));
    }
    return entries_.size() == first ? nullptr : &entries_[first];
  }

  bool Fits(double bytes) const {
    return result_.memory == 0 || bytes <= static_cast<double>(result_.memory);
  }

  // The estimate times what the tried candidate that is most like it took of its own.
  void Correct(Entry* entry) const {
    int most = -1;
    double seconds = 1, bytes = 1;
    for (int t : tried_) {
      const Entry& other = entries_[t];
      if (!other.trial.compiled) continue;
      if (const int alike = Likeness(*entry, other); alike > most) {
        most = alike;
        seconds = other.trial.seconds / other.estimated_seconds;
        bytes = static_cast<double>(other.trial.bytes) / other.estimated_bytes;
      }
    }
    entry->trial.seconds = entry->estimated_seconds * seconds;
    entry->trial.bytes = static_cast<int64_t>(entry->estimated_bytes * bytes);
  }

  double BestSeconds() const {
    double best = 0;
    for (int t : tried_)
      if (const Entry& e = entries_[t]; e.trial.compiled && Fits(e.trial.bytes))
        best = best == 0 ? e.trial.seconds : std::min(best, e.trial.seconds);
    return best;
  }
  bool AnyFits() const { return BestSeconds() > 0; }

  size_t Fitting() const {
    return std::count_if(tried_.begin(), tried_.end(), [&](int t) {
      const Entry& e = entries_[t];
      return e.trial.compiled && !e.twin && Fits(static_cast<double>(e.trial.bytes));
    });
  }

  // Of those that are estimated to fit the fastest, each of another shape of the mesh.
  std::vector<int> NextWave() {
    std::vector<int> order;
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].tried) continue;
      Correct(&entries_[i]);
      if (Fits(static_cast<double>(entries_[i].trial.bytes) / kTightest))
        order.push_back(static_cast<int>(i));
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return entries_[a].better(entries_[b]); });
    const double best = BestSeconds();
    const double hopeless = (acts_ > kManyActs ? 1 : kHopeless) * best;
    const size_t most = std::min<size_t>(kWave, static_cast<size_t>(options_.compiled - result_.compiled));
    std::vector<int> wave;
    std::set<Shape> shapes;
    for (int i : order) {
      if (wave.size() == most) break;
      if (best > 0 && Fitting() >= kBest && entries_[i].trial.seconds > hopeless) break;
      if (shapes.insert(entries_[i].shape).second) wave.push_back(i);
    }
    return wave;
  }

  void Try(const std::vector<int>& wave) {
    // A plan names all members of its collectives: with a thousand of them it takes gigabytes.
    const auto large = [&](int i) {
      const auto [dp, tp, pp] = entries_[i].shape;
      return std::max(dp, tp) > kManyMembers;
    };
    if (std::any_of(wave.begin(), wave.end(), large))
      for (int i : wave) TryOne(&entries_[i]);
    else
      SideBySide(static_cast<int>(wave.size()), 0, [&](int i) { TryOne(&entries_[wave[i]]); });
    for (int i : wave) {
      tried_.push_back(i);
      acts_ += entries_[i].acts;
      FindTwin(i);
    }
    result_.compiled += static_cast<int>(wave.size());
    for (int i : wave)
      VLOG(1) << "plans: " << entries_[i].trial.plan.str() << " takes "
              << SecondsText(entries_[i].trial.seconds) << " (estimate "
              << SecondsText(entries_[i].estimated_seconds) << "), "
              << BytesText(static_cast<double>(entries_[i].trial.bytes)) << " (estimate "
              << BytesText(entries_[i].estimated_bytes) << "), " << entries_[i].acts << " acts "
              << entries_[i].trial.why;
  }

  // Of entries that are one plan, the one with the shortest flags stands for all.
  void FindTwin(int i) {
    Entry& mine = entries_[i];
    for (int t : tried_) {
      Entry& other = entries_[t];
      if (t == i || !mine.trial.compiled || !other.trial.compiled || other.plan_hash != mine.plan_hash)
        continue;
      if (other.twin) continue;
      const bool shorter = mine.trial.plan.str().size() < other.trial.plan.str().size();
      (shorter ? other : mine).twin = true;
    }
  }

  void TryOne(Entry* entry) const {
    entry->tried = true;
    PlanTrial& trial = entry->trial;
    try {
      const Session session = build_(trial.plan);
      const Simulated simulated = Simulate(session, machine_);
      trial.compiled = true;
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

  // Where nothing has fitted, those that need least tell by how much, if they do not fit after all.
  void TrySmallest() {
    while (result_.compiled < options_.compiled && !AnyFits()) {
      std::vector<int> order;
      for (size_t i = 0; i < entries_.size(); ++i) {
        if (entries_[i].tried) continue;
        Correct(&entries_[i]);
        order.push_back(static_cast<int>(i));
      }
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return entries_[a].trial.bytes < entries_[b].trial.bytes; });
      const Entry* least = Smallest();
      if (order.empty() || (least && static_cast<double>(entries_[order[0]].trial.bytes) >
                                         kHopeless * static_cast<double>(least->trial.bytes)))
        return;
      order.resize(
          std::min<size_t>({order.size(), kWave, static_cast<size_t>(options_.compiled - result_.compiled)}));
      Try(order);
    }
  }

  const Entry* Smallest() const {
    const Entry* least = nullptr;
    for (int t : tried_)
      if (const Entry& e = entries_[t]; e.trial.compiled && (!least || e.trial.bytes < least->trial.bytes))
        least = &e;
    return least;
  }

  // Before anything is tried: entries are in the order of their seconds.
  [[noreturn]] void RefuseAll(double variables) const {
    const auto smallest = std::min_element(
        entries_.begin(), entries_.end(),
        [](const Entry& a, const Entry& b) { return a.estimated_bytes < b.estimated_bytes; });
    Fail("no plan of ", space_.devices, " devices fits: weights and optimizer state take ",
         BytesText(variables), " of a device on average, and the smallest plan, ", smallest->trial.plan.str(),
         ", about ", BytesText(smallest->estimated_bytes), ", more than the ",
         BytesText(static_cast<double>(result_.memory)), " there are; take more devices or a smaller model");
  }

  [[noreturn]] void Refuse() const {
    const Entry* least = Smallest();
    if (!least) Fail("no plan can be built: ", entries_[tried_.front()].trial.why);
    Fail("no plan of ", space_.devices, " devices fits: the smallest found, ", least->trial.plan.str(),
         ", needs ", BytesText(static_cast<double>(least->trial.bytes)), " of a device, ",
         BytesText(static_cast<double>(least->trial.bytes - result_.memory)), " more than the ",
         BytesText(static_cast<double>(result_.memory)), " there are; take more devices or a smaller batch");
  }

  void Collect() {
    std::vector<int> fit;
    std::set<Shape> shown;
    for (int t : tried_)
      if (const Entry& e = entries_[t];
          e.trial.compiled && !e.twin && Fits(static_cast<double>(e.trial.bytes)))
        fit.push_back(t);
    std::stable_sort(fit.begin(), fit.end(), [&](int a, int b) { return entries_[a].better(entries_[b]); });
    for (int t : fit) {
      if (result_.best.size() == kBest) break;
      result_.best.push_back(entries_[t].trial);
      shown.insert(entries_[t].shape);
    }
    std::map<Shape, const Entry*> closest;
    for (Entry& e : entries_) {
      if (!e.tried) Correct(&e);
      if (e.first && !Fits(static_cast<double>(e.trial.bytes))) ++result_.too_large;
      if (shown.count(e.shape) || e.twin) continue;
      const Entry*& before = closest[e.shape];
      if (!before || Closer(e, *before)) before = &e;
    }
    for (const auto& [shape, entry] : closest) {
      result_.lost.push_back(entry->trial);
      if (entry->trial.why.empty()) result_.lost.back().why = WhyLost(entry->trial);
    }
    std::stable_sort(result_.lost.begin(), result_.lost.end(), [&](const PlanTrial& a, const PlanTrial& b) {
      const bool fits = Fits(static_cast<double>(a.bytes)), other = Fits(static_cast<double>(b.bytes));
      if (fits != other) return fits;
      return fits ? a.seconds < b.seconds : a.bytes < b.bytes;
    });
  }

  // Whether `a` tells more of why its shape lost: the fastest that fits, or what needs least.
  bool Closer(const Entry& a, const Entry& b) const {
    const bool fits = Fits(static_cast<double>(a.trial.bytes)),
               other = Fits(static_cast<double>(b.trial.bytes));
    if (a.trial.why.empty() != b.trial.why.empty()) return a.trial.why.empty();
    if (fits != other) return fits;
    return fits ? a.trial.seconds < b.trial.seconds : a.trial.bytes < b.trial.bytes;
  }

  std::string WhyLost(const PlanTrial& trial) const {
    const char* about = trial.compiled ? "" : "about ";
    if (!Fits(static_cast<double>(trial.bytes)))
      return Cat("needs ", about, BytesText(static_cast<double>(trial.bytes)), ", ",
                 BytesText(static_cast<double>(trial.bytes - result_.memory)), " too much");
    const PlanTrial& best = result_.best.front();
    const std::pair<double, const char*> more[] = {{trial.compute - best.compute, "computing"},
                                                   {trial.messages - best.messages, "messages"},
                                                   {trial.bubble - best.bubble, "bubble"}};
    const auto& [seconds, what] = *std::max_element(std::begin(more), std::end(more));
    return Cat("takes ", about, SecondsText(trial.seconds), seconds > 0 ? Cat(", for ", what) : "");
  }

  const PlanSpace& space_;
  const Machine& machine_;
  const BuildPlan& build_;
  const PlanSearchOptions& options_;
  PlanEstimator estimator_;
  std::vector<Entry> entries_;  // by estimate
  std::vector<int> tried_;      // in order
  int64_t acts_ = 0;            // of a step of each of these
  PlanSearchResult result_;
};

}  // namespace

PlanSearchResult SearchPlans(const PlanSpace& space, const Machine& machine, const BuildPlan& build,
                             const PlanSearchOptions& options) {
  CheckRange("PlanSearchOptions::compiled", options.compiled, 1, 1 << 20);
  CheckRange<int64_t>("PlanSearchOptions::memory", options.memory, 0, int64_t{1} << 60);
  const auto search = [&] {
    RequireDevices(machine, space.devices);
    return Search(space, machine, build, options).Run();
  };
  return options.job ? SearchForAll(options.job.get(), search) : search();
}

}  // namespace oneflow_like
