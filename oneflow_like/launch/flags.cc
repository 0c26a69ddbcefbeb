#include "oneflow_like/flags.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <deque>
#include <map>
#include <type_traits>

#include "core/error.h"
#include "core/system/file_check.h"
#include "oneflow_like/launch/help.h"
#include "oneflow_like/model/limits.h"

namespace oneflow_like {
namespace {

// gflags keeps pointers to names, sentences and defaults until the program ends, so nothing here is
// destroyed.
struct FlagRegistry {
  std::deque<std::string> texts;
  std::deque<std::variant<bool, int32_t, int64_t, uint64_t, double, std::string>> defaults;
  std::vector<FlagGroup> groups;
};
FlagRegistry& Registry() {
  static auto* registry = new FlagRegistry;
  return *registry;
}

const char* KeptText(const std::string& text) { return Registry().texts.emplace_back(text).c_str(); }

const void* AddressOf(const FlagEntry& flag) {
  return std::visit([](auto* field) { return static_cast<const void*>(field); }, flag.field);
}

void GiveToGflags(const FlagEntry& flag) {
  std::visit(
      [&](auto* field) {
        using T = std::remove_pointer_t<decltype(field)>;
        T* standard = &std::get<T>(Registry().defaults.emplace_back(*field));
        gflags::FlagRegisterer(KeptText(flag.name), KeptText(flag.sentence), kFileOfEntries, field, standard);
      },
      flag.field);
}

void RequireChoice(const std::string& name, const std::string& value,
                   const std::vector<std::string>& choices) {
  if (choices.empty() || std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  std::string all;
  for (size_t i = 0; i < choices.size(); ++i)
    all += Cat(i == 0 ? "" : i + 1 < choices.size() ? ", " : " or ", choices[i]);
  Fail("--", name, "=", value, ": must be ", all);
}

constexpr double kLargestSize = static_cast<double>(INT64_MAX);  // rounded up

template <typename T>
void CheckNumber(const std::string& name, T value, const FlagRange& range) {
  const double number = static_cast<double>(value);
  if (range.without_least && !(number > range.least && number <= range.most))
    Fail(name, " is ", value, ", must be more than ", ShortNumber(range.least), ", at most ",
         ShortNumber(range.most));
  if (range.without_most && !(number >= range.least && number < range.most))
    Fail(name, " is ", value, ", must lie in [", ShortNumber(range.least), ", ", ShortNumber(range.most),
         ")");
  if constexpr (std::is_floating_point_v<T>) {
    CheckRange<T>(name, value, range.least, range.most);
  } else {  // bounds of whole numbers are printed as such
    constexpr double kLeast = static_cast<double>(std::numeric_limits<T>::min());
    constexpr T kMost = std::numeric_limits<T>::max();
    const T least = range.least <= kLeast ? std::numeric_limits<T>::min() : static_cast<T>(range.least);
    const T most = range.most >= static_cast<double>(kMost) ? kMost : static_cast<T>(range.most);
    CheckRange<T>(name, value, least, most);
  }
}

}  // namespace

void RegisterFlags(const FlagGroup& group, TakenName taken) {
  FlagGroup registered{group.name, group.title, {}};
  for (const FlagEntry& flag : group.flags) {
    gflags::CommandLineFlagInfo known;
    if (!gflags::GetCommandLineFlagInfo(flag.name.c_str(), &known)) {
      GiveToGflags(flag);
      registered.flags.push_back(flag);
    } else if (known.flag_ptr == AddressOf(flag)) {
      continue;
    } else if (known.filename == kFileOfEntries) {
      Fail("the program asks for two groups of flags that both have --", flag.name, ", the second one is '",
           group.name, "'; rename the flag or leave one of the groups out");
    } else if (taken == TakenName::kRefuse) {
      Fail("the program defines a flag --", flag.name, " itself and asks for the group '", group.name,
           "', which has one of this name; rename the program's flag");
    }
  }
  if (!registered.flags.empty()) Registry().groups.push_back(std::move(registered));
}

void CheckFlagRanges(const FlagGroup& group) {
  for (const FlagEntry& flag : group.flags)
    std::visit(
        [&](auto* field) {
          using T = std::remove_pointer_t<decltype(field)>;
          if constexpr (std::is_same_v<T, std::string>) {
            RequireChoice(flag.name, *field, flag.range.choices);
            if (flag.range.bytes) ParseBytes(flag.name, *field, std::min(flag.range.most, kLargestSize));
          } else if constexpr (!std::is_same_v<T, bool>) {
            CheckNumber<T>("--" + flag.name, *field, flag.range);
          }
        },
        flag.field);
}

std::vector<std::string> ParseFlags(int argc, char** argv, const std::string& usage,
                                    const std::vector<FlagGroup>& groups) {
  ReportFileSizeLimit();
  const std::vector<std::string> given(argv, argv + argc);
  for (const FlagGroup& group : groups) RegisterFlags(group);
  gflags::SetUsageMessage(usage);
  PrintHelpOfGroup(given, usage);
  gflags::ParseCommandLineNonHelpFlags(&argc, &argv, true);
  PrintHelp(given[0], usage);
  for (const FlagGroup& group : groups) CheckFlagRanges(group);
  return {argv + 1, argv + argc};
}

int64_t ParseBytes(const std::string& flag, const std::string& value, double most) {
  static const std::map<std::string, int64_t> kUnits = {{"", 1},
                                                        {"KB", 1000},
                                                        {"MB", 1000 * 1000},
                                                        {"GB", 1000 * 1000 * 1000},
                                                        {"KiB", int64_t{1} << 10},
                                                        {"MiB", int64_t{1} << 20},
                                                        {"GiB", int64_t{1} << 30}};
  int64_t number = -1;
  const char* end = value.data() + value.size();
  const auto [rest, error] = std::from_chars(value.data(), end, number);
  const char* word = std::find_if(rest, end, [](char c) { return c != ' '; });
  const auto unit = kUnits.find(std::string(word, end));
  const bool is_size = error == std::errc() && number >= 0 && unit != kUnits.end();
  if (!is_size || static_cast<double>(number) * static_cast<double>(unit->second) > most ||
      number > INT64_MAX / unit->second)
    Fail("--", flag, "=", value, ": must be a number of bytes such as 25MB, 64KiB or 1000000, at most ",
         most < kLargestSize ? Cat(static_cast<int64_t>(most)) : Cat(INT64_MAX));
  return number * unit->second;
}

bool IsGiven(const std::string& flag) {
  gflags::CommandLineFlagInfo known;
  return gflags::GetCommandLineFlagInfo(flag.c_str(), &known) && !known.is_default;
}

std::vector<std::pair<std::string, std::string>> FlagsWith(FlagTraits trait) {
  std::vector<std::pair<std::string, std::string>> values;
  for (const FlagGroup& group : RegisteredGroups())
    for (const FlagEntry& flag : group.flags) {
      std::string value;
      if ((flag.traits & trait) == trait && gflags::GetCommandLineOption(flag.name.c_str(), &value))
        values.push_back({flag.name, value});
    }
  return values;
}

const std::vector<FlagGroup>& RegisteredGroups() { return Registry().groups; }

std::string FlagTables(const std::vector<FlagGroup>& groups) {
  std::string text;
  for (const FlagGroup& group : groups) {
    text += Cat(text.empty() ? "" : "\n", "#### ", group.title, "\n\n`--help=", group.name,
                "`\n\n| flag | default | | kept on resume | per process |\n|---|---|---|---|---|\n");
    for (const FlagEntry& flag : group.flags) {
      const std::string standard = DefaultOf(flag.name);
      text += Cat("| `--", flag.name, "` | ", standard.empty() ? "" : Cat("`", standard, "`"), " | ",
                  flag.sentence, " | ", flag.traits & kKept ? "yes" : "", " | ",
                  flag.traits & kPerProcess ? "yes" : "", " |\n");
    }
  }
  return text;
}

}  // namespace oneflow_like
