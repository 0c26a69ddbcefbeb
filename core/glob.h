// Patterns over paths: '*' stands for any characters, including '/', '?' for one.
#pragma once

#include <string>

namespace oneflow_like {

bool MatchesGlob(const std::string& pattern, const std::string& path);

}  // namespace oneflow_like
