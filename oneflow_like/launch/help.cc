// Groups and prints flags.
#include "oneflow_like/launch/help.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <sstream>
#include <vector>

#include "core/error.h"

namespace oneflow_like {
namespace {

using Flags = std::vector<gflags::CommandLineFlagInfo>;

constexpr size_t kColumns = 110, kTextColumn = 23, kShortColumns = 54, kShortTextColumn = 17;

struct FlagGroup {
  const char* title;
  std::vector<std::string> names;
};
// Flags of launcher.cc that no group names come behind the last.
const FlagGroup kGroups[] = {
    {"Mesh and devices",
     {"mesh", "devices", "threads", "kernel_threads", "data_threads", "memory_budget", "seed"}},
    {"Several processes",
     {"processes", "restarts", "elastic", "check_feeds", "start_timeout", "peer_timeout", "network",
      "shared_memory"}},
    {"Looking inside",
     {"dry_run", "explain", "report", "dump_dir", "trace", "stall_seconds", "log_dir", "check_nan",
      "check_replicas", "config", "out", "calibrate", "calibrate_models"}},
};

// Of glog's flag: what it is here.
const char* const kLogDir = "folder for logs, and of what each of --processes prints; empty: standard error";

// Whose flags are defined in the file of `flag`. The paths are those of whoever built it and tell nothing;
// glog and gflags are known by one flag of each file.
enum class Owner { kProgram, kLauncher, kOthers };
std::set<std::string> FilesWith(const Flags& flags, const std::set<std::string>& names) {
  std::set<std::string> files;
  for (const auto& flag : flags)
    if (names.count(flag.name)) files.insert(flag.filename);
  return files;
}

std::set<std::string> FilesOfOthers(const Flags& flags) {
  return FilesWith(flags,
                   {"help", "flagfile", "tab_completion_word", "v", "logtostderr", "symbolize_stacktrace"});
}

// "  --name ", and blanks up to a column.
std::string NameOf(const gflags::CommandLineFlagInfo& flag, size_t column) {
  std::string line = Cat("  --", flag.name, " ");
  line.resize(std::max(line.size(), column), ' ');
  return line;
}

std::string MeaningOf(const gflags::CommandLineFlagInfo& flag) {
  std::string value = flag.default_value;
  if (flag.type == "double") value = ShortNumber(std::stod(value));
  const std::string what = flag.name == "log_dir" ? kLogDir : flag.description;
  return value.empty() ? what : Cat(what, " (", value, ")");
}

// Two on a line where there is room; the others are left in `flags`.
void AppendShort(Flags* flags, std::string* text) {
  std::vector<std::string> lines;
  auto entry = [](const auto& flag) { return NameOf(flag, kShortTextColumn) + MeaningOf(flag); };
  auto is_short = [&](const auto& flag) { return entry(flag).size() <= kShortColumns; };
  const size_t pairs = std::count_if(flags->begin(), flags->end(), is_short) / 2;
  for (auto flag = flags->begin(); flag != flags->end() && lines.size() < 2 * pairs;) {
    if (is_short(*flag)) lines.push_back(entry(*flag));
    flag = is_short(*flag) ? flags->erase(flag) : flag + 1;
  }
  for (size_t i = 0; i < pairs; ++i) {
    lines[i].resize(kShortColumns, ' ');
    *text += Cat(lines[i], lines[pairs + i], "\n");
  }
}

void Append(const gflags::CommandLineFlagInfo& flag, std::string* text) {
  std::string line = NameOf(flag, kTextColumn);
  std::istringstream words(MeaningOf(flag));
  bool begun = false;
  for (std::string word; words >> word;) {
    if (begun && line.size() + 1 + word.size() > kColumns) {
      *text += line + "\n";
      line.assign(kTextColumn, ' ');
      begun = false;
    }
    line += (begun ? " " : "") + word;
    begun = true;
  }
  *text += line + "\n";
}

}  // namespace

std::string ShortNumber(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

std::string HelpText(const std::string& program, const std::string& usage, bool all) {
  Flags flags;
  gflags::GetAllFlags(&flags);
  const std::set<std::string> launcher = FilesWith(flags, {"mesh"}), others = FilesOfOthers(flags);
  auto owner = [&](const gflags::CommandLineFlagInfo& flag) {
    if (others.count(flag.filename)) return Owner::kOthers;
    return launcher.count(flag.filename) ? Owner::kLauncher : Owner::kProgram;
  };
  const std::string name = std::filesystem::path(program).filename().string();
  std::string text = Cat(usage, "\n");
  auto title = [&](const std::string& words) { text += Cat("\n", words, "\n"); };
  std::set<std::string> printed;
  auto print = [&](Owner whose) {
    for (const auto& flag : flags)
      if (owner(flag) == whose && printed.insert(flag.name).second) Append(flag, &text);
  };
  if (std::any_of(flags.begin(), flags.end(), [&](const auto& f) { return owner(f) == Owner::kProgram; })) {
    title(Cat("Flags of ", name, " (default)"));
    Flags own;
    for (const auto& flag : flags)
      if (owner(flag) == Owner::kProgram) own.push_back(flag);
    AppendShort(&own, &text);
    for (const auto& flag : own) Append(flag, &text);
  }
  for (const FlagGroup& group : kGroups) {
    if (launcher.empty()) break;
    title(group.title);
    Flags of_group;
    for (const std::string& wanted : group.names)
      for (const auto& flag : flags)
        if (flag.name == wanted && printed.insert(wanted).second) of_group.push_back(flag);
    AppendShort(&of_group, &text);
    for (const auto& flag : of_group) Append(flag, &text);
  }
  print(Owner::kLauncher);
  if (all) {
    title("Flags of glog and gflags");
    print(Owner::kOthers);
  } else {
    text += "--helpfull: also the flags of glog and gflags. --version: what this build is.\n";
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> FlagValues() {
  Flags flags;
  gflags::GetAllFlags(&flags);
  const std::set<std::string> others = FilesOfOthers(flags);
  std::vector<std::pair<std::string, std::string>> values;
  for (const auto& flag : flags)
    if (!others.count(flag.filename)) values.push_back({flag.name, flag.current_value});
  return values;
}

namespace {

// Letters to insert, delete, replace or exchange with their neighbour to make one word of the other.
size_t Edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> least(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        least[i][j] = i + j;
        continue;
      }
      least[i][j] = std::min(
          {least[i - 1][j] + 1, least[i][j - 1] + 1, least[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        least[i][j] = std::min(least[i][j], least[i - 2][j - 2] + 1);
    }
  return least[a.size()][b.size()];
}

bool IsFlag(const std::string& name, bool* takes_value) {
  gflags::CommandLineFlagInfo info;
  if (gflags::GetCommandLineFlagInfo(name.c_str(), &info)) {
    *takes_value = info.type != "bool";
    return true;
  }
  *takes_value = false;
  return name.starts_with("no") && gflags::GetCommandLineFlagInfo(name.c_str() + 2, &info) &&
         info.type == "bool";
}

bool HasControls(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return (c >= 0 && c < ' ') || c == 0x7f; });
}

// gflags would print what is wrong with it as it is.
void RefuseControls(const std::string& name, const std::string& value) {
  gflags::CommandLineFlagInfo info;
  if (HasControls(value) && gflags::GetCommandLineFlagInfo(name.c_str(), &info) && info.type != "string")
    Fail("--", name, "=", value, " is no ", info.type);
}

}  // namespace

void RefuseMisspelt(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments)
    if (argument.starts_with("--undefok") || argument.starts_with("-undefok")) return;  // gflags skips some
  for (size_t i = 1; i < arguments.size() && arguments[i] != "--"; ++i) {
    const std::string& argument = arguments[i];
    if (argument.size() < 2 || argument[0] != '-') continue;
    const size_t begin = argument[1] == '-' ? 2 : 1, equals = argument.find('=');
    const std::string name = argument.substr(begin, equals == std::string::npos ? equals : equals - begin);
    bool takes_value = false;
    if (IsFlag(name, &takes_value)) {
      if (equals != std::string::npos) RefuseControls(name, argument.substr(equals + 1));
      if (takes_value && equals == std::string::npos && ++i < arguments.size())  // the value follows
        RefuseControls(name, arguments[i]);
      continue;
    }
    if (HasControls(name)) Fail("there is no flag --", name);
    std::string close;
    size_t least = name.size() < 4 ? 2 : 3;  // more edits are another word
    for (const auto& [flag, value] : FlagValues())
      if (const size_t edits = Edits(name, flag); edits < least) close = flag, least = edits;
    if (!close.empty()) Fail("there is no flag --", name, "; did you mean --", close, "?");
  }
}

}  // namespace oneflow_like
