// Patterns over paths: '*' stands for any characters, '/' among them, '?' for one.
#pragma once

#include <string>

namespace oneflow_like {

bool MatchesGlob(const std::string& pattern, const std::string& path);

}  // namespace oneflow_like
