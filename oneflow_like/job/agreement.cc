#include "oneflow_like/job/agreement.h"

#include <sstream>

#include "actor/net/talk/job.h"
#include "core/error.h"
#include "core/random.h"

namespace oneflow_like {

namespace {

const std::string kOption = "option ";

// "--seed" of "option --seed=1".
std::string OptionOf(const std::string& line) {
  if (line.rfind(kOption, 0) != 0) return "";
  return line.substr(kOption.size(), line.find('=') - kOption.size());
}

}  // namespace

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string OptionLine(const std::string& name, const std::string& value) {
  return Cat(kOption, name, '=', value, '\n');
}

std::string FirstDifference(const std::vector<std::string>& texts) {
  const std::vector<std::string> first = Lines(texts[0]);
  size_t line = std::string::npos;
  int process = 0;
  std::vector<std::string> other;
  for (size_t p = 1; p < texts.size(); ++p) {
    std::vector<std::string> lines = Lines(texts[p]);
    size_t at = 0;
    while (at < first.size() && at < lines.size() && first[at] == lines[at]) ++at;
    if ((at == first.size() && at == lines.size()) || at >= line) continue;
    line = at;
    process = static_cast<int>(p);
    other = std::move(lines);
  }
  if (process == 0) return "";
  const std::string mine = line < first.size() ? first[line] : "";
  const std::string theirs = line < other.size() ? other[line] : "";
  const std::string option = OptionOf(mine);
  if (!option.empty() && option == OptionOf(theirs)) {
    auto value = [](const std::string& text) {
      const std::string after = text.substr(text.find('=') + 1);
      return after.empty() ? std::string("none") : after;
    };
    return Cat("option ", option, ": process 0 has ", value(mine), ", process ", process, " has ",
               value(theirs));
  }
  auto quoted = [](const std::string& text) { return text.empty() ? "nothing more" : Cat("'", text, "'"); };
  return Cat("process 0 has ", quoted(mine), ", process ", process, " has ", quoted(theirs));
}

void RequireSameFlags(Job* job, const std::vector<std::pair<std::string, std::string>>& flags) {
  std::string text;
  for (const auto& [name, value] : flags) {
    std::string line = value;  // one, whatever is in it
    for (size_t at = 0; (at = line.find('\n', at)) != std::string::npos;) line.replace(at, 1, "\\n");
    text += OptionLine("--" + name, line);
  }
  const std::string difference = FirstDifference(job->AllGather("flags", text));
  if (!difference.empty()) Fail("the processes were given different flags: ", difference);
}

void RequireAgreement(Job* job, const std::string& what, const std::string& text) {
  const std::vector<std::string> hashes = job->AllGather(what, Hexadecimal(HashName(text)));
  bool same = true;
  for (const std::string& hash : hashes) same = same && hash == hashes[0];
  if (same) return;
  const std::string difference = FirstDifference(job->AllGather(Cat(what, ", in full"), text));
  Fail(what, " is not the same on all processes: ", difference);
}

}  // namespace oneflow_like
