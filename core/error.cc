// Lines of the user's program.
#include "core/error.h"

namespace oneflow_like {

SourceLine::SourceLine(const SourceLocation& at)
    : line(at.line()), function(at.function() ? at.function() : "") {
  std::string path = at.file_name();
  size_t slash = path.find_last_of('/');
  file = slash == std::string::npos ? path : path.substr(slash + 1);
}

std::string SourceLine::str() const { return file.empty() ? "" : file + ":" + std::to_string(line); }

std::string SourceLine::Who(const std::string& op) const {
  const std::string &called = function.empty() ? op : function, at = str();
  return at.empty() ? called : called + " at " + at;
}

std::string SourceLine::Of(const std::string& node) const {
  return function.empty() ? Who(node) : Who(node) + ", in its " + node;
}

}  // namespace oneflow_like
