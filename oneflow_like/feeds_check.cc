#include "oneflow_like/feeds_check.h"

#include <sstream>

#include "actor/net/talk/job.h"
#include "core/error.h"
#include "core/hash_bytes.h"

namespace oneflow_like {

namespace {

// "values 12ab" and "type and shape f32[2,3]" of an input's line.
struct Line {
  std::string kind, hash;
  bool operator==(const Line&) const = default;
};

std::map<std::string, Line> LinesOf(const std::string& text) {
  std::map<std::string, Line> lines;
  std::istringstream in(text);
  for (std::string name, kind, hash;
       std::getline(in, name) && std::getline(in, kind) && std::getline(in, hash);)
    lines[name] = {kind, hash};
  return lines;
}

}  // namespace

std::string FeedsText(const Feeds& feeds) {
  std::string text;
  for (const auto& [name, tensor] : feeds)
    text += Cat(name, '\n', Name(tensor.dtype), tensor.shape.str(), '\n',
                HashOfBytes(tensor.data.get(), tensor.bytes()), '\n');
  return text;
}

std::string DifferenceOfFeeds(const std::vector<std::string>& texts) {
  const std::map<std::string, Line> first = LinesOf(texts[0]);
  for (size_t p = 1; p < texts.size(); ++p) {
    if (texts[p] == texts[0]) continue;
    const std::map<std::string, Line> other = LinesOf(texts[p]);
    for (const auto& [name, line] : first) {
      auto theirs = other.find(name);
      if (theirs == other.end()) return Cat("input '", name, "' is fed by process 0 but not by process ", p);
      if (theirs->second.kind != line.kind)
        return Cat("input '", name, "' is ", line.kind, " in process 0 but ", theirs->second.kind,
                   " in process ", p);
      if (theirs->second.hash != line.hash)
        return Cat("input '", name, "' has other values in process ", p, " than in process 0");
    }
    for (const auto& [name, line] : other)
      if (!first.count(name)) return Cat("input '", name, "' is fed by process ", p, " but not by process 0");
  }
  return "";
}

void RequireSameFeeds(Job* job, const std::string& session, int64_t step, const Feeds& feeds) {
  const std::string what = Cat("feeds of step ", step, " of session ", session);
  const std::string difference = DifferenceOfFeeds(job->AllGather(what, FeedsText(feeds)));
  if (!difference.empty())
    Fail("step ", step, " of session ", session, ": ", difference,
         "; every process feeds the whole batch, so read the same data in the same order on all of them");
}

}  // namespace oneflow_like
