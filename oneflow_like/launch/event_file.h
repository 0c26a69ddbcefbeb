// One of TensorBoard's event files: scalars by step.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oneflow_like {

// CRC-32 of Castagnoli's polynomial, as in RFC 3720 B.4: of "123456789" it is 0xe3069283.
uint32_t Crc32c(std::string_view bytes);

class EventFile {
 public:
  // Creates a new file in `folder`, which is created if it is missing. `first_step` is the step of the first
  // scalars: entries of this and later steps in earlier files of the folder become invalid. Throws Error when
  // the folder or the file cannot be made.
  EventFile(const std::string& folder, int64_t first_step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Tag and value; flushed. Throws Error when writing fails.
  void Write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  const std::string& path() const { return path_; }

 private:
  void WriteRecord(const std::string& bytes);

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace oneflow_like
