#include "oneflow_like/feeds_check.h"

#include <cstring>
#include <sstream>

#include "actor/net/talk/job.h"
#include "core/error.h"

namespace oneflow_like {

namespace {

// Of the bytes, eight at a time. Each step can be undone, so data that differs in one place has another hash.
uint64_t HashOfBytes(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  uint64_t hash = bytes;
  for (size_t left = bytes; left > 0;) {
    const size_t part = left < 8 ? left : 8;
    uint64_t word = 0;
    std::memcpy(&word, at, part);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
    at += part;
    left -= part;
  }
  return hash;
}

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
