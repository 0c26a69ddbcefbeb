// Lines of texts.
#pragma once

#include <fstream>
#include <istream>
#include <string>
#include <utility>

#include "core/error.h"

namespace oneflow_like {

// Reads a text line by line. Leaves out a byte order mark in front, and the carriage returns that end lines
// on Windows.
class TextLines {
 public:
  // `who` names the text in messages; the stream must outlive this object.
  TextLines(std::istream& text, std::string who) : text_(text), who_(std::move(who)) {}

  // The next line, or false. Throws Error for a text in UTF-16.
  bool Next(std::string* line) {
    if (!std::getline(text_, *line)) return false;
    if (++number_ == 1 && (line->starts_with("\xFF\xFE") || line->starts_with("\xFE\xFF")))
      Fail(who_, ": it is in UTF-16; save it in UTF-8");
    if (number_ == 1 && line->starts_with("\xEF\xBB\xBF")) line->erase(0, 3);
    if (line->ends_with('\r')) line->pop_back();
    return true;
  }
  int number() const { return number_; }  // of the line that Next gave, from 1 on

 private:
  std::istream& text_;
  const std::string who_;
  int number_ = 0;
};

// The first line of a file, such as those of /proc and /sys; empty if it cannot be read.
inline std::string FirstLine(const std::string& path) {
  std::string line;
  std::ifstream in(path);
  std::getline(in, line);
  return line;
}

}  // namespace oneflow_like
