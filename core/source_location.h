// A line of a program, as std::source_location, which clang has only since version 16, and the library's
// function that was called there. It is laid out alike by all compilers: a project may be compiled by another
// one than the library.
#pragma once

namespace oneflow_like {

class SourceLocation {
 public:
  // Of the call in which this is a default argument.
  static constexpr SourceLocation current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return SourceLocation(file, line);
  }
  // The same line, for what `function` is made of: error messages then name the function. The outermost of
  // nested functions counts. `function` is not copied.
  constexpr SourceLocation In(const char* function) const {
    SourceLocation inside = *this;
    if (function_ == nullptr) inside.function_ = function;
    return inside;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr int line() const { return line_; }
  constexpr const char* function() const { return function_; }  // nullptr: none

 private:
  constexpr SourceLocation(const char* file, int line) : file_(file), line_(line) {}

  const char* file_;
  const char* function_ = nullptr;
  int line_;
};

}  // namespace oneflow_like
