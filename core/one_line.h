// Text of others in messages: on the line of the message, and without commands to a terminal.
#pragma once

#include <string>
#include <string_view>

namespace oneflow_like {

// `text` with its control characters as escapes: \n, \r, \t, \x1b.
std::string OnOneLine(std::string_view text);

}  // namespace oneflow_like
