#include "oneflow_like/launch/start_errors.h"

#include <fcntl.h>
#include <gflags/gflags.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <utility>

#include "actor/net/rendezvous/bootstrap.h"
#include "core/one_line.h"
#include "core/system/exit_codes.h"
#include "oneflow_like/flags.h"
#include "oneflow_like/launch/help.h"

namespace GFLAGS_NAMESPACE {
extern GFLAGS_DLL_DECL void (*gflags_exitfunc)(int);  // no header of gflags has it
}

namespace oneflow_like {
namespace {

// The values of flags and other words of the command line. Those of --prompt, which may well have several
// lines, apart.
struct UsersWords {
  std::vector<std::string> words, texts;
  explicit UsersWords(const std::vector<std::string>& given) {
    bool text = false;  // the next word is one
    for (const std::string& word : given) {
      const std::string name = word.substr(0, word.find('='));
      const bool prompt = name == "--prompt" || name == "-prompt";
      if (prompt && name != word) texts.push_back(word.substr(name.size() + 1));
      if (!prompt) (text ? texts : words).push_back(word);
      text = prompt && name == word;
    }
    for (const auto& [name, value] : FlagValues()) (name == "prompt" ? texts : words).push_back(value);
  }
};

// gflags calls a function without arguments.
int kept_errors = -1, standard_error = -1;

std::string RestoreErrors() {
  std::string printed;
  if (standard_error < 0) return printed;
  std::fflush(stderr);
  dup2(standard_error, STDERR_FILENO);
  close(std::exchange(standard_error, -1));
  lseek(kept_errors, 0, SEEK_SET);
  char part[4096];
  for (ssize_t got; (got = read(kept_errors, part, sizeof(part))) > 0;) printed.append(part, got);
  close(kept_errors);
  std::cerr << printed << std::flush;
  return printed;
}

}  // namespace

std::string Plain(std::string message, const std::vector<std::string>& given) {
  const UsersWords user(given);
  const auto broken = [](const std::string& word) { return word.find('\n') != std::string::npos; };
  // A word may be repeated in part.
  if (std::any_of(user.words.begin(), user.words.end(), broken)) return OnOneLine(message);
  for (const std::string& text : user.texts)
    for (size_t at = 0; broken(text) && (at = message.find(text, at)) != std::string::npos;)
      message.replace(at, text.size(), OnOneLine(text));
  std::string plain, line;
  std::istringstream lines(message);
  for (bool first = true; std::getline(lines, line); first = false)
    plain += (first ? "" : "\n") + OnOneLine(line);
  return plain;
}

void PrintError(const std::string& message) {
  std::cout << std::flush;
  std::cerr << "error: " << message << std::endl;
}

namespace {

// As ReadIdentity, also for a process whose number is not below the number of processes: only this process
// knows of that mistake, so the others have to be told.
ProcessIdentity IdentityToTell() {
  try {
    return ReadIdentity(std::getenv);
  } catch (const Error&) {
    int given = 0;
    ProcessIdentity identity = ReadIdentity([&](const char* name) -> const char* {
      const char* text = std::getenv(name);
      const std::string asked = name;
      if (text == nullptr || (asked != "RANK" && asked != "JOB_COMPLETION_INDEX" && asked != "SLURM_PROCID"))
        return text;
      given = std::atoi(text);
      return "1";
    });
    if (given < identity.processes) throw;  // something else is wrong
    identity.process = given;
    return identity;
  }
}

}  // namespace

void TellOthers(const std::string& why) {
  constexpr double kPatience = 5;  // seconds; processes of a job start at about the same time
  try {
    if (AsksPmix(std::getenv)) return;
    const ProcessIdentity identity = IdentityToTell();
    if (identity.alone()) return;
    EndBeforeStart(identity, {.process = identity.process, .host = HostName(), .pid = getpid()}, why,
                   kPatience);
  } catch (const Error&) {  // these variables are refused in every process
  }
}

FlagErrors::FlagErrors() {
  std::fflush(stderr);
  kept_errors = memfd_create("flags", MFD_CLOEXEC);
  standard_error = kept_errors < 0 ? -1 : fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  if (standard_error >= 0) dup2(kept_errors, STDERR_FILENO);
  GFLAGS_NAMESPACE::gflags_exitfunc = [](int code) {
    const std::string printed = RestoreErrors();
    if (code == 0) exit(0);
    TellOthers(Plain(printed.substr(0, printed.find('\n')), {}));
    exit(kUsageError);
  };
}

FlagErrors::~FlagErrors() {
  RestoreErrors();
  GFLAGS_NAMESPACE::gflags_exitfunc = [](int code) { exit(code == 0 ? 0 : kUsageError); };
}

}  // namespace oneflow_like
