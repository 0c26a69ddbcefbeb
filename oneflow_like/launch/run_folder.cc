#include "oneflow_like/launch/run_folder.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

#include "core/error.h"
#include "core/system/file_check.h"
#include "core/system/text_lines.h"
#include "oneflow_like/checkpoint.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/launch/help.h"

namespace oneflow_like {
namespace {

constexpr char kQuote = '"', kDigits[] = "0123456789abcdef";
constexpr std::pair<char, char> kEscapes[] = {
    {'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {kQuote, kQuote}, {'\\', '\\'}};

// As FlagsOf reads it: in quotes where a line could not hold it as it is.
std::string EscapedValue(const std::string& value) {
  const bool controls = std::any_of(value.begin(), value.end(), [](char c) { return c >= 0 && c < ' '; });
  if (!controls && !value.starts_with(kQuote) && !value.ends_with(' ')) return value;
  std::string text(1, kQuote);
  for (const char c : value) {
    const auto* escape =
        std::find_if(std::begin(kEscapes), std::end(kEscapes), [c](auto pair) { return pair.second == c; });
    if (escape != std::end(kEscapes))
      text += {'\\', escape->first};
    else if (c >= 0 && c < ' ')
      text += {'\\', 'x', kDigits[c >> 4], kDigits[c & 15]};
    else
      text += c;
  }
  return text + kQuote;
}

// What EscapedValue was given; no value if `text` is nothing that it returns.
std::optional<std::string> PlainValue(const std::string& text) {
  if (!text.starts_with(kQuote)) return text;
  std::string value;
  for (size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] == kQuote) return {};
    if (text[i] != '\\') {
      value += text[i];
      continue;
    }
    if (++i + 1 == text.size()) return {};
    const auto* escape = std::find_if(std::begin(kEscapes), std::end(kEscapes),
                                      [&](auto pair) { return pair.first == text[i]; });
    unsigned code = 0;
    if (escape != std::end(kEscapes)) {
      value += escape->second;
    } else if (const char* digits = text.data() + i + 1;
               text[i] == 'x' && i + 3 < text.size() &&
               std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2 && code != 0) {
      value += static_cast<char>(code);
      i += 2;
    } else {
      return {};
    }
  }
  if (text.size() < 2 || !text.ends_with(kQuote)) return {};
  return value;
}

// Of `text`, each line that is a flag.
std::map<std::string, std::string> FlagsOf(const std::string& who, std::istream& text) {
  std::map<std::string, std::string> flags;
  std::string line;
  TextLines lines(text, who);
  while (lines.Next(&line)) {
    const int number = lines.number();
    while (!line.empty() && line.back() == ' ') line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    // gflags reads names and values up to a zero.
    if (line.rfind("--", 0) != 0 || equals == std::string::npos || line.find('\0') != std::string::npos)
      Fail(who, ": line ", number, ", \"", Shown(line), "\", is no flag; write --name=value");
    const std::string name = line.substr(2, equals - 2);
    const std::optional<std::string> value = PlainValue(line.substr(equals + 1));
    if (!value)
      Fail(who, ": line ", number, ": the value of --", Shown(name),
           " begins with a quotation mark; end it with one, and write \\\" and \\\\ for those inside");
    if (!flags.emplace(name, *value).second) Fail(who, ": line ", number, " gives --", Shown(name), " again");
  }
  return flags;
}

// Files that a run writes over, with what came before it. Without a config they are no run's of ours.
constexpr const char* kWrittenOver[] = {"build", "metrics.jsonl"};

}  // namespace

void ReadConfig(const std::string& file) {
  const std::string who = "--config=" + file;
  errno = 0;
  std::ifstream text(file);
  if (!text || text.peek() == std::ifstream::traits_type::eof())
    Fail(who, " cannot be read: ", errno != 0 ? std::strerror(errno) : "it is empty");
  for (const auto& [name, value] : FlagsOf(who, text)) {
    gflags::CommandLineFlagInfo flag;
    if (!gflags::GetCommandLineFlagInfo(name.c_str(), &flag))
      Fail(who, ": this program has no flag --", Shown(name));
    if (flag.name == "config") Fail(who, " names --config itself");
    // gflags would end the program where these cannot be read.
    for (const char* elsewhere : {"flagfile", "fromenv", "tryfromenv"})
      if (flag.name == elsewhere)
        Fail(who, ": --", name, " takes flags from elsewhere; write them into the file");
    if (!flag.is_default) continue;  // the command line counts
    if (value == flag.current_value) continue;
    if (gflags::SetCommandLineOption(name.c_str(), value.c_str()).empty())
      Fail(who, ": --", name, "=", Shown(value), " is no ", flag.type);
  }
}

std::string ConfigText() {
  std::string text;
  for (const auto& [name, value] : FlagValues())
    if (name != "config" && name != "out") text += Cat("--", name, "=", EscapedValue(value), "\n");
  return text;
}

void SendOutputsTo(const std::string& folder) {
  const std::pair<const char*, const char*> places[] = {{"log_dir", "log"},
                                                        {"log_json", "metrics.jsonl"},
                                                        {"tensorboard", "tensorboard"},
                                                        {"save", "checkpoints"},
                                                        {"resume", "checkpoints"}};
  const auto given = [](const char* flag) {
    gflags::CommandLineFlagInfo known;
    return gflags::GetCommandLineFlagInfo(flag, &known) && !known.current_value.empty();
  };
  for (const auto& [flag, place] : places) {
    if (given(flag) || (flag == std::string("resume") && (given("load") || given("load_hf")))) continue;
    gflags::SetCommandLineOption(flag, Cat(folder, "/", place).c_str());  // nothing without such a flag
  }
}

RunFolder::RunFolder(const std::string& folder, const std::string& config, const std::string& build)
    : folder_(folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) Fail("--out=", folder, " cannot be made: ", error.message());
  lock_ = std::make_unique<FolderLock>(
      folder, ".running", "another program that has not ended writes into this folder; name another");
  const std::string path = folder + "/config";
  if (std::ifstream there(path); there) {
    std::istringstream now(config);
    const auto theirs = FlagsOf(path, there), ours = FlagsOf("--out", now);
    std::string different;
    for (const auto& [name, value] : ours)
      if (auto other = theirs.find(name); other == theirs.end() || other->second != value)
        different += Cat(different.empty() ? "--" : ", --", name);
    if (!different.empty())
      Fail("--out=", folder, " holds another run, whose flags differ in ", different,
           "; name another folder");
  } else {
    for (const char* file : kWrittenOver)
      if (std::filesystem::exists(std::filesystem::symlink_status(Cat(folder, "/", file), error)))
        Fail("--out=", folder, " has '", file, "' but no config of a run that made it; name another folder");
    if (const std::vector<std::string> all = Checkpoints(folder + "/checkpoints"); !all.empty())
      Fail("--out=", folder, " has ", all.back(),
           " but no config of the run that saved it; name another folder");
    created_ = true;
  }
  // The config first, and last when they are removed: what is found without it is somebody else's.
  ReplaceFile(path, config, "--out: " + path);
  try {
    ReplaceFile(folder + "/build", build, Cat("--out: ", folder, "/build"));
  } catch (const Error&) {
    Withdraw();
    throw;
  }
}

void RunFolder::Withdraw() {
  if (!created_) return;
  std::error_code ignored;
  for (const char* file : {"/build", "/config"}) std::filesystem::remove(folder_ + file, ignored);
}

}  // namespace oneflow_like
