// What a run keeps in its checkpoints of its data and its learning rate, so that the run that goes on from
// one can say what has changed.
#pragma once

#include <cstdint>
#include <string>

#include "oneflow_like/data/source.h"
#include "ops/language/schedule.h"

namespace oneflow_like {

// The data: how many samples, and a hash of its facts (FactsOf).
struct DataContents {
  int64_t samples = 0;
  uint64_t hash = 0;
};
DataContents ContentsOf(const SampleSource& source);

// The learning rate: the highest, and a cosine of so many steps after a rise, down to a part of it.
struct RateSchedule {
  double lr = 0;
  Schedule schedule;
  double At(int64_t step) const { return lr * FactorAt(schedule, step); }
};

// As text for checkpoints. Parse returns false for a text that is not one of these.
std::string ToText(const DataContents& contents);
std::string ToText(const RateSchedule& rate);
bool Parse(const std::string& text, DataContents* contents);
bool Parse(const std::string& text, RateSchedule* rate);

// Sentences about a run that goes on at sample `position` and at `step`; empty where nothing has changed.
std::string ChangeOfData(const DataContents& saved, const DataContents& here, int64_t position);
std::string ChangeOfRate(const RateSchedule& saved, const RateSchedule& here, int64_t step);

}  // namespace oneflow_like
