#include "oneflow_like/text/cut_text.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace oneflow_like {
namespace {

struct CutPart {
  std::string_view text;
  bool match = false;
};

std::string_view Joined(std::string_view a, std::string_view b) { return {a.data(), a.size() + b.size()}; }

// A match joins its neighbour, but a run of matches only by one of its ends.
std::vector<CutPart> JoinedParts(const std::vector<CutPart>& parts, CutBehavior behavior) {
  std::vector<CutPart> joined;
  const auto size = static_cast<int64_t>(parts.size());
  for (int64_t i = 0; i < size; ++i) {
    const bool match = parts[i].match;
    bool join = i > 0;
    if (behavior == CutBehavior::kWithPrevious) join = join && match && !parts[i - 1].match;
    if (behavior == CutBehavior::kWithNext) join = join && !match && parts[i - 1].match;
    if (behavior == CutBehavior::kContiguous) join = join && match == parts[i - 1].match;
    if (join) {
      joined.back().text = Joined(joined.back().text, parts[i].text);
    } else {
      joined.push_back(parts[i]);
    }
  }
  return joined;
}

}  // namespace

void CutByPattern(const Pattern& pattern, CutBehavior behavior, bool invert, std::string_view text,
                  bool begins, const UseTextPart& use) {
  std::vector<CutPart> parts;
  pattern.Split(text, [&](std::string_view part, bool matched) {
    parts.push_back({part, matched != invert});
  });
  if (behavior != CutBehavior::kIsolated && behavior != CutBehavior::kRemoved)
    parts = JoinedParts(parts, behavior);
  for (const CutPart& part : parts)
    if (!part.match || behavior != CutBehavior::kRemoved)
      use(part.text, begins && part.text.data() == text.data());
}

void SpaceMark::operator()(std::string_view text, bool begins, const UseTextPart& use) const {
  std::string marked = AllReplaced(std::string(text), " ", mark);
  if (in_front && (begins || !at_begin_only) && !marked.empty() && !marked.starts_with(mark))
    marked.insert(0, mark);
  const std::string_view all = marked;
  for (size_t at = 0; at < all.size();) {
    const size_t end = cut ? std::min(all.find(mark, at + 1), all.size()) : all.size();
    use(all.substr(at, end - at), begins && at == 0);
    at = end;
  }
}

std::string WithWhiteSpace(const std::string& regex) {
  const std::string space =
      R"(\t-\r\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == '\\' && i + 1 < regex.size()) {
      const char next = regex[++i];
      if (next == 's') {
        out += in_class ? space : "[" + space + "]";
      } else if (next == 'S' && !in_class) {
        out += "[^" + space + "]";
      } else {
        out += {c, next};
      }
      continue;
    }
    in_class = in_class ? c != ']' : c == '[';
    out += c;
  }
  return out;
}

std::string MatchesReplaced(const Pattern& pattern, const std::string& with, const std::string& text) {
  std::string out;
  pattern.Split(text, [&](std::string_view part, bool matched) { out += matched ? with : part; });
  return out;
}

std::string AllReplaced(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

}  // namespace oneflow_like
