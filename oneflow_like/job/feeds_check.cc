#include "oneflow_like/job/feeds_check.h"

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

// Between the name of an input and the box of a piece.
const char* const kAt = " at box ";

// Of pieces, or of what is fed whole.
std::map<std::string, Line> LinesOf(const std::string& text, bool of_pieces) {
  std::map<std::string, Line> lines;
  std::istringstream in(text);
  for (std::string name, kind, hash;
       std::getline(in, name) && std::getline(in, kind) && std::getline(in, hash);)
    if (of_pieces == (name.find(kAt) != std::string::npos)) lines[name] = {kind, hash};
  return lines;
}

// Boxes that several processes feed; most are fed by one.
std::string DifferenceOfPieces(const std::vector<std::string>& texts) {
  std::map<std::string, std::pair<Line, size_t>> seen;
  for (size_t p = 0; p < texts.size(); ++p)
    for (const auto& [name, line] : LinesOf(texts[p], true)) {
      const auto [at, is_new] = seen.try_emplace(name, line, p);
      if (is_new || at->second.first == line) continue;
      const std::string input = name.substr(0, name.find(kAt)), box = name.substr(input.size());
      return Cat("input '", input, "' has other values", box, " in process ", p, " than in process ",
                 at->second.second);
    }
  return "";
}

}  // namespace

std::string FeedsText(const Feeds& feeds, const FeedPieces& pieces) {
  std::string text;
  for (const auto& [name, some] : pieces)
    for (const FeedPiece& piece : some)
      text += Cat(name, kAt, piece.box.str(), '\n', Name(piece.values.dtype), piece.values.shape.str(), '\n',
                  HashOfBytes(piece.values.data.get(), piece.values.bytes()), '\n');
  for (const auto& [name, tensor] : feeds)
    text += Cat(name, '\n', Name(tensor.dtype), tensor.shape.str(), '\n',
                HashOfBytes(tensor.data.get(), tensor.bytes()), '\n');
  return text;
}

std::string DifferenceOfFeeds(const std::vector<std::string>& texts) {
  const std::string of_pieces = DifferenceOfPieces(texts);
  if (!of_pieces.empty()) return of_pieces;
  const std::map<std::string, Line> first = LinesOf(texts[0], false);
  for (size_t p = 1; p < texts.size(); ++p) {
    if (texts[p] == texts[0]) continue;
    const std::map<std::string, Line> other = LinesOf(texts[p], false);
    auto in_pieces = [&](const std::string& name, size_t process) {
      return texts[process].find(Cat(name, kAt)) != std::string::npos;
    };
    for (const auto& [name, line] : first) {
      auto theirs = other.find(name);
      if (theirs == other.end() && in_pieces(name, p)) continue;
      if (theirs == other.end()) return Cat("input '", name, "' is fed by process 0 but not by process ", p);
      if (theirs->second.kind != line.kind)
        return Cat("input '", name, "' is ", line.kind, " in process 0 but ", theirs->second.kind,
                   " in process ", p);
      if (theirs->second.hash != line.hash)
        return Cat("input '", name, "' has other values in process ", p, " than in process 0");
    }
    for (const auto& [name, line] : other)
      if (!first.count(name) && !in_pieces(name, 0))
        return Cat("input '", name, "' is fed by process ", p, " but not by process 0");
  }
  return "";
}

void RequireSameFeeds(Job* job, const std::string& session, int64_t step, const Feeds& feeds,
                      const FeedPieces& pieces) {
  const std::string what = Cat("feeds of step ", step, " of session ", session);
  const std::string difference = DifferenceOfFeeds(job->AllGather(what, FeedsText(feeds, pieces)));
  if (!difference.empty())
    Fail("step ", step, " of session ", session, ": ", difference,
         "; what several processes feed must be alike, so read the same data in the same order on all of "
         "them");
}

}  // namespace oneflow_like
