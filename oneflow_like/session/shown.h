// What the layers of a model show of themselves (Scope::Output) over the steps of a session: single numbers,
// such as the share of choices that experts had no room for.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "actor/runtime.h"

namespace oneflow_like {

struct ShownNumber {
  std::string name;   // of the output, "block0/experts/dropped"
  int64_t steps = 0;  // in which it was a number
  double sum = 0, greatest = 0;
  double mean() const { return steps > 0 ? sum / static_cast<double>(steps) : 0; }
};

class ShownNumbers {
 public:
  // The outputs to follow: f32, of one element.
  void Follow(const std::string& output) { numbers_.push_back({.name = output}); }
  // Adds a step that has ended without an error. May be called from any thread.
  void Add(const StepHandle& step);
  // Those that were a number in some step, in the order of Follow.
  std::vector<ShownNumber> all() const;

 private:
  mutable std::mutex mutex_;  // whoever waits for a step adds it
  std::vector<ShownNumber> numbers_;
};

// A table for people, a line for layers whose names differ in a number alone, and what capacity and room of
// experts would have sufficed (nn::Experts). Empty without numbers.
std::string ShownText(const std::vector<ShownNumber>& numbers);

}  // namespace oneflow_like
