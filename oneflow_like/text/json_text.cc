#include "oneflow_like/text/json_text.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace oneflow_like {
namespace {

constexpr int kDeepest = 64;  // our index and Hugging Face's files have fewer than ten

bool IsTooDeep(const std::string& text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      if (++depth > kDeepest) return true;
    } else if (!quoted && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return false;
}

}  // namespace

nlohmann::json ParseJson(const std::string& path, const std::string& text) {
  if (IsTooDeep(text)) Fail(path, ": its JSON is nested more than ", kDeepest, " deep");
  return nlohmann::json::parse(text, nullptr, false);
}

}  // namespace oneflow_like
