#include "oneflow_like/run_folder.h"

#include <gflags/gflags.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "core/error.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/help.h"

namespace oneflow_like {
namespace {

// Of `text`, each line that is a flag.
std::map<std::string, std::string> FlagsOf(const std::string& who, std::istream& text) {
  std::map<std::string, std::string> flags;
  std::string line;
  for (int number = 1; std::getline(text, line); ++number) {
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    // gflags reads names and values up to a zero.
    if (line.rfind("--", 0) != 0 || equals == std::string::npos || line.find('\0') != std::string::npos)
      Fail(who, ": line ", number, ", \"", Shown(line), "\", is no flag; write --name=value");
    const std::string name = line.substr(2, equals - 2);
    if (!flags.emplace(name, line.substr(equals + 1)).second)
      Fail(who, ": line ", number, " gives --", Shown(name), " again");
  }
  return flags;
}

void WriteText(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream out(path);
  out << text;
  if (!out.flush()) Fail("--out: ", path, " cannot be written: ", std::strerror(errno != 0 ? errno : EIO));
}

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
    if (name != "config" && name != "out") text += Cat("--", name, "=", value, "\n");
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

void WriteRunFolder(const std::string& folder, const std::string& config, const std::string& build) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) Fail("--out=", folder, " cannot be made: ", error.message());
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
  }
  WriteText(path, config);
  WriteText(folder + "/build", build);
}

}  // namespace oneflow_like
