// The log of a training run: one JSON object per line and step (--log_json), and a stopwatch for what it
// says.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace oneflow_like {

// Writes and flushes line by line, so that a run that is killed leaves every finished step. The file is
// opened, and emptied, by the first line: a program that is refused before leaves it as it was. When that
// line is not of step 0, a run goes on and the lines of steps before it stay. An empty path: no log.
class StepLog {
 public:
  explicit StepLog(const std::string& path);
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // {"step":3,"loss":2.5,"<rate_name>":1234.5,"step_ms":81.2}; the loss keeps every bit of its float. Throws
  // Error when the file cannot be opened or the disk does not take it.
  void Write(int64_t step, float loss, const char* rate_name, double rate, double step_ms);

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
};

class Stopwatch {
 public:
  double Seconds() const {  // since made
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::string MinutesAndSeconds(double seconds);  // "1:05"

}  // namespace oneflow_like
