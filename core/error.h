// Errors. Error: a mistake of the user, thrown while a graph is built, compiled or run from the user's
// thread; its text is one sentence that names the operator, the axis, the numbers and the user's line.
// Status: a failure that travels through the actor runtime as a value.
#pragma once

#include <charconv>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/source_location.h"

namespace oneflow_like {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file that cannot be written to its end: no mistake of the user.
class WriteError : public Error {
 public:
  using Error::Error;
};

// A mistake in the command that is found after a session was compiled, such as a checkpoint of another model:
// Launcher::Main (oneflow_like/launcher.h) then returns kUsageError.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Streams one argument. A number that is not finite reads NaN, +infinity or -infinity, whatever its sign bit.
template <typename T>
void StreamTo(std::ostream& out, const T& value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (value != value) {
      out << "NaN";
    } else if (value - value != 0) {
      out << (value > 0 ? "+infinity" : "-infinity");
    } else {
      out << value;
    }
  } else {
    out << value;
  }
}

// Appends what StreamTo streams, without a stream where that is text or a whole number: most are, and a
// stream costs several allocations. The same in every locale.
template <typename T>
void AppendTo(std::string* out, const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    out->append(std::string_view(value));
  } else if constexpr (std::is_integral_v<T> && sizeof(T) > 1) {
    char digits[24];
    out->append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  } else {
    std::ostringstream stream;
    stream.imbue(std::locale::classic());
    StreamTo(stream, value);
    out->append(stream.str());
  }
}

// Streams its arguments into one string.
template <typename... Args>
std::string Cat(const Args&... args) {
  std::string out;
  (AppendTo(&out, args), ...);
  return out;
}

template <typename... Args>
[[noreturn]] void Fail(const Args&... args) {
  throw Error(Cat(args...));
}

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  explicit Status(std::string message) : message_(std::move(message)) {}
  bool ok() const { return message_.empty(); }
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

// A line of the user's program: every call that builds the graph records its caller's line.
struct SourceLine {
  std::string file;  // base name
  int line = 0;
  std::string function;  // called there, if operators are parts of it: "conv1d"; else empty

  SourceLine() = default;
  SourceLine(std::string file_name, int line_number) : file(std::move(file_name)), line(line_number) {}
  explicit SourceLine(const SourceLocation& at);
  std::string str() const;  // "gpt.cc:31", empty when unknown
  // Begins messages: "matmul at gpt.cc:31", or, of a part of a function, "conv1d at gpt.cc:31".
  std::string Who(const std::string& op) const;
  // "h/scatter_sum at gpt.cc:31", or, of a part, "scatter_add at gpt.cc:31, in its h/scatter_sum".
  std::string Of(const std::string& node) const;
};

}  // namespace oneflow_like
