// Where this user's caches are.
#pragma once

#include <cstdlib>
#include <string>

namespace oneflow_like {

// $XDG_CACHE_HOME/oneflow_like, else $HOME/.cache/oneflow_like, else empty: none.
inline std::string CacheFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != 0) return std::string(cache) + "/oneflow_like";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != 0) return std::string(home) + "/.cache/oneflow_like";
  return "";
}

}  // namespace oneflow_like
