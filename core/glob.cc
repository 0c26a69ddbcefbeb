#include "core/glob.h"

namespace oneflow_like {

// Goes back to the last '*' alone, which suffices: an earlier one could take in nothing that a later could
// not.
bool MatchesGlob(const std::string& pattern, const std::string& path) {
  size_t p = 0, at = 0, star = std::string::npos, from = 0;
  while (at < path.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = at;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == path[at])) {
      ++p;
      ++at;
    } else if (star != std::string::npos) {
      p = star + 1;
      at = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace oneflow_like
