// Parses JSON of untrusted files.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace oneflow_like {

// Parses the text of the file `path`; if it is not JSON, the result is_discarded(). Throws Error for lists
// and objects nested more than 64 deep, because the JSON library prints, copies and compares values by
// recursion.
nlohmann::json ParseJson(const std::string& path, const std::string& text);

}  // namespace oneflow_like
