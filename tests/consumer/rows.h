// A reader of data that oneflow_like does not have: lines of numbers between commas.
#pragma once

#include <string>
#include <vector>

#include "oneflow_like/data/source.h"

// Fields: "x" f32[width] of a line's first numbers and "y" f32[1], the last one.
class CommaRows final : public oneflow_like::SampleSource {
 public:
  CommaRows(const std::string& path, int width);  // throws Error
  const std::vector<oneflow_like::SampleField>& fields() const override { return fields_; }
  int64_t samples() const override { return static_cast<int64_t>(lines_.size()); }
  void Read(const oneflow_like::SampleId& id, std::span<void* const> to) const override;

 private:
  const std::string path_;
  const int width_;
  std::vector<oneflow_like::SampleField> fields_;
  std::string text_;
  std::vector<size_t> lines_;  // where they begin
};
