// Text by a format of printf, of any length.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace oneflow_like {

[[gnu::format(printf, 1, 2)]] inline std::string Formatted(const char* format, ...) {
  char few[256];
  va_list words, again;
  va_start(words, format);
  va_copy(again, words);
  const auto length = static_cast<size_t>(std::vsnprintf(few, sizeof few, format, words));
  std::string text(few, std::min(length, sizeof few - 1));
  text.resize(length);
  if (length >= sizeof few) std::vsnprintf(text.data(), length + 1, format, again);
  va_end(again);
  va_end(words);
  return text;
}

}  // namespace oneflow_like
