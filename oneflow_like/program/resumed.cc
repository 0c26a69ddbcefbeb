#include "oneflow_like/program/resumed.h"

#include <charconv>
#include <locale>
#include <sstream>

#include "core/error.h"
#include "core/hash_bytes.h"

namespace oneflow_like {
namespace {

// As many digits as tell two numbers apart.
std::string Exactly(double number) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.precision(17);
  text << number;
  return text.str();
}

// "0.1" for "0.10000000000000001", as gflags writes a number; other text as it is.
std::string Shortest(const std::string& value) {
  double number = 0;
  const char* end = value.data() + value.size();
  const auto [rest, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || rest != end || value.find('.') == std::string::npos) return value;
  char digits[40];
  return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
}

std::string PlaceOf(int64_t position, int64_t samples) {
  return Cat("sample ", position % samples, " of epoch ", position / samples);
}

}  // namespace

DataContents ContentsOf(const SampleSource& source) {
  std::string text;
  for (const SourceFact& fact : FactsOf(source)) text += fact.what + '\n' + fact.value + '\n';
  return {source.samples(), HashOfBytes(text.data(), text.size())};
}

std::string ToText(const DataContents& contents) { return Cat(contents.samples, ' ', contents.hash); }

std::string ToText(const RateSchedule& rate) {
  return Cat(Exactly(rate.lr), ' ', rate.schedule.warmup, ' ', rate.schedule.total, ' ',
             Exactly(rate.schedule.final));
}

std::string ToText(const KeptFlags& flags) {
  std::string text;
  for (const auto& [name, value] : flags) text += Cat("--", name, "=", value, "\n");
  return text;
}

bool Parse(const std::string& text, DataContents* contents) {
  std::istringstream in(text);
  return (in >> contents->samples >> contents->hash) && contents->samples > 0;
}

bool Parse(const std::string& text, RateSchedule* rate) {
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  Schedule& schedule = rate->schedule;
  schedule.kind = Schedule::Kind::kCosine;
  return (in >> rate->lr >> schedule.warmup >> schedule.total >> schedule.final) && schedule.warmup >= 0 &&
         schedule.total > schedule.warmup;
}

std::string ChangeOfData(const DataContents& saved, const DataContents& here, int64_t position) {
  if (saved.samples == here.samples && saved.hash == here.hash) return "";
  return Cat("the data is not that of the saved run, which had ", saved.samples, " samples in place of ",
             here.samples, ": it goes on at sample ", position, " of the run, which is ",
             PlaceOf(position, here.samples), " and was ", PlaceOf(position, saved.samples));
}

std::string ChangeOfRate(const RateSchedule& saved, const RateSchedule& here, int64_t step) {
  std::string changes;
  auto add = [&](const std::string& what, const auto& now, const auto& before) {
    if (now != before) changes += Cat(changes.empty() ? "" : ", ", what, " ", now, " in place of ", before);
  };
  add("highest rate", here.lr, saved.lr);
  add("warm-up steps", here.schedule.warmup, saved.schedule.warmup);
  add("steps of its schedule", here.schedule.total, saved.schedule.total);
  add("share at the end", here.schedule.final, saved.schedule.final);
  if (changes.empty()) return "";
  const double now = here.At(step), before = saved.At(step);
  return Cat("the learning rate of step ", step,
             now == before ? Cat(" is ", now, ", as in the saved run, but its schedule has changed")
                           : Cat(" is ", now, ", and was ", before, " in the saved run"),
             " (", changes, ")",
             here.schedule.total == saved.schedule.total
                 ? ""
                 : Cat("; --schedule_steps=", saved.schedule.total, " keeps its schedule"));
}

std::vector<std::string> ChangesOfFlags(const std::string& saved, const KeptFlags& here) {
  std::vector<std::string> changes;
  std::istringstream lines(saved);
  for (std::string line; std::getline(lines, line);)
    for (const auto& [name, value] : here)
      if (line.starts_with(Cat("--", name, "=")) && line != Cat("--", name, "=", value))
        changes.push_back(Cat("--", name, "=", Shortest(value), " differs from --", name, "=",
                              Shortest(line.substr(name.size() + 3)), " of the saved run"));
  return changes;
}

}  // namespace oneflow_like
