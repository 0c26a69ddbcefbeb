// Facts about data, learning rate and flags that checkpoints keep, so that a resumed run can report what has
// changed.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "oneflow_like/data/source.h"
#include "ops/language/schedule.h"

namespace oneflow_like {

// The number of samples of the data, and a hash of its facts (FactsOf).
struct DataContents {
  int64_t samples = 0;
  uint64_t hash = 0;
};
DataContents ContentsOf(const SampleSource& source);

// The highest learning rate, and the schedule of the factor on it.
struct RateSchedule {
  double lr = 0;
  Schedule schedule;
  double At(int64_t step) const { return lr * FactorAt(schedule, step); }
};

// Names and values of flags that a resumed run should keep.
using KeptFlags = std::vector<std::pair<std::string, std::string>>;

// Convert to text for checkpoints and back. Parse returns false for any other text.
std::string ToText(const DataContents& contents);
std::string ToText(const RateSchedule& rate);
std::string ToText(const KeptFlags& flags);
bool Parse(const std::string& text, DataContents* contents);
bool Parse(const std::string& text, RateSchedule* rate);

// Return a sentence about what has changed for a run that is resumed at sample `position` and at `step`;
// empty if nothing has.
std::string ChangeOfData(const DataContents& saved, const DataContents& here, int64_t position);
std::string ChangeOfRate(const RateSchedule& saved, const RateSchedule& here, int64_t step);
// Returns a sentence for each flag whose value differs from that in `saved`, a text of ToText.
std::vector<std::string> ChangesOfFlags(const std::string& saved, const KeptFlags& here);

}  // namespace oneflow_like
