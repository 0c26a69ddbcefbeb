// Flags of programs. An entry names a flag, says in a sentence what it does, and points to the field that
// gets its value. A program asks for groups of entries and has the names of no others; gflags parses them.
//
//   struct Flags {
//     int64_t hidden = 64;
//   } flags;  // fields outlive main()
//   FlagGroup ModelGroup() {
//     return {"model", "The model", {{"hidden", &flags.hidden, "Sets the width of the hidden layer.",
//     RangeOf(1, 4096)}}};
//   }
//   Launcher launcher(&argc, &argv, "Fits a curve.", "cpu:dp=1", {}, {ModelGroup()});
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace oneflow_like {

// Values that a flag accepts; any other is an Error of one sentence that names the flag and the bound.
struct FlagRange {
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  bool without_least = false, without_most = false;  // whether the bound itself is outside
  std::vector<std::string> choices = {};             // of a text; empty: any
  bool bytes = false;                                // of a text: a number of bytes (ParseBytes), up to most
};
inline const FlagRange kAnyValue = {};
inline FlagRange RangeOf(double least, double most) { return {.least = least, .most = most}; }
inline FlagRange RangeAbove(double least, double most) {
  return {.least = least, .most = most, .without_least = true};
}
inline FlagRange RangeBelow(double least, double most) {
  return {.least = least, .most = most, .without_most = true};
}
inline FlagRange ChoiceOf(std::vector<std::string> choices) { return {.choices = std::move(choices)}; }
inline FlagRange BytesUpTo(double most) { return {.most = most, .bytes = true}; }

// Returns the bytes that a flag names: a whole number, followed by KB, MB or GB (powers of 1000), by KiB,
// MiB or GiB (of 1024), or by nothing, as in "25MB". Throws Error for anything else, and for more than
// `most`.
int64_t ParseBytes(const std::string& flag, const std::string& value,
                   double most = static_cast<double>(INT64_MAX));

// What else is known of a flag; the values are added.
enum FlagTraits {
  kCommon = 1,      // --help shows it; the others are shown by --help=GROUP and --helpfull
  kPerProcess = 2,  // processes of one job may have different values (Launcher::RequireSameFlags)
  kKept = 4,        // a run that is resumed keeps the value; another one is reported when it begins
  kFixed = 12,      // likewise, and another one is refused: it would make another model of equal weights
};

struct FlagEntry {
  std::string name;
  // The type of the flag, its default (the value when the flag is registered), and where values go.
  std::variant<bool*, int32_t*, int64_t*, uint64_t*, double*, std::string*> field;
  std::string sentence;  // begins with a verb: "Writes checkpoints to this folder."
  FlagRange range = {};
  int traits = 0;  // FlagTraits
};

struct FlagGroup {
  std::string name;   // for --help=NAME
  std::string title;  // of its part of --help and of the tables in docs/flags.md
  std::vector<FlagEntry> flags;
};

// What happens to an entry whose name the program has defined itself, by gflags' DEFINE_ macros.
enum class TakenName {
  kRefuse,  // Error that names the flag and the group
  kLeave,   // the program's flag counts, and the entry keeps its default
};

// Registers the entries with gflags; Launcher does so with the groups that it is given. A group that is
// registered already, with the same fields, is left as it is. Fields must outlive the last use of gflags, so
// they belong to objects of static storage. Throws Error for a name that another group has.
void RegisterFlags(const FlagGroup& group, TakenName taken = TakenName::kRefuse);

// Throws Error for the first entry whose value is outside its range. Launcher checks all registered groups.
void CheckFlagRanges(const FlagGroup& group);

// For programs without a Launcher: registers `groups` and parses flags. Returns the other words. --help and
// its kin, and flags that gflags refuses, end the program. Throws Error for a value outside its range.
std::vector<std::string> ParseFlags(int argc, char** argv, const std::string& usage,
                                    const std::vector<FlagGroup>& groups);

// Whether the user has given the flag a value other than its default. False for a flag that the program
// lacks.
bool IsGiven(const std::string& flag);

// Names and values of the registered entries that have `trait`, in order of registration; those that are
// kFixed are kKept, too.
std::vector<std::pair<std::string, std::string>> FlagsWith(FlagTraits trait);

// All groups registered so far, in order; entries that were left to the program are not in them.
const std::vector<FlagGroup>& RegisteredGroups();

// The tables of these groups for a page of documentation (Markdown): flag and default, sentence, whether it
// is kept when a run is resumed, and whether processes may differ in it.
std::string FlagTables(const std::vector<FlagGroup>& groups);

}  // namespace oneflow_like
