// Click logs as Criteo's: lines of a label, numbers and words, separated by tabs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "oneflow_like/data/files.h"
#include "oneflow_like/data/source.h"

namespace oneflow_like {

struct ClickLogOptions {
  int dense = 13, categorical = 26;  // columns behind the label
  int64_t buckets = 1 << 20;         // words become ids 0 .. buckets - 1, by their hash and column
};

// Fields: "labels" f32[] in [0, 1], "dense" f32[dense]: log(1 + x) of each number, negative ones and empty
// columns as 0; "ids" i32[categorical], where an empty column is a word like others. Files are mapped; an
// index of 8 bytes for 64 lines is made when they are opened.
class ClickLog final : public SampleSource {
 public:
  // Reads the files that match a pattern, in the order of their names. Blank lines at a file's end are none.
  // Throws Error when there is no line, and for a file that is packed or no text.
  ClickLog(const std::string& pattern, const ClickLogOptions& options);
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override { return lines_; }
  // A line with a wrong number of columns, an invalid number or a label outside [0, 1] is a BrokenSample.
  void Read(const SampleId& id, std::span<void* const> to) const override;
  std::vector<DataHash> Hashes() const override;

 private:
  struct Log {
    std::shared_ptr<const MappedFile> file;
    int64_t first = 0;             // line, of all
    std::vector<int64_t> offsets;  // of every 64th line
  };

  const ClickLogOptions options_;
  std::vector<SampleField> fields_;
  std::vector<Log> logs_;
  int64_t lines_ = 0;
};

}  // namespace oneflow_like
