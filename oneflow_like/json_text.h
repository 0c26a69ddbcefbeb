// JSON of files that anyone may have written.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace oneflow_like {

// The text of the file `path`; what is no JSON is is_discarded(). Throws Error for lists and objects nested
// more than 64 deep: the library prints, copies and compares values by recursion, and a stack ends.
nlohmann::json ParseJson(const std::string& path, const std::string& text);

}  // namespace oneflow_like
