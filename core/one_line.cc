#include "core/one_line.h"

namespace oneflow_like {

std::string OnOneLine(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\r') {
      line += "\\r";
    } else if (c == '\t') {
      line += "\\t";
    } else if ((c >= 0 && c < ' ') || c == 0x7f) {
      line += {'\\', 'x', kDigits[c >> 4], kDigits[c & 15]};
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace oneflow_like
