// Turns what a process writes, piece by piece, into whole lines with a label, on a descriptor that others
// write to as well.
#pragma once

#include <memory>
#include <string>

namespace oneflow_like {

// All of it, in as few writes as it takes; false when nobody reads it any more.
bool WriteAll(int fd, const char* data, size_t bytes);

// A descriptor that lines are written to. When a line is begun and not ended (a progress line), it is ended
// before another writer's begins.
struct Sink {
  int fd = -1;
  const void* unfinished = nullptr;  // whose line it is
  int error = 0;                     // errno of the first write that failed
};

class LineWriter {
 public:
  // An empty label: text passes as it is, a line that is not ended too.
  LineWriter(std::shared_ptr<Sink> sink, std::string label)
      : sink_(std::move(sink)), label_(std::move(label)) {}

  // `now` in seconds. Whole lines are written at once.
  void Add(const char* data, size_t bytes, double now);
  // Writes what is held, ended as a line where there is a label.
  void Flush();
  // When what is held is to be flushed; 0: nothing is held.
  double due() const { return held_.empty() ? 0 : since_ + kPatience; }

 private:
  static constexpr double kPatience = 0.2;         // seconds that a line may take to be ended
  static constexpr size_t kLongestLine = 1 << 20;  // longer ones are cut

  void Write(std::string_view text);

  std::shared_ptr<Sink> sink_;
  std::string label_;
  std::string held_;
  double since_ = 0;
};

}  // namespace oneflow_like
