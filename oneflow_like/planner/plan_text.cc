// What a search has found, and on one screen.
#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "core/formatted.h"
#include "oneflow_like/planner/trial_pool.h"
#include "oneflow_like/session/summary.h"

namespace oneflow_like {
namespace {

std::string Thousands(int64_t number) {
  std::string text = std::to_string(number);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) text.insert(at, ",");
  return text;
}

// Whether `a` tells more of why its shape lost: the fastest that fits, or what needs least.
bool Closer(const TrialPool& pool, const PlanTrial& a, const PlanTrial& b) {
  const bool fits = pool.Fits(a), other = pool.Fits(b);
  if (a.why.empty() != b.why.empty()) return a.why.empty();
  if (fits != other) return fits;
  return fits ? a.seconds < b.seconds : a.bytes < b.bytes;
}

std::string WhyLost(const TrialPool& pool, const PlanTrial& best, const PlanTrial& trial) {
  const char* about = trial.compiled ? "" : "about ";
  if (!pool.Fits(trial))
    return Cat("needs ", about, BytesText(trial.bytes), ", ", BytesText(trial.bytes - pool.memory()),
               " too much");
  const std::pair<double, const char*> more[] = {{trial.compute - best.compute, "computing"},
                                                 {trial.messages - best.messages, "messages"},
                                                 {trial.bubble - best.bubble, "bubble"}};
  const auto& [seconds, what] = *std::max_element(std::begin(more), std::end(more));
  return Cat("takes ", about, SecondsText(trial.seconds), seconds > 0 ? Cat(", for ", what) : "");
}

}  // namespace

PlanSearchResult ResultOf(TrialPool* pool_of) {
  constexpr size_t kBest = 10;  // that are shown
  TrialPool& pool = *pool_of;
  PlanSearchResult result;
  result.memory = pool.memory();
  result.compiled = static_cast<int>(pool.tried().size());
  std::vector<int> fit = pool.Fitting();
  std::set<MeshShape> shown;
  std::stable_sort(fit.begin(), fit.end(),
                   [&](int a, int b) { return pool.entries()[a].better(pool.entries()[b]); });
  std::set<std::string> flags;  // plans of the same flags differ in what only a file of a plan has
  for (int t : fit) {
    if (result.best.size() == kBest) break;
    if (flags.insert(pool.entries()[t].trial.plan.str()).second)
      result.best.push_back(pool.entries()[t].trial);
    shown.insert(pool.entries()[t].shape);
  }
  std::map<MeshShape, const PlanTrial*> closest;
  for (TrialEntry& e : pool.entries()) {
    if (!e.tried) pool.Correct(&e);
    if (e.first && !pool.Fits(e.trial)) ++result.too_large;
    if (shown.count(e.shape) || e.twin) continue;
    const PlanTrial*& before = closest[e.shape];
    if (!before || Closer(pool, e.trial, *before)) before = &e.trial;
  }
  for (const auto& [shape, trial] : closest) result.lost.push_back(*trial);
  std::stable_sort(result.lost.begin(), result.lost.end(),
                   [&](const PlanTrial& a, const PlanTrial& b) { return Closer(pool, a, b); });
  for (PlanTrial& trial : result.lost)
    if (trial.why.empty()) trial.why = WhyLost(pool, result.best.front(), trial);
  return result;
}

// Numbers first; then of each of the best its figures, its decisions and an empty line.
std::string ToText(const PlanSearchResult& result) {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  text << result.candidates << ' ' << result.too_large << ' ' << result.compiled << ' ' << result.memory
       << '\n';
  for (const PlanTrial& t : result.best)
    text << t.seconds << ' ' << t.compute << ' ' << t.messages << ' ' << t.bubble << ' ' << t.bytes << '\n'
         << ToText(SavedPlan{t.plan, "", ""}) << '\n';
  return text.str();
}

PlanSearchResult PlanSearchResultFromText(const std::string& text) {
  std::istringstream in(text);
  PlanSearchResult result;
  in >> result.candidates >> result.too_large >> result.compiled >> result.memory;
  for (PlanTrial t; in >> t.seconds >> t.compute >> t.messages >> t.bubble >> t.bytes;) {
    std::string plan, line;
    std::getline(in, line);
    while (std::getline(in, line) && !line.empty()) plan += line + "\n";
    static_cast<Decisions&>(t.plan) = ParseSavedPlan(plan).decisions;
    t.compiled = true;
    result.best.push_back(t);
  }
  return result;
}

std::string PlanSearchResult::Text() const {
  constexpr size_t kShown = 12;  // of those that lost
  std::string text = Cat(Thousands(candidates), candidates == 1 ? " plan, " : " plans, ");
  if (memory > 0)
    text += Cat(Thousands(too_large), " of them estimated above the ", BytesText(memory), " of a device, ");
  text += Cat(compiled, " compiled and simulated; the best of those that fit:\n");
  text += Formatted("  %10s %10s %9s %9s %9s  %s\n", "a step", "memory", "computes", "messages", "bubble",
                    "plan");
  for (const PlanTrial& t : best) {
    text +=
        Formatted("  %10s %10s %9s %9s %9s  %s\n", SecondsText(t.seconds).c_str(), BytesText(t.bytes).c_str(),
                  PercentText(t.compute, t.seconds).c_str(), PercentText(t.messages, t.seconds).c_str(),
                  PercentText(t.bubble, t.seconds).c_str(), t.plan.str().c_str());
  }
  if (!lost.empty()) text += "other meshes, each by the plan that comes closest:\n";
  for (size_t i = 0; i < std::min(kShown, lost.size()); ++i)
    text += Cat("  ", lost[i].why, ": ", lost[i].plan.str(), "\n");
  if (lost.size() > kShown) text += Cat("  and ", lost.size() - kShown, " more\n");
  text += Cat("chosen: ", chosen().str(), "\n");
  const bool open = !chosen().cuts.empty() || !chosen().waits.empty() || !chosen().stages.empty();
  if (open)  // of which flags say nothing
    text +=
        "  these flags search again, and may find a slower plan; --save_plan=FILE keeps this one for "
        "--plan\n";
  return text;
}

}  // namespace oneflow_like
