#include "rows.h"

#include <charconv>
#include <fstream>
#include <iterator>

using namespace oneflow_like;

CommaRows::CommaRows(const std::string& path, int width) : path_(path), width_(width) {
  std::ifstream file(path, std::ios::binary);
  if (!file) Fail("cannot open ", path);
  text_.assign(std::istreambuf_iterator<char>(file), {});
  for (size_t at = 0; at < text_.size(); at = text_.find('\n', at) + 1) {
    lines_.push_back(at);
    if (text_.find('\n', at) == std::string::npos) break;
  }
  if (lines_.empty()) Fail(path, " has no line");
  fields_ = {{"x", DType::kFloat32, {width}}, {"y", DType::kFloat32, {1}}};
}

// A function of the id alone: one order on every mesh and after every restart. BrokenSample for a line that
// is none, which a pipeline may leave out.
void CommaRows::Read(const SampleId& id, std::span<void* const> to) const {
  const char *at = text_.data() + lines_[id.index], *end = text_.data() + text_.size();
  for (int column = 0; column <= width_; ++column) {
    float* value = column < width_ ? static_cast<float*>(to[0]) + column : static_cast<float*>(to[1]);
    const auto [rest, error] = std::from_chars(at, end, *value);
    const char wanted = column < width_ ? ',' : '\n';
    if (error != std::errc() || (rest != end ? *rest != wanted : column < width_))
      FailSample(path_, " at byte ", at - text_.data(), ": column ", column + 1, " of line ", id.index + 1,
                 " is not a number", column < width_ ? " with a comma behind it" : " at the end of the line");
    at = rest + (rest != end);
  }
}
