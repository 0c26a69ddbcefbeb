// A line of a program, as std::source_location, which clang has only since version 16. It is laid out alike
// by all compilers: a project may be compiled by another one than the library.
#pragma once

namespace oneflow_like {

class SourceLocation {
 public:
  // Of the call in which this is a default argument.
  static constexpr SourceLocation current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return SourceLocation(file, line);
  }
  constexpr const char* file_name() const { return file_; }
  constexpr int line() const { return line_; }

 private:
  constexpr SourceLocation(const char* file, int line) : file_(file), line_(line) {}

  const char* file_;
  int line_;
};

}  // namespace oneflow_like
