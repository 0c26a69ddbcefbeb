// Turns the output of a process into whole lines with a label, on a descriptor to which others write as well.
#pragma once

#include <memory>
#include <string>

namespace oneflow_like {

// Writes all bytes, in as few writes as possible; false when there is no reader any more.
bool WriteAll(int fd, const char* data, size_t bytes);

// A descriptor for lines. If a line is begun and not ended (a progress line), it is ended before another
// writer's line begins.
struct Sink {
  int fd = -1;
  const void* unfinished = nullptr;  // the writer of the unfinished line
  int error = 0;                     // errno of the first write that failed
};

class LineWriter {
 public:
  // With an empty label text passes unchanged, also unfinished lines.
  LineWriter(std::shared_ptr<Sink> sink, std::string label)
      : sink_(std::move(sink)), label_(std::move(label)) {}

  // `now` is in seconds. Whole lines are written at once.
  void Add(const char* data, size_t bytes, double now);
  // Writes the held text, ended as a line if there is a label.
  void Flush();
  // The time at which the held text must be flushed; 0: nothing is held.
  double due() const { return held_.empty() ? 0 : since_ + kPatience; }

 private:
  static constexpr double kPatience = 0.2;         // seconds that a line may stay unfinished
  static constexpr size_t kLongestLine = 1 << 20;  // longer ones are split

  void Write(std::string_view text);

  std::shared_ptr<Sink> sink_;
  std::string label_;
  std::string held_;
  double since_ = 0;
};

}  // namespace oneflow_like
