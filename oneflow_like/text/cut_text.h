// Steps that change a text, or cut it into parts.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "oneflow_like/text/split.h"

namespace oneflow_like {

// A part of a text; `begins`: it stands where the user's text begins.
using UseTextPart = std::function<void(std::string_view part, bool begins)>;

// What becomes of the matches of a pattern that cuts a text.
enum class CutBehavior { kIsolated, kRemoved, kWithPrevious, kWithNext, kContiguous };
inline constexpr std::pair<const char*, CutBehavior> kCutBehaviors[] = {
    {"Isolated", CutBehavior::kIsolated},
    {"Removed", CutBehavior::kRemoved},
    {"MergedWithPrevious", CutBehavior::kWithPrevious},
    {"MergedWithNext", CutBehavior::kWithNext},
    {"Contiguous", CutBehavior::kContiguous}};

// With `invert` the rest of the text takes the place of the matches.
void CutByPattern(const Pattern& pattern, CutBehavior behavior, bool invert, std::string_view text,
                  bool begins, const UseTextPart& use);

// Metaspace: a mark in place of each space, and in front of the text.
struct SpaceMark {
  std::string mark;
  bool in_front = true, at_begin_only = false;  // of the user's text
  bool cut = true;                              // before each mark

  void operator()(std::string_view text, bool begins, const UseTextPart& use) const;
};

// A regular expression with Unicode's White_Space for \s: PCRE2's has U+180E besides, and files mean that of
// Oniguruma.
std::string WithWhiteSpace(const std::string& regex);
std::string MatchesReplaced(const Pattern& pattern, const std::string& with, const std::string& text);
std::string AllReplaced(std::string text, const std::string& what, const std::string& with);

}  // namespace oneflow_like
