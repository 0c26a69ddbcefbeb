// What a search has found, on one screen.
#include <algorithm>
#include <cstdio>

#include "oneflow_like/plan_search.h"
#include "oneflow_like/session/summary.h"

namespace oneflow_like {
namespace {

std::string Thousands(int64_t number) {
  std::string text = std::to_string(number);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) text.insert(at, ",");
  return text;
}

}  // namespace

std::string PlanSearchResult::Text() const {
  constexpr size_t kShown = 12;  // of those that lost
  char line[160];
  std::string text = Cat(Thousands(candidates), candidates == 1 ? " plan, " : " plans, ");
  if (memory > 0)
    text += Cat(Thousands(too_large), " of them estimated above the ", BytesText(static_cast<double>(memory)),
                " of a device, ");
  text += Cat(compiled, " compiled and simulated; the best of those that fit:\n");
  std::snprintf(line, sizeof line, "  %10s %10s %9s %9s %9s  %s\n", "a step", "memory", "computes",
                "messages", "bubble", "plan");
  text += line;
  for (const PlanTrial& t : best) {
    std::snprintf(line, sizeof line, "  %10s %10s %9s %9s %9s  ", SecondsText(t.seconds).c_str(),
                  BytesText(static_cast<double>(t.bytes)).c_str(), PercentText(t.compute, t.seconds).c_str(),
                  PercentText(t.messages, t.seconds).c_str(), PercentText(t.bubble, t.seconds).c_str());
    text += line + t.plan.str() + "\n";
  }
  if (!lost.empty()) text += "other meshes, each by the plan that comes closest:\n";
  for (size_t i = 0; i < std::min(kShown, lost.size()); ++i)
    text += Cat("  ", lost[i].why, ": ", lost[i].plan.str(), "\n");
  if (lost.size() > kShown) text += Cat("  and ", lost.size() - kShown, " more\n");
  return Cat(text, "chosen: ", chosen().str(), "\n");
}

}  // namespace oneflow_like
