// Groups and prints flags.
#include "oneflow_like/launch/help.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <set>
#include <sstream>
#include <vector>

#include "core/error.h"
#include "core/system/exit_codes.h"
#include "oneflow_like/build_id.h"
#include "oneflow_like/flags.h"
#include "oneflow_like/launch/launcher_flags.h"

DECLARE_bool(help);  // these are gflags'
DECLARE_bool(helpshort);
DECLARE_bool(helpfull);
DECLARE_bool(version);

namespace oneflow_like {
namespace {

using Flags = std::vector<gflags::CommandLineFlagInfo>;

constexpr size_t kColumns = 110, kTextColumn = 23;

// glog's own flag, which a reader of --help looks for among those of a program that has a launcher.
constexpr char kLogDir[] = "log_dir";
constexpr char kLogDirSentence[] =
    "Writes logs, and what each of --processes prints, to this folder instead of standard error.";

// Paths of files tell nothing of who defines a flag, as they are those of whoever built it: glog and gflags
// are known by one flag of each of their files.
std::set<std::string> FilesOfOthers(const Flags& flags) {
  static const std::set<std::string> kOne = {"help", "flagfile",    "tab_completion_word",
                                             "v",    "logtostderr", "symbolize_stacktrace"};
  std::set<std::string> files;
  for (const auto& flag : flags)
    if (kOne.count(flag.name)) files.insert(flag.filename);
  return files;
}

// Words from a column on, after `line`, in lines of kColumns.
void AppendText(std::string line, const std::string& sentence, std::string* text) {
  line.resize(std::max(line.size(), kTextColumn), ' ');
  std::istringstream words(sentence);
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

void AppendFlag(const std::string& name, const std::string& sentence, std::string* text) {
  const std::string standard = DefaultOf(name);
  AppendText(Cat("  --", name, " "), standard.empty() ? sentence : Cat(sentence, " (", standard, ")"), text);
}

// A group with its common flags, or all of them.
void AppendGroup(const FlagGroup& group, bool all, std::string* text) {
  const auto shown = [&](const FlagEntry& flag) { return all || (flag.traits & kCommon); };
  const auto hidden = std::count_if(group.flags.begin(), group.flags.end(),
                                    [&](const FlagEntry& flag) { return !shown(flag); });
  *text +=
      Cat("\n", group.title, hidden > 0 ? Cat(" (", hidden, " more: --help=", group.name, ")") : "", "\n");
  for (const FlagEntry& flag : group.flags)
    if (shown(flag)) AppendFlag(flag.name, flag.sentence, text);
  if (group.name == kGroupOfLogs && shown({.traits = kCommon})) AppendFlag(kLogDir, kLogDirSentence, text);
}

std::string NamesOfGroups() {
  std::string names;
  for (const FlagGroup& group : RegisteredGroups()) names += Cat(names.empty() ? "" : ", ", group.name);
  return names;
}

}  // namespace

std::string ShortNumber(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

std::string DefaultOf(const std::string& flag) {
  gflags::CommandLineFlagInfo known;
  if (!gflags::GetCommandLineFlagInfo(flag.c_str(), &known)) return "";
  return known.type == "double" ? ShortNumber(std::stod(known.default_value)) : known.default_value;
}

std::string HelpText(const std::string& program, const std::string& usage, const HelpWanted& wanted) {
  const std::vector<FlagGroup>& groups = RegisteredGroups();
  if (wanted.group == "markdown") return FlagTables(groups);
  std::string text = Cat(usage, "\n");
  if (!wanted.group.empty()) {
    bool found = false;
    for (const FlagGroup& group : groups)
      if (group.name == wanted.group) AppendGroup(group, true, &text), found = true;
    if (!found)
      Fail("--help=", wanted.group, ": this program has no group of flags of that name; its groups are ",
           NamesOfGroups());
    return text;
  }
  Flags flags;
  gflags::GetAllFlags(&flags);
  const std::set<std::string> others = FilesOfOthers(flags);
  Flags own;
  for (const auto& flag : flags)
    if (flag.filename != kFileOfEntries && !others.count(flag.filename)) own.push_back(flag);
  if (!own.empty())
    text += Cat("\nFlags of ", std::filesystem::path(program).filename().string(), " (default)\n");
  for (const auto& flag : own) AppendFlag(flag.name, flag.description, &text);
  for (const FlagGroup& group : groups) AppendGroup(group, wanted.all, &text);
  if (!wanted.all) {
    text += "\nMore help\n";
    AppendText("  --help=GROUP ", Cat("Shows all flags of a group: ", NamesOfGroups(), "."), &text);
    AppendText("  --helpfull ", "Shows all flags, also those of glog and gflags.", &text);
    AppendText("  --version ", "Shows what this build is, and its libraries.", &text);
    return text;
  }
  text += "\nFlags of glog and gflags\n";
  for (const auto& flag : flags)
    if (others.count(flag.filename)) AppendFlag(flag.name, flag.description, &text);
  return text;
}

void FlushOutput(int earlier) {
  errno = 0;
  const bool out = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (out && std::cout.flush()) return;
  const int why = errno != 0 ? errno : earlier;
  Fail("not all that was printed could be written to standard output: ",
       why != 0 ? std::strerror(why) : "an earlier write failed");
}

namespace {

[[noreturn]] void PrintAndExit(const std::string& text) {
  errno = 0;
  std::cout << text;
  int code = 0;
  try {
    FlushOutput(errno);
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << std::endl;
    code = kRunError;
  }
  exit(code);
}

}  // namespace

void PrintHelpOfGroup(const std::vector<std::string>& arguments, const std::string& usage) {
  for (size_t i = 1; i < arguments.size(); ++i)
    for (const std::string name : {"--help=", "-help="})
      if (arguments[i].starts_with(name) && arguments[i] != name + "true" && arguments[i] != name + "false")
        PrintAndExit(HelpText(arguments[0], usage, {.group = arguments[i].substr(name.size())}));
}

void PrintHelp(const std::string& program, const std::string& usage) {
  if (FLAGS_version) PrintAndExit(VersionText(ThisBuild()));
  if (FLAGS_help || FLAGS_helpshort || FLAGS_helpfull)
    PrintAndExit(HelpText(program, usage, {.all = FLAGS_helpfull}));
  gflags::HandleCommandLineHelpFlags();  // those for tools
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
